"""How long cots takes to start, and 64 views through `mini` with and without folded batch norms.

    python benchmarks/startup.py PHOTO

Medians of wall-clock seconds, measured one after the other on an otherwise idle machine; PHOTO: any photo.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

REPEATS = 5
CLI = "import sys; from cots.__main__ import main; sys.argv[0] = 'cots'; main()"
PUBLIC = "from cots import *"


def seconds(*words: str) -> float:
    """Median wall-clock time of a Python process."""

    def run() -> None:
        subprocess.run([sys.executable, "-c", *words], capture_output=True, check=False, env=os.environ)

    return median(run)


def median(call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def views() -> tuple[float, float]:
    """64 views through `mini`, in turns: by open_clip's and timm's own modules, and folded."""
    import torch

    import cots

    folder = Path(cots.__file__).parent / "embedded" / "mini"
    backbone, own = cots.load("mini", device="cpu"), cots.load(f"local-dir:{folder}", device="cpu")
    pixels = torch.randn(64, 3, *backbone.image_size)
    ways = lambda: [own.forward_images(some) for some in pixels.split(8)], lambda: backbone.encode_images(pixels)
    times: tuple[list[float], ...] = ([], [])
    for _ in range(1 + REPEATS):
        for way, spent in zip(ways, times, strict=True):
            began = time.perf_counter()
            way()
            spent.append(time.perf_counter() - began)
    return statistics.median(times[0][1:]), statistics.median(times[1][1:])


def main(photo: str) -> None:
    torch_alone, public = seconds("import torch"), seconds(PUBLIC)
    own, folded = views()
    predict_words = ("predict", photo, "--classes", "tabby cat,golden retriever,espresso", "--device", "cpu")
    rows = [
        ("cots --help", seconds(CLI, "--help"), "<= 0.4 s"),
        ("cots --version", seconds(CLI, "--version"), "<= 0.4 s"),
        (
            "usage error (unknown method)",
            seconds(CLI, "predict", photo, "--classes", "a,b", "--method", "x"),
            "<= 0.4 s",
        ),
        ("import cots", seconds("import cots"), ""),
        ("all public names, beyond import torch", public - torch_alone, "<= 0.4 s"),
        ("64 views, the model's own modules", own, ""),
        ("64 views, batch norms folded", folded, ""),
        ("the same as a ratio", folded / own, "<= 0.35"),
        ("cots predict PHOTO, cold", seconds(CLI, *predict_words), "<= 4.4 s"),
        ("cots demo --quick", seconds(CLI, "demo", "--quick", "--out", os.devnull), "<= 8 s"),
        ("cots demo", seconds(CLI, "demo", "--out", os.devnull), "<= 30 s"),
    ]
    print("| what | s | target |\n|---|---|---|")
    for what, value, target in rows:
        print(f"| {what} | {value:.2f} | {target} |")


if __name__ == "__main__":
    main(sys.argv[1])
