"""One line for each recipe that was run with a set left out: how it does on that set, best first.

    python compare.py --out results/choices-caltech results/choices-caltech-1500 results/choices-caltech-4000

NLL is the mean of zero-shot, TPT, CoTS and E-CoTS on the held-out training photos of the set left out, on which nothing
was trained or fitted; the recipe is chosen by it (docs/mini-recipe.md has the rule). "apart": the difference from the
shipped recipe in standard errors, with the spread of seeds of all recipes together; the shipped runs at another s are
compared with themselves, seed by seed. "trained sets": zero-shot NLL on the held-out photos of the other two.
"""

import argparse
import json
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ablate import FACTOR, common_variance, factors, row
from options import STEPS
from photos import SETS

SHIPPED = (STEPS, "full", FACTOR)
DIGITS = {"NLL": 3, "zero-shot accuracy": 1, "names, photos": 1, "trained sets": 3}
JUDGED = ("NLL", "trained sets")  # these are given with their distance from the shipped recipe
Line = dict[str, float]
Lines = dict[tuple[int, str, float], dict[int, Line]]


def line(result: dict[str, Any], factor: float) -> Line:
    """The figures of one run at one s."""
    found = row(result, factor)
    nll = statistics.mean(found[f"{method} NLL"] for method in ("zero-shot", "TPT", "CoTS", "E-CoTS"))
    others = statistics.mean(result[s]["all"]["nll"] for s in SETS if s != result["left_out"])
    return found | {"NLL": nll, "trained sets": others}


def mean(lines: Iterable[Line], column: str = "NLL") -> float:
    return statistics.mean(x[column] for x in lines)


def read(folders: list[Path]) -> Lines:
    """(steps, variant, s) -> seed -> figures, the lowest mean NLL first; runs that have not ended are passed over."""
    files = [f for folder in folders for f in sorted(folder.glob("*.json")) if f.stat().st_size]
    results = [json.loads(f.read_text()) for f in files]
    sets = sorted({r.get("left_out", "none") for r in results})
    if len(sets) != 1 or sets == ["none"]:
        raise SystemExit(f"Runs of one set left out can be compared, and here are: {', '.join(sets) or 'no runs'}.")
    lines: Lines = {}
    for r in results:
        for factor in factors(r):
            lines.setdefault((r["steps"], r["variant"], factor), {})[r["seed"]] = line(r, factor)
    return dict(sorted(lines.items(), key=lambda kv: mean(kv[1].values())))


def apart(lines: Lines, column: str = "NLL") -> dict[tuple[int, str, float], float]:
    """How far each recipe lies from the shipped one, in standard errors; not a number if there is one seed alone."""
    own = [[x[column] for x in found.values()] for key, found in lines.items() if key[2] == FACTOR and len(found) > 1]
    spread = common_variance(own) if own else float("nan")
    shipped, distances = lines[SHIPPED], {}
    for key, found in lines.items():
        difference = mean(found.values(), column) - mean(shipped.values(), column)
        error = (spread * (1 / len(found) + 1 / len(shipped))) ** 0.5
        both = sorted(set(found) & set(shipped))
        if key[:2] == SHIPPED[:2] and key != SHIPPED and len(both) > 1:
            pairs = [found[seed][column] - shipped[seed][column] for seed in both]
            difference, error = statistics.mean(pairs), statistics.stdev(pairs) / len(pairs) ** 0.5
        distances[key] = 0.0 if difference == error == 0 else difference / error
    return distances


def table(folders: list[Path]) -> Iterator[str]:
    lines = read(folders)
    if SHIPPED not in lines:
        raise SystemExit(f"Nothing to compare with: no run of the recipe, {STEPS:,} steps at s = {FACTOR}.")
    distances = {column: apart(lines, column) for column in JUDGED}
    columns = [name for c in DIGITS for name in ((c, "apart") if c in JUDGED else (c,))]
    yield f"| steps | recipe | s | seeds | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 4) + "|"
    for key, found in lines.items():
        steps, variant, factor = key
        cells = [f"{steps:,}", variant, f"{factor:g}", str(len(found))]
        for column, digits in DIGITS.items():
            cells.append(f"{mean(found.values(), column):.{digits}f}")
            if column in JUDGED:
                cells.append(f"{round(distances[column][key], 1) + 0.0:.1f}")
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, nargs="+", required=True, help="folders of ablate.py --leave-out, one set")
    print(*table(parser.parse_args().out), sep="\n")


if __name__ == "__main__":
    main()
