"""One line for each recipe that was run with a set left out: how it does on that set, best first.

    python compare.py --out results/choices-caltech results/choices-caltech-1500 results/choices-caltech-4000

NLL is the mean of zero-shot, TPT, CoTS and E-CoTS on the held-out training photos of the set left out, on which nothing
was trained or fitted; the recipe is chosen by it (README.md has the rule). "apart": the difference from the shipped
recipe in standard errors, with the spread of seeds of all lines together. "trained sets": zero-shot NLL on the held-out
photos of the other two.
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ablate import ALL, FACTOR, factors
from options import STEPS
from photos import SETS

SHIPPED = (STEPS, "full", FACTOR)
METHODS = ("zeroshot", "tpt", "cots", "ecots")
COLUMNS = {"NLL": 3, "zero-shot accuracy": 1, "names, photos": 1, "trained sets": 3}


def line(result: dict[str, Any], factor: float) -> dict[str, float]:
    """The figures of one run at one s."""
    found = result[result["left_out"]][f"factor {factor}"]
    return {
        "NLL": statistics.mean(found[m]["nll"] for m in METHODS),
        "zero-shot accuracy": found["zeroshot"]["acc"],
        "names, photos": 100 * result["photos_agree"],
        "trained sets": statistics.mean(result[s]["all"]["nll"] for s in SETS if s != result["left_out"]),
    }


def read(folders: list[Path]) -> dict[tuple[int, str, float], list[dict[str, float]]]:
    """(steps, variant, s) -> a line for each seed, the lowest mean NLL first."""
    results = [json.loads(f.read_text()) for folder in folders for f in sorted(folder.glob("*.json"))]
    sets = sorted({r.get("left_out", "none") for r in results})
    if len(sets) != 1 or sets == ["none"]:
        raise SystemExit(f"Runs of one set left out can be compared, and here are: {', '.join(sets) or 'no runs'}.")
    lines: dict[tuple[int, str, float], list[dict[str, float]]] = {}
    for r in sorted(results, key=lambda r: (list(ALL).index(r["variant"]), r["seed"])):
        for factor in factors(r):
            lines.setdefault((r["steps"], r["variant"], factor), []).append(line(r, factor))
    return dict(sorted(lines.items(), key=lambda kv: statistics.mean(x["NLL"] for x in kv[1])))


def table(folders: list[Path]) -> Iterator[str]:
    lines = read(folders)
    several = [[x["NLL"] for x in found] for found in lines.values() if len(found) > 1]
    freedom = sum(len(x) - 1 for x in several)
    spread = sum(statistics.variance(x) * (len(x) - 1) for x in several) / freedom if freedom else float("nan")
    if SHIPPED not in lines:
        raise SystemExit(f"Nothing to compare with: no run of the recipe, {STEPS:,} steps at s = {FACTOR}.")
    recipe = lines[SHIPPED]
    yield f"| steps | recipe | s | seeds | {' | '.join([*COLUMNS][:1])} | apart | {' | '.join([*COLUMNS][1:])} |"
    yield "|---" * (len(COLUMNS) + 5) + "|"
    for (steps, variant, factor), found in lines.items():
        mean = {c: statistics.mean(x[c] for x in found) for c in COLUMNS}
        gap = mean["NLL"] - statistics.mean(x["NLL"] for x in recipe)
        apart = gap / (spread * (1 / len(found) + 1 / len(recipe))) ** 0.5
        cells = [f"{mean[c]:.{digits}f}" for c, digits in COLUMNS.items()]
        head = f"| {steps:,} | {variant} | {factor:g} | {len(found)} |"
        yield f"{head} {cells[0]} | {round(apart, 1) + 0.0:.1f} | {' | '.join(cells[1:])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, nargs="+", required=True, help="folders of ablate.py --leave-out, one set")
    print(*table(parser.parse_args().out), sep="\n")


if __name__ == "__main__":
    main()
