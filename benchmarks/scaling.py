"""Overhead for each shard and scaling of the Ray engine on this machine: prints ratios, writes JSON.

    OMP_NUM_THREADS=1 python benchmarks/scaling.py --out scaling.json

Every run makes the same records; they are compared bit by bit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from cots import bench
from cots.bench import Run
from cots.data import Dataset, open_dataset

COLUMNS = ("label", "prediction", "confidence", "tau", "probabilities", "views")
CPU_COUNT = os.cpu_count() or 1


def make_photos(folder: Path, count: int) -> Dataset:
    """Noise in two classes."""
    rng = np.random.default_rng(0)
    for i in range(count):
        file = folder / ("cat", "dog")[i % 2] / f"{i:05d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(file)
    return open_dataset(folder)


class Timer:
    """Seconds from the first worker that is ready to the last record: without starting Ray or loading models."""

    def __init__(self, workers: int) -> None:
        self.workers, self.ready, self.end = workers, 0.0, 0.0
        self.done_before = 0

    def __call__(self, state: bench.ClusterState) -> None:
        now = time.perf_counter()
        if not self.ready and state.workers >= self.workers:
            self.ready, self.done_before = now, state.done
        if state.done == state.total and not self.end:
            self.end = now


def fingerprint(run: Run, method: str) -> bytes:
    records = run.records(run.datasets[0], method, 0)
    return b"".join(getattr(records, column).tobytes() for column in COLUMNS)


def measure(
    dataset: Dataset, folder: Path, options: argparse.Namespace, workers: int
) -> tuple[float, float, bench.Run]:
    """Seconds of the work itself, seconds in all, and the run; workers = 0: in this process."""
    cluster = {"engine": "ray", "max_workers": workers, "cpus_per_worker": 1} if workers else {}
    config = bench.RunConfig(
        model="mini", device="cpu", datasets=[dataset], methods=[options.method], views=options.views, out=folder,
        shard_size=64, **cluster,  # type: ignore[arg-type]
    )  # fmt: skip
    plan = bench.plan(config)
    timer = Timer(workers)
    start = time.perf_counter()
    run = plan.run(watch=timer)
    whole = time.perf_counter() - start
    if not workers:
        return whole, whole, run
    # Records that were done before all workers were ready are taken out at the mean rate.
    rate = (len(dataset) - timer.done_before) / (timer.end - timer.ready)
    return len(dataset) / rate, whole, run


def round_trip(calls: int = 300) -> float:
    """Milliseconds for handing out a unit that takes no time and hearing of it: what Ray adds to each."""
    import ray

    from cots.bench._parts import Unit

    @ray.remote(num_cpus=1)
    class Idle:
        def work(self, unit: Unit) -> None:
            return None

    ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
    idle, unit = Idle.remote(), Unit(job=0, shards=(1, 2))
    ray.get(idle.work.remote(unit))
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        ray.get(ray.wait([idle.work.remote(unit)], timeout=1.0)[0][0])
        times.append(time.perf_counter() - start)
    ray.shutdown()
    return 1000 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--views", type=int, default=16)
    parser.add_argument("--method", default="tpt+cots")
    parser.add_argument("--out", type=Path, default=Path("scaling.json"))
    options = parser.parse_args()
    shards = -(-options.samples // 64)
    result = {
        "machine": {"cores": CPU_COUNT, "threads": torch.get_num_threads(), "python": platform.python_version()},
        "load_before": os.getloadavg(),
        "samples": options.samples,
        "shards": shards,
        "round_trip_ms": round_trip(),
        "runs": {},
    }
    with tempfile.TemporaryDirectory() as scratch:
        dataset = make_photos(Path(scratch) / "photos", options.samples)
        prints = set()
        for workers in (0, 1, 2):
            work, whole, run = measure(dataset, Path(scratch) / f"run{workers}", options, workers)
            prints.add(fingerprint(run, options.method))
            name = f"ray, {workers} workers" if workers else "in process"
            result["runs"][name] = {"work_s": work, "whole_s": whole, "samples_per_s": options.samples / work}
            print(f"{name:<16} work {work:7.1f} s, with start {whole:7.1f} s, {options.samples / work:7.1f} samples/s")
    inline, one, two = (entry["work_s"] for entry in result["runs"].values())
    result["identical"] = len(prints) == 1
    result["one_worker_over_in_process"] = one / inline
    result["two_workers_speedup"] = one / two
    result["load_after"] = os.getloadavg()
    print(f"round trip of a unit {result['round_trip_ms']:.2f} ms; 1 worker takes {one / inline:.2f} of in process")
    print(f"2 workers are {one / two:.2f} times as fast as 1; records identical: {result['identical']}")
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
