"""What the exact temperature costs: time per photo with each solver, in turn within one run.

    python benchmarks/solver.py photos/ [--device cuda]

Prints the median of the paired ratios, exact to adam, with its quartiles, for each number of classes: of the CPU time
of all threads, or with --device cuda of the wall-clock time of batches of photos, once the GPU is done.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cots

LISTS = ("everyday", "imagenet")


def ratios(
    model: str, classes: str, batches: Sequence[list[Path]], device: str, options: dict[str, Any]
) -> tuple[np.ndarray, float]:
    """Time of exact / time of adam for each batch of photos, and milliseconds per photo with adam."""
    solvers = ("adam", "exact")
    classifiers = {}
    for name in solvers:
        classifiers[name] = cots.Classifier(model, classes, solver=name, device=device, **options)
    seconds = np.zeros((len(batches), len(solvers)))
    for i, files in enumerate([batches[0], *batches]):
        for name in solvers if i % 2 else solvers[::-1]:  # so that neither is always first
            began = now(device)
            classifiers[name](files)
            if i:  # the first batch is a warm-up
                seconds[i - 1, solvers.index(name)] = now(device) - began
    return seconds[:, 1] / seconds[:, 0], 1000 * float(np.median(seconds[:, 0])) / len(batches[0])


def now(device: str) -> float:
    """CPU seconds of all threads; with a GPU the clock, once the GPU is done."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--views", type=lambda text: text if text == "auto" else int(text), default=64)
    parser.add_argument("--range", action="store_true", help="with the range of the confidence")
    parser.add_argument("--model", default="mini")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch-size", type=int, default=1)
    args = parser.parse_args()
    files = sorted(file for file in args.photos.rglob("*") if file.is_file())[: args.count]
    batches = []
    for start in range(0, len(files) - args.batch_size + 1, args.batch_size):
        batches.append(files[start : start + args.batch_size])
    options = {"views": args.views, "ranges": args.range, "batch_size": args.batch_size}
    for classes in LISTS:
        found, milliseconds = ratios(args.model, classes, batches, args.device, options)
        low, middle, high = np.quantile(found, [0.25, 0.5, 0.75])
        print(f"{classes}: exact / adam {middle:.3f} ({low:.3f} to {high:.3f}), adam {milliseconds:.1f} ms per photo")


if __name__ == "__main__":
    main()
