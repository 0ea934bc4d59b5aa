"""The cost of checksums: the share of a run's time spent on computing and verifying them.

    python benchmarks/checksums.py PHOTOS

PHOTOS: a folder with one folder of photos per class. Each row is a run with `mini` on one CPU: from scratch, with
existing features, and only reading the records for a report.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import cots
from cots import _checked, bench
from cots.evaluate import summarise


class Clock:
    """Seconds spent in functions, without those that they call again."""

    def __init__(self) -> None:
        self.seconds, self._running = 0.0, False

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            if self._running:
                return call(*args, **options)
            self._running, began = True, time.perf_counter()
            try:
                return call(*args, **options)
            finally:
                self.seconds, self._running = self.seconds + time.perf_counter() - began, False

        return run


def main(photos: str) -> None:
    torch.set_num_threads(1)
    clock, model = Clock(), cots.load("mini", device="cpu")
    # Whatever is written passes `_sealed`, whatever is read passes `verify`.
    _checked._sealed, _checked.verify = clock.timed(_checked._sealed), clock.timed(_checked.verify)
    print("| run | samples | s | checksums, s | share |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:

        def run(out: str, methods: str) -> bench.Run:
            folder = Path(name)
            return bench.run(
                bench.RunConfig(model=model, datasets=photos, methods=methods, out=folder / out, cache=folder / "cache")
            )

        rows: dict[str, Callable[[], object]] = {
            "zeroshot, tpt+cots from photos": lambda: run("first", "zeroshot,tpt+cots"),
            "zeroshot, tpt+cots from features": lambda: run("second", "zeroshot,tpt+cots"),
            "zeroshot from features": lambda: run("third", "zeroshot"),
            "figures of a report": lambda: summarise(bench.Run.open(Path(name) / "first"), resamples=1000),
        }
        for title, call in rows.items():
            clock.seconds, began = 0.0, time.perf_counter()
            call()
            spent = time.perf_counter() - began
            n = len(bench.Run.open(Path(name) / "first").records(Path(photos).name, "zeroshot", 0))
            print(f"| {title} | {n} | {spent:.2f} | {clock.seconds:.4f} | {clock.seconds / spent:.2%} |")


if __name__ == "__main__":
    main(sys.argv[1])
