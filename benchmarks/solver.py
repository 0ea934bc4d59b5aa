"""What the exact temperature costs: CPU time per photo with each solver, in turn within one run.

    python benchmarks/solver.py photos/

Prints the median of the paired ratios, exact to adam, with its quartiles, for each number of classes.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

import cots
from cots.data import images_below

LISTS = ("everyday", "imagenet")


def ratios(classes: str, files: list[Path], views: int, ranges: bool) -> tuple[np.ndarray, float]:
    """CPU time of exact / CPU time of adam for each photo, and milliseconds per photo with adam."""
    solvers = ("adam", "exact")
    classifiers = {name: cots.Classifier(classes=classes, views=views, solver=name, ranges=ranges) for name in solvers}
    seconds = np.zeros((len(files), len(solvers)))
    for i, file in enumerate([files[0], *files]):
        for name in solvers if i % 2 else solvers[::-1]:  # so that neither is always first
            began = time.process_time()
            classifiers[name](file)
            if i:  # the first photo is a warm-up
                seconds[i - 1, solvers.index(name)] = time.process_time() - began
    return seconds[:, 1] / seconds[:, 0], 1000 * float(np.median(seconds[:, 0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--range", action="store_true", help="with the range of the confidence")
    args = parser.parse_args()
    files = [Path(full) for _, full in images_below(args.photos)][: args.count]
    for classes in LISTS:
        found, milliseconds = ratios(classes, files, args.views, args.range)
        low, middle, high = np.quantile(found, [0.25, 0.5, 0.75])
        print(f"{classes}: exact / adam {middle:.3f} ({low:.3f} to {high:.3f}), adam {milliseconds:.0f} ms of CPU")


if __name__ == "__main__":
    main()
