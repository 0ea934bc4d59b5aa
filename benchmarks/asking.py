"""The intervals of docs/guarantees.md for photos drawn to be labelled: how often they hold, and how wide they are.

    python benchmarks/asking.py

1,000 draws of each size from the demo's photos, with their predictions by TPT + E-CoTS; needs no data.
"""

from __future__ import annotations

import argparse

import numpy as np

from cots.conformal import AskedAccuracy, draw
from cots.demo import read_photos, run_demo, short_lists

METHOD = "tpt+ecots"
SIZES = (30, 60, 100, 300)
INTERVALS = ("interval", "exact", "normal")
HEAD = """\
| photos | labels | uniform: any time | uniform: exact | uniform: PPI++ | half: any time | half: exact | half: active |
|---|---|---|---|---|---|---|---|
"""


def cell(found: list[AskedAccuracy], name: str, true: float) -> str:
    """Coverage in % and mean width in points; in brackets the share of the draws that give the interval, if not all."""
    ends = [getattr(one, name) for one in found if getattr(one, name) is not None]
    if not ends:
        return ""
    low, high = np.array(ends).T
    covered = (low <= true + 1e-9) & (true <= high + 1e-9)
    given = "" if len(ends) == len(found) else f" ({100 * len(ends) / len(found):.0f}%)"
    return f"{100 * covered.mean():.1f}/{100 * (high - low).mean():.1f}{given}"


def line(kind: str, labels: int, confidence: np.ndarray, correct: np.ndarray, draws: int) -> str:
    cells = []
    for uniform in (True, False):
        found = []
        for seed in range(draws):
            drawn = draw(confidence, labels, uniform=uniform, seed=seed)
            found.append(drawn.accuracy(correct[drawn.photos]))
        cells += [cell(found, name, correct.mean()) for name in INTERVALS]
    return f"| {kind} | {labels} | {' | '.join(cells)} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000)
    args = parser.parse_args()
    table = HEAD
    for kind in run_demo(short_lists(read_photos()), methods=(METHOD,)).kinds:
        scored = kind.outcomes[METHOD].scored
        for labels in SIZES:
            table += line(kind.name, labels, scored.confidence, scored.correct, args.draws)
    print(table)


if __name__ == "__main__":
    main()
