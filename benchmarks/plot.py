"""Draw docs/figures/performance.svg from JSON files written by speed.py.

uv run python benchmarks/plot.py benchmarks/results/h200.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

OURS, THEIRS, IMAGES, GREY = "#1f6f8b", "#c8553d", "#9db4c0", "#555555"


def bars(axis: Any, found: dict[str, Any]) -> None:
    image = min(entry["ms"] for entry in found["images"].values())
    for place, text in enumerate(found["text"].values()):
        tune, temperature, first = text["naive_tune"], text["naive_temperature"], found["naive_images"]
        axis.barh(place - 0.2, first, 0.36, color=IMAGES)
        axis.barh(place - 0.2, tune + temperature, 0.36, left=first, color=THEIRS)
        axis.barh(place + 0.2, image, 0.36, color=IMAGES)
        axis.barh(place + 0.2, text["tpt+cots"], 0.36, left=image, color=OURS)
        published, ours = first + tune + temperature, image + text["tpt+cots"]
        axis.text(published + 3, place - 0.2, f"{published:.0f} ms, the published way", va="center", color=GREY)
        axis.text(ours + 3, place + 0.2, f"{ours:.1f} ms, cots: {published / ours:.0f}x", va="center", color=GREY)
    axis.set_yticks(range(len(found["text"])), [f"K = {classes}" for classes in found["text"]])
    axis.invert_yaxis()
    axis.set_xlim(0, 1.35 * max(found["naive_images"] + t["naive_tune"] + t["naive_temperature"]
                               for t in found["text"].values()))  # fmt: skip
    axis.set_xlabel("ms per sample: 64 views encoded (light), then TPT + CoTS")


def line(axis: Any, points: list[list[float]], label: str) -> None:
    x, y = zip(*points, strict=True)
    axis.plot(x, y, "o-", color=OURS, markersize=4)
    axis.plot(x, [y[-1] * value / x[-1] for value in x], "--", color=GREY, linewidth=0.8)
    axis.set(xscale="log", yscale="log", xlabel=label)
    axis.set_xticks(x, [f"{value:g}" for value in x])
    ticks = [tick for tick in (1, 2, 5, 10, 20, 50, 100) if tick <= 1.3 * max(y)]
    axis.set_yticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()


def main() -> None:
    found: dict[str, Any] = {}
    for name in sys.argv[1:]:
        found |= json.loads(Path(name).read_text())
    plt.rcParams |= {"font.size": 9, "svg.hashsalt": "cots", "axes.spines.top": False, "axes.spines.right": False}
    figure = plt.figure(figsize=(9, 5.6), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=[1, 1])
    bars(top.subplots(), found)
    axes = bottom.subplots(1, 3)
    line(axes[0], found["scaling"]["samples"], "samples per batch (K = 200)")
    line(axes[1], found["scaling"]["views"], "views, including encoding (4 samples, K = 200)")
    line(axes[2], found["scaling"]["classes"], "classes (64 samples)")
    axes[0].set_ylabel("ms per batch")
    figure.suptitle(f"{found['device']}, ViT-B/16; dashed: proportional", x=0.01, ha="left", fontsize=10)
    out = Path(__file__).parent.parent / "docs" / "figures" / "performance.svg"
    figure.savefig(out, metadata={"Date": None})
    print(out)


if __name__ == "__main__":
    main()
