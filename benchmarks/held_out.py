"""The held-out trial of docs/acting.md: whether the promise of 300 labels holds on the other photos of the demo.

    python benchmarks/held_out.py

20 random splits; needs no data. The splits share photos, so their results are not independent.
"""

from __future__ import annotations

import argparse

import numpy as np

from cots.demo import ACTING, CERTAINTY, RISK, Kind, labelled_part, read_photos, run_demo, short_lists
from cots.evaluate import Acted, act
from cots.methods import method_title

HEAD = """\
| photos | method | promised errors | kept | wrong among the kept | promise held |
|---|---|---|---|---|---|
"""


def trial(kind: Kind, method: str, splits: int) -> list[Acted]:
    """A policy and its result on the other photos, for each random split."""
    scored = kind.outcomes[method].scored
    found = []
    for seed in range(splits):
        found.append(act(scored, labelled_part(len(scored), seed), RISK, CERTAINTY))
    return found


def line(kind: Kind, method: str, acted: list[Acted]) -> str:
    """Means over the splits with a promise; a promise held if no more of the kept photos were wrong."""
    promised = [one for one in acted if one.promise.threshold is not None]
    risks = [one.promise.risk for one in promised]
    kept = np.mean([one.kept / one.n for one in promised])
    wrong = np.mean([one.error_rate for one in promised])
    held = sum(one.error_rate <= risk for one, risk in zip(promised, risks, strict=True))
    risk = f"{100 * min(risks):.0f}%"
    if max(risks) > min(risks):
        risk = f"{100 * min(risks):.0f} to {100 * max(risks):.0f}%, mean {100 * np.mean(risks):.0f}%"
    cells = (kind.name, method_title(method), risk, f"{100 * kept:.0f}%", f"{100 * wrong:.1f}%")
    return f"| {' | '.join(cells)} | {held} of {len(promised)} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=20)
    args = parser.parse_args()
    result = run_demo(short_lists(read_photos()))
    table = HEAD
    for kind in result.kinds:
        for method in ACTING:
            table += line(kind, method, trial(kind, method, args.splits))
    print(table)


if __name__ == "__main__":
    main()
