"""Seconds per photo of `cots.Classifier` with models of several sizes: the README's table of models.

    python benchmarks/models.py PHOTO [--views 64] [--device cpu]

Random weights, which are as fast as trained ones. PHOTO: any photo; 37 class names, TPT + E-CoTS. The first photo,
which also prepares the task, is not timed. CPU time is that of all threads.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings

import cots

MODELS = ("mini", "RN50", "ViT-B-32", "ViT-B-16", "ViT-L-14", "ViT-B-16-SigLIP")
NAMES = [f"{size} {thing}" for size in ("small", "big", "old") for thing in ("dog", "cat", "bird", "car", "tree")] + [
    "cup", "house", "horse", "boat", "lamp", "chair", "table", "flower", "rose", "apple", "lemon", "truck", "train",
    "bus", "fish", "duck", "goose", "mouse", "clock", "bottle", "ball", "bell",
]  # fmt: skip


def seconds(model: str, photo: str, views: int, device: str, repeats: int) -> tuple[float, float]:
    """Median wall-clock and CPU seconds per photo."""
    name = model if model == "mini" else f"random:{model}"
    classifier = cots.Classifier(name, NAMES, views=views, device=device)
    classifier(photo)
    wall, cpu = [], []
    for _ in range(repeats):
        began, used = time.perf_counter(), time.process_time()
        classifier(photo)
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
    return statistics.median(wall), statistics.median(cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photo")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # names that `mini` does not know
    print("| model | s per photo | CPU s per photo |\n|---|---|---|")
    for model in args.models:
        wall, cpu = seconds(model, args.photo, args.views, args.device, args.repeats)
        print(f"| `{model}` | {wall:.2f} | {cpu:.2f} |", flush=True)


if __name__ == "__main__":
    main()
