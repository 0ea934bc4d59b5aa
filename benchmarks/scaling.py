"""Overhead per shard and scaling of the Ray engine on this machine: prints ratios, writes JSON.

    OMP_NUM_THREADS=1 python benchmarks/scaling.py --device cpu --out scaling.json
    OMP_NUM_THREADS=4 python benchmarks/scaling.py --device cuda --workers 1 2 4 --photo 300 --views 64 --out gpu.json

Workers on a GPU share it equally. The records of every run are compared with those of this process, including a last
run with two workers, one of which is killed during the run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from cots import bench
from cots.bench import Run
from cots.data import Dataset, open_dataset

COLUMNS = ("label", "prediction", "confidence", "tau", "probabilities", "views")
CPU_COUNT = os.cpu_count() or 1
SHARD = 64


def make_photos(folder: Path, count: int, height: int) -> Dataset:
    """Smooth noise in two classes."""
    rng, size = np.random.default_rng(0), (height * 4 // 3, height)
    for i in range(count):
        file = folder / ("cat", "dog")[i % 2] / f"{i:05d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        noise = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        noise.resize(size, Image.Resampling.BICUBIC).save(file, quality=90)
    return open_dataset(folder)


class Timer:
    """Seconds from the first ready worker to the last record, without starting Ray or loading models."""

    def __init__(self, workers: int) -> None:
        self.workers, self.ready, self.end = workers, 0.0, 0.0
        self.done_before = 0

    def __call__(self, state: bench.ClusterState) -> None:
        now = time.perf_counter()
        if not self.ready and state.workers >= self.workers:
            self.ready, self.done_before = now, state.done
        if state.done == state.total and not self.end:
            self.end = now


class Killer(Timer):
    """Kills one of the workers when two shards are done."""

    done_when_killed: int | None = None

    def __call__(self, state: bench.ClusterState) -> None:
        super().__call__(state)
        if self.done_when_killed is None and 2 * SHARD <= state.done < state.total and len(pids := worker_pids()) > 1:
            os.kill(pids[0], signal.SIGKILL)
            self.done_when_killed = state.done


def worker_pids() -> list[int]:
    """Processes of this machine that Ray shows as our workers (Linux)."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if title.startswith(b"ray::Worker"):
            found.append(int(folder.name))
    return found


def compared(run: Run, reference: Run, method: str) -> dict[str, Any]:
    """Whether the records are bit-identical, and if not, how much they differ."""
    ours, theirs = (r.records(r.datasets[0], method, 0) for r in (run, reference))
    same = all(getattr(ours, c).tobytes() == getattr(theirs, c).tobytes() for c in COLUMNS)
    return {
        "records": len(ours),
        "failed": ours.failed,
        "same_samples": ours.ids == theirs.ids,
        "identical": same,
        "same_class": float((ours.prediction == theirs.prediction).mean()),
        "largest_difference": float(np.abs(ours.probabilities - theirs.probabilities).max()),
    }


def measure(
    dataset: Dataset, folder: Path, options: argparse.Namespace, workers: int, timer: Timer | None = None
) -> tuple[float, float, Run]:
    """Seconds of the work itself, total seconds, and the run; workers = 0: in this process."""
    cluster: dict[str, Any] = {}
    if workers:
        cluster = {"engine": "ray", "max_workers": workers, "cpus_per_worker": torch.get_num_threads()}
        cluster |= {"gpus_per_worker": 1 / workers} if options.device == "cuda" else {}
    config = bench.RunConfig(
        model=options.model, device=options.device, precision=options.precision, datasets=[dataset],
        methods=[options.method], views=options.views, out=folder, shard_size=SHARD, **cluster,
    )  # fmt: skip
    plan = bench.plan(config)
    timer = timer or Timer(workers)
    start = time.perf_counter()
    run = plan.run(watch=timer)
    whole = time.perf_counter() - start
    if not workers:
        return whole, whole, run
    # Records that were done before all workers were ready are taken out at the mean rate.
    rate = (len(dataset) - timer.done_before) / (timer.end - timer.ready)
    return len(dataset) / rate, whole, run


def round_trip(calls: int = 300) -> float:
    """Milliseconds to assign an empty part and get its result: Ray's overhead per part."""
    import ray

    @ray.remote(num_cpus=1)
    class Idle:
        def work(self, part: int) -> None:
            return None

    ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
    idle = Idle.remote()
    ray.get(idle.work.remote(0))
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        ray.get(ray.wait([idle.work.remote(0)], timeout=1.0)[0][0])
        times.append(time.perf_counter() - start)
    ray.shutdown()
    return 1000 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--photo", type=int, default=64, help="height of the photos in pixels")
    parser.add_argument("--views", type=int, default=16)
    parser.add_argument("--method", default="tpt+cots")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path, default=Path("scaling.json"))
    options = parser.parse_args()
    machine = {"cores": CPU_COUNT, "threads": torch.get_num_threads(), "python": platform.python_version()}
    gpu = {"gpu": torch.cuda.get_device_name()} if options.device == "cuda" else {}
    settings = {k: v for k, v in vars(options).items() if k not in ("workers", "out")}
    result: dict[str, Any] = {"machine": machine | gpu, "load_before": os.getloadavg()}
    result |= settings | {"shards": -(-options.samples // SHARD), "round_trip_ms": round_trip(), "runs": {}}
    with tempfile.TemporaryDirectory() as scratch:
        dataset = make_photos(Path(scratch) / "photos", options.samples, options.photo)
        places = (Path(scratch) / f"run{i}" for i in range(100))

        def add(name: str, workers: int, reference: Run | None = None, timer: Timer | None = None) -> Run:
            work, whole, run = measure(dataset, next(places), options, workers, timer)
            entry = {"work_s": work, "whole_s": whole, "samples_per_s": options.samples / work}
            entry |= compared(run, reference, options.method) if reference else {}
            entry |= {"done_when_killed": timer.done_when_killed} if isinstance(timer, Killer) else {}
            result["runs"][name] = entry
            print(f"{name}: " + ", ".join(f"{k} {v:.5g}" for k, v in entry.items()), flush=True)
            options.out.write_text(json.dumps(result, indent=1) + "\n")
            return run

        first = add("in process, first", 0)  # a GPU's kernels are compiled on the way
        reference = add("in process", 0, first)
        for workers in options.workers:
            add(f"ray, {workers} workers", workers, reference)
        add("ray, 1 of 2 killed", 2, reference, Killer(2))
    result["load_after"] = os.getloadavg()
    print(f"round trip of a part {result['round_trip_ms']:.2f} ms")
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
