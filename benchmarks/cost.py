"""Cost model of the whole paper on 1, 8 and 64 GPUs: docs/scaling.md has its main columns.

    python benchmarks/cost.py

Replace the defaults of Inputs with your own measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs of the model, in milliseconds unless stated otherwise."""

    images: int = 232_000  # of the fifteen test sets
    seeds: int = 3
    adapters: int = 9
    encode: float = 4.34  # GPU, 64 views of an image: docs/performance.md
    render: float = 0.43  # GPU, views of an image with AugMix: docs/performance.md
    adapt: float = 0.31  # GPU, per sample and adapter at 200 classes: docs/performance.md
    pixels: float = 4.0  # CPU core, per view: decoding, cropping, AugMix
    views: int = 64
    cores: int = 16  # per GPU
    views_on_gpu: bool = True  # the cores then only read files
    dispatch: float = 2.0  # driver, per unit of work
    write: float = 10.0  # a shard's file, synced to a shared file system
    shard: int = 64
    start: float = 60.0  # seconds until a worker has loaded its model
    longest_stream: int = 50_000  # samples that one GPU must see in order (TDA on ImageNet)


INPUTS = Inputs()


def hours(gpus: int, given: Inputs = INPUTS) -> dict[str, float]:
    """Hours per part and in total."""
    samples = given.images * given.seeds
    each = given.encode + (given.render if given.views_on_gpu else 0.0) + given.adapters * given.adapt
    gpu = samples * each / gpus
    cpu = 0.0 if given.views_on_gpu else samples * given.views * given.pixels / (gpus * given.cores)
    shards = math.ceil(samples / given.shard)
    files = shards * (given.adapters + 1) * given.write / gpus
    driver = shards * given.dispatch  # one process, independent of the number of GPUs
    stream = given.longest_stream * given.adapt  # starts when its features exist
    # Readers, GPU and driver work concurrently: the slowest of them counts.
    work = max(gpu + files, cpu, driver)
    tail = stream + given.shard * each
    parts = {"GPU": gpu, "files": files, "CPU": cpu, "driver": driver, "stream and last shard": tail}
    found = {name: milliseconds / 3.6e6 for name, milliseconds in parts.items()}
    found["start"] = given.start / 3600
    found["all"] = found["start"] + (work + tail) / 3.6e6
    return found


def main() -> None:
    columns = ("GPU", "files", "driver", "stream and last shard", "start", "all")
    print("| GPUs | " + " | ".join(columns) + " | GPU hours | efficiency |")
    print("|---:" * (len(columns) + 3) + "|")
    alone = hours(1)["all"]
    for gpus in (1, 8, 64):
        found = hours(gpus)
        cells = [f"{60 * found[name]:.1f} min" for name in columns]
        print(f"| {gpus} | {' | '.join(cells)} | {gpus * found['all']:.2f} | {alone / gpus / found['all']:.0%} |")
    slow = hours(8, Inputs(views_on_gpu=False))
    print(f"\nWith views rendered by {INPUTS.cores} cores per GPU instead: {60 * slow['all']:.0f} min on 8 GPUs.")


if __name__ == "__main__":
    main()
