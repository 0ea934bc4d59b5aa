"""Seconds of `cots.Classifier` with `views="auto"` and with 64, on JPEG files that end as in benchmarks/endings.py.

    python benchmarks/auto_speed.py --out results.json       # a GPU: ViT-B/16, 200 classes, 256 files, AugMix

One photo: milliseconds if it ends after each round, and with 64 views. The measurements alternate, so that ratios are
of the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from endings import SHARES, ending
from PIL import Image

import cots
from cots.rounds import ROUNDS

CLASSES = [f"{thing} number {i}" for thing in ("dog", "cat", "car", "cup") for i in range(50)]


def write_files(folder: Path, count: int) -> list[Path]:
    files = []
    for i in range(count):
        small = np.random.default_rng(i).integers(0, 256, (12, 16, 3), dtype=np.uint8)
        files.append(folder / f"{i}.jpg")
        Image.fromarray(small).resize((500, 375), Image.Resampling.BICUBIC).save(files[-1], quality=90)
    return files


def seconds(classifier: cots.Classifier, photos: Any, repeats: int) -> float:
    """Median seconds of a call; it ends with results on the host."""
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        classifier(photos)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="random:ViT-B-16")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--files", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    backbone = cots.load(args.model, device=args.device, precision=args.precision)
    fixed = cots.Classifier(backbone, CLASSES, "tpt+ecots", views=64)
    automatic = cots.Classifier(backbone, CLASSES, "tpt+ecots", views="auto")
    found: dict[str, Any] = {"device": str(backbone.device), "torch": torch.__version__}
    with TemporaryDirectory() as folder:
        files = write_files(Path(folder), args.files)
        for classifier in (fixed, automatic):
            with ending(SHARES["unknown classes"]):
                classifier(files)  # warm
        found["64 views, s"] = seconds(fixed, files, args.repeats)
        for kind, shares in SHARES.items():
            with ending(shares):
                classifier_s = seconds(automatic, files, args.repeats)
            found[f"auto, {kind}, s"] = classifier_s
            found[f"auto, {kind}, times faster"] = found["64 views, s"] / classifier_s
        found["one photo, 64 views, ms"] = 1000 * seconds(fixed, files[0], 10 * args.repeats)
        for place, views in enumerate(ROUNDS):
            with ending(tuple(float(i == place) for i in range(len(ROUNDS)))):
                seconds(automatic, files[0], 5)
                found[f"one photo, {views} views, ms"] = 1000 * seconds(automatic, files[0], 10 * args.repeats)
    print(json.dumps(found, indent=1))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
