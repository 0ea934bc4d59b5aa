"""Seconds per photo of `cots.Classifier` with models of several sizes: the README's table of models.

    python benchmarks/models.py PHOTO [--views 64 or auto] [--precision bfloat16] [--device cpu]

Random weights, which are as fast as trained ones. PHOTO: any photo; 37 class names, TPT + E-CoTS. The first photo,
which also prepares the task, is not timed. CPU time is that of all threads. With auto, a mean over photos that end
after each round as often as the demo's (benchmarks/endings.py), for known and unknown classes. With --encode, only
the image encoder: CPU seconds of 8 views in float32 and in bfloat16, in turns, and how far the features differ.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Sequence

import open_clip
import torch
from endings import SHARES, ending
from torch import Tensor

import cots
from cots.rounds import ROUNDS, Views

MODELS = ("mini", "RN50", "ViT-B-32", "ViT-B-16", "ViT-L-14", "ViT-B-16-SigLIP")
NAMES = [f"{size} {thing}" for size in ("small", "big", "old") for thing in ("dog", "cat", "bird", "car", "tree")] + [
    "cup", "house", "horse", "boat", "lamp", "chair", "table", "flower", "rose", "apple", "lemon", "truck", "train",
    "bus", "fish", "duck", "goose", "mouse", "clock", "bottle", "ball", "bell",
]  # fmt: skip


def make_classifier(model: str, views: Views, device: str, precision: str) -> cots.Classifier:
    name = model if model == "mini" else f"random:{model}"
    tokens = siglip_tokens if "SigLIP" in model else None
    backbone = cots.load(name, tokenizer=tokens, device=device, precision=precision)
    return cots.Classifier(backbone, NAMES, views=views)


def siglip_tokens(texts: Sequence[str], context_length: int = 64) -> Tensor:
    """As many tokens as SigLIP has; its own tokenizer would have to be downloaded."""
    return open_clip.SimpleTokenizer(context_length=context_length)(list(texts)) % 32_000


def encoding(model: str, device: str, repeats: int) -> None:
    """Print the image encoder's CPU seconds in both precisions."""
    pixels = torch.randn(8, 3, 224, 224, generator=torch.Generator().manual_seed(0)).to(device)
    spent: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    backbones = {precision: cots.load(f"random:{model}", device=device, precision=precision) for precision in spent}
    features = {}
    for _ in range(1 + repeats):  # the first is not counted
        for precision, backbone in backbones.items():
            used = time.process_time()
            features[precision] = backbone.encode_images(pixels)
            spent[precision].append(time.process_time() - used)
    full, half = (statistics.median(spent[precision][1:]) for precision in ("float32", "bfloat16"))
    difference = (features["float32"] - features["bfloat16"]).abs().max()
    print(f"{model}: {full:.2f} CPU s in float32, {half:.2f} in bfloat16 ({full / half:.1f}x), {difference:.1e} apart")


def weighted(classifier: cots.Classifier, photo: str, repeats: int) -> list[tuple[str, float, float]]:
    """Kind of photos, mean seconds and mean CPU seconds, from photos that end after each round."""
    measured = []
    for place in range(len(ROUNDS)):
        with ending(tuple(float(i == place) for i in range(len(ROUNDS)))):
            measured.append(seconds(classifier, photo, repeats))
    found = []
    for kind, shares in SHARES.items():
        wall, cpu = (sum(share * one[i] for share, one in zip(shares, measured, strict=True)) for i in (0, 1))
        found.append((kind, wall, cpu))
    return found


def seconds(classifier: cots.Classifier, photo: str, repeats: int) -> tuple[float, float]:
    """Median wall-clock and CPU seconds per photo."""
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
    parser.add_argument("--views", type=lambda text: text if text == "auto" else int(text), default=64)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--encode", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # names that `mini` does not know
    if args.encode:
        for model in args.models:
            encoding(model, args.device, args.repeats)
        return
    print("| model | s per photo | CPU s per photo |\n|---|---|---|")
    for model in args.models:
        classifier = make_classifier(model, args.views, args.device, args.precision)
        if args.views == "auto":
            for kind, wall, cpu in weighted(classifier, args.photo, args.repeats):
                print(f"| `{model}`, {kind} | {wall:.2f} | {cpu:.2f} |", flush=True)
        else:
            wall, cpu = seconds(classifier, args.photo, args.repeats)
            print(f"| `{model}` | {wall:.2f} | {cpu:.2f} |", flush=True)


if __name__ == "__main__":
    main()
