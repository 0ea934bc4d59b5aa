"""A model of what the whole paper costs on 1, 8 and 64 GPUs: prints the table of docs/scaling.md.

    python benchmarks/cost.py

All its inputs stand in INPUTS; replace them with what you measure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What the model goes by; milliseconds unless it says otherwise."""

    images: int = 232_000  # of the fifteen test sets
    seeds: int = 3
    adapters: int = 9
    encode: float = 4.66  # a GPU, for the 64 views of an image: docs/performance.md
    render: float = 0.43  # a GPU, for the views of an image with AugMix: docs/performance.md
    adapt: float = 0.27  # a GPU, for a sample and an adapter, at 200 classes: docs/performance.md
    pixels: float = 4.0  # a CPU core, for a view: decoding, cropping, AugMix
    views: int = 64
    cores: int = 16  # for each GPU
    views_on_gpu: bool = True  # then the cores only read files
    hand_out: float = 2.0  # the driver, for a unit
    write: float = 10.0  # a shard's files, synced to a shared file system
    shard: int = 64
    start: float = 60.0  # seconds until a worker has loaded its model
    longest_stream: int = 50_000  # samples that one GPU must see in order (TDA on ImageNet)


INPUTS = Inputs()


def hours(gpus: int, given: Inputs = INPUTS) -> dict[str, float]:
    """Hours by part, and in all."""
    samples = given.images * given.seeds
    each = given.encode + (given.render if given.views_on_gpu else 0.0) + given.adapters * given.adapt
    gpu = samples * each / gpus
    cpu = 0.0 if given.views_on_gpu else samples * given.views * given.pixels / (gpus * given.cores)
    shards = math.ceil(samples / given.shard)
    files = shards * (given.adapters + 1) * given.write / gpus
    driver = shards * given.hand_out  # one process, so it does not get shorter; it runs beside the workers
    stream = given.longest_stream * given.adapt  # begins when its features are there
    # Readers work ahead of the GPU: the slower of the two counts, and so does a driver that cannot keep up.
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
    print(f"\nViews made by {INPUTS.cores} cores for each GPU instead: {60 * slow['all']:.0f} min on 8 GPUs.")


if __name__ == "__main__":
    main()
