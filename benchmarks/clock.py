"""Timing on any device, and the table of measurements against their targets."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch

RELATIVES = ("ctpt", "otpt", "atpt", "soc", "dtpt", "penalty", "zsnorm")
METHODS = ("tpt+cots", "tpt+ecots", *(f"{adapter}+cots" for adapter in RELATIVES))


class Clock:
    """Median milliseconds of a call; on a GPU by CUDA events, so that asynchronous work is included."""

    def __init__(self, device: str) -> None:
        self.device, self.cuda = device, device == "cuda"
        self.started = time.perf_counter()

    def ms(self, call: Callable[[], Any], repeats: int | None = None, warm: int | None = None) -> float:
        for _ in range((3 if self.cuda else 1) if warm is None else warm):
            call()
        times = sorted(self.once(call)[0] for _ in range(repeats or (10 if self.cuda else 3)))
        return times[len(times) // 2]

    def once(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """Milliseconds and result of one call, without warm-up."""
        if not self.cuda:
            start = time.perf_counter()
            result = call()
            return 1e3 * (time.perf_counter() - start), result
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        result = call()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last), result

    def wall(self, call: Callable[[], Any], repeats: int = 20) -> float:
        """Median milliseconds of the wall clock until the GPU has finished, after the calls that graphs need."""
        times = []
        for _ in range(5 + repeats):
            torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - start))
        return sorted(times[5:])[repeats // 2]

    def reset_memory(self) -> None:
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak_gib(self) -> float | None:
        return torch.cuda.max_memory_allocated() / 2**30 if self.cuda else None

    def say(self, text: str) -> None:
        print(f"[{time.perf_counter() - self.started:6.1f} s] {text}", file=sys.stderr, flush=True)


def show(found: dict[str, Any]) -> str:
    """One line per target: what was measured, the value, the target and whether it holds."""
    lines = [f"{found['device']}, torch {found['torch']}, Python {found['python']}"]
    for what, value, wanted, holds in targets(found):
        lines.append(f"{'ok ' if holds else 'NO '} {what:<66} {value:>12}   {wanted}")
    return "\n".join(lines)


def targets(found: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    rows: list[tuple[str, str, str, bool]] = []

    def add(what: str, value: float, limit: float, unit: str, at_least: bool) -> None:
        holds = value >= limit if at_least else value <= limit
        rows.append((what, f"{value:.3g}{unit}", f"{'at least' if at_least else 'at most'} {limit:g}{unit}", holds))

    if "matmul" in found:
        image = min(entry["ms"] for entry in found["images"].values())
        share = 100 * found["operations"]["plain"] / image * 1e3 / max(found["matmul"].values())
        add(f"image encoder, {image:.2f} ms per 64 views, share of the matmul rate", share, 60, " %", True)
        for classes, most, least in (("47", 1.25, 10), ("200", 1.25, 12), ("1000", 1.5, 20)):
            text = found["text"][classes]
            add(f"K={classes} one photo", text["one_photo"], 7, " ms", False)
            slow, batch = {"47": (10, 1.15), "200": (10, 1.3), "1000": (16, 1.6)}[classes]
            add(f"K={classes} one photo without the Jacobian", text["one_photo_without_jacobian"], slow, " ms", False)
            for size, per_sample in text["without_jacobian"].items():
                add(f"K={classes} batch {size} without the Jacobian, {per_sample:.2f} ms, over images alone",
                    (image + per_sample) / image, batch, "x", False)  # fmt: skip
            published = found["naive_images"] + text["naive_tune"] + text["naive_temperature"]
            for method in METHODS:
                add(f"K={classes} {method}, {text[method]:.2f} ms, with images over images alone",
                    (image + text[method]) / image, most, "x", False)  # fmt: skip
            add(f"K={classes} published {published:.0f} ms over tpt+cots, images included",
                published / (image + text["tpt+cots"]), least, "x", True)  # fmt: skip
        change = found["gradients"]
        add("gradients in half precision: photos with the same class", 100 * change["same_class"], 100, " %", True)
        add("gradients in half precision: mean change of confidence", change["mean_difference"], 1e-3, "", False)
        add("peak memory at K=1000", found["text"]["1000"]["peak_gib"], 16, " GiB", False)
        add("one more method at K=200", found["text"]["200"]["added_method"], 1, " ms", False)
        for kind, least in (("crop+flip", 100), ("augmix", 60)) if "files" in found else ():
            rate = found["files"][f"{kind}, views by gpu: images/s"]
            add(f"JPEG files to calibrated probabilities, {kind}", rate, least, " images/s", True)
    else:
        text = found["text"]["37"]
        published = text["naive_tune"] + text["naive_temperature"]
        add(f"K=37 text side, published {published:.0f} ms over tpt+cots", published / text["tpt+cots"], 10, "x", True)
        images = found["images"]
        add("bf16 image encoder of mini over float32", images["float32"] / images["bfloat16"], 1, "x", True)
        add("largest difference of its features", images["difference"], 1e-2, "", False)
    for entry in found["calibration"] if "matmul" in found else []:
        text = found["text"][str(entry["classes"])]
        for solver in ("adam", "exact"):
            add(f"K={entry['classes']} batch {entry['batch']} calibration, {solver}, {1e3 * entry[solver]:.1f} us",
                text["naive_temperature"] / entry[solver], 500 if solver == "adam" else 250, "x", True)  # fmt: skip
    return rows
