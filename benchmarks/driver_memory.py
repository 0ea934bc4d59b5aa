"""Memory of the driver of a Ray run at growing numbers of samples: prints peaks, writes JSON.

    OMP_NUM_THREADS=1 python benchmarks/driver_memory.py --out driver_memory.json

Each number is a process of its own, which plans, lists, hands out, counts and finishes as `cots run --engine ray` does,
on a Ray cluster of this machine with one worker. The worker is a real one, but writes the same records for every sample
instead of adapting to it. Measured is the driver's own process (VmHWM); the worker and Ray's processes are others.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image

METHODS = "tpt,tpt+cots"
LINKS = 10_000  # file systems limit the names of one file


def make_photos(folder: Path, count: int) -> Path:
    """A folder a class, with `count` names for a few files."""
    for i in range(count):
        file = folder / ("cat", "dog")[i % 2] / f"{i:07d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        if i % LINKS < 2:
            Image.new("RGB", (64, 64), (i % 256, 80, 160)).save(file)
            original = file
        else:
            os.link(original, file)
    return folder


def memory(field: str) -> float:
    """MiB of this process, from the kernel: VmHWM is the most so far, VmRSS is now."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) / 1024


def quick_seat() -> type:
    """Ray's actors with the worker's own start, and work that takes no time."""

    class Seat:
        def place(self) -> tuple[str, int]:
            import os
            import platform

            return platform.node(), os.getpid()

        def prepare(self, config: Any, settings: dict[str, Any]) -> None:
            from cots.bench._worker import Worker

            self.worker = Worker(config, settings)

        def work(self, unit: Any) -> None:
            import torch

            job = self.worker._jobs[unit.job]
            for shard in unit.shards:
                for method in job.methods:
                    writer = job._writer(method, shard)
                    half = torch.tensor([0.5, 0.5])
                    for place in job.places(shard):
                        writer.rows[place] = (torch.tensor(0), 0.5, 1.0, half, torch.tensor([]), 0.0)
                    writer.write()

    return Seat


def drive(photos: Path, out: Path) -> None:
    """One driver, in this process; its figures are the last line."""
    from cots import bench
    from cots.bench import _ray
    from cots.cli._bench import run_config

    _ray._seat = quick_seat
    config = bench.RunConfig(
        model="mini", device="cpu", datasets=[str(photos)], methods=METHODS, views=2, out=out, engine="ray",
        max_workers=1, cpus_per_worker=1,
    )  # fmt: skip
    start = time.perf_counter()
    run_config(config, quiet=True)
    assert bench.Run.open(out).complete
    figures = {"seconds": time.perf_counter() - start, "peak_mib": memory("VmHWM"), "end_mib": memory("VmRSS")}
    print(json.dumps(figures))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--drive", type=Path, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("driver_memory.json"))
    options = parser.parse_args()
    if options.drive:
        drive(*options.drive)
        return
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for samples in options.samples:
            photos = make_photos(Path(scratch) / str(samples) / "photos", samples)
            for repeat in range(options.repeats):
                words = [sys.executable, __file__, "--drive", str(photos), f"{scratch}/{samples}/run{repeat}"]
                told = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
                rows.append({"samples": samples, **json.loads(told.splitlines()[-1])})
                print(f"{samples:>9} samples: {rows[-1]}", flush=True)
    means = {n: sum(r["peak_mib"] for r in rows if r["samples"] == n) / options.repeats for n in options.samples}
    few, many = min(means), max(means)
    growth = (means[many] - means[few]) * 2**20 / max(1, many - few)
    print(f"from {few} to {many} samples the peak grows by {growth:.1f} bytes a sample")
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    result = {"machine": machine, "methods": METHODS, "runs": rows, "bytes_a_sample": growth}
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
