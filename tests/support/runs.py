"""Generated photos, a small run over them, and all of its numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from cots import bench
from cots.data import Dataset, open_dataset
from support.models import tiny

METHODS = (
    "zeroshot", "tpt", "tpt+sals", "tpt+cots", "tpt+ecots", "ctpt+cots", "tda", "tda+cots", "tda(soc)+cots", "ttl+cots",
)  # fmt: skip
COLUMNS = ("label", "prediction", "confidence", "tau", "probabilities", "views")


def photos(folder: Path, each: int = 7, broken: tuple[str, ...] = ()) -> Dataset:
    """Three classes of small noisy images, written as files."""
    rng = np.random.default_rng(0)
    for name in ("car", "tabby cat", "tree"):
        for i in range(each):
            file = folder / name / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (8, 10, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((50, 40), Image.Resampling.BICUBIC).save(file)
    for name in broken:
        (folder / name).write_bytes(b"not a photo")
    return open_dataset(folder)


def config(dataset, out, **changes) -> bench.RunConfig:
    options = {"methods": METHODS, "views": 6, "batch_size": 4, "shard_size": 8}
    return bench.RunConfig(**{"model": tiny("vit"), "datasets": [dataset], "out": out, **options, **changes})


def figures(run: bench.Run) -> dict:
    """All that must not depend on how a run came about: every column but the time."""
    found = {}
    for dataset in run.datasets:
        for method in run.methods:
            for seed in run.seeds:
                records = run.records(dataset, method, seed)
                arrays = {name: getattr(records, name).tobytes() for name in COLUMNS}
                found[dataset, method, seed] = {**arrays, "ids": records.ids, "errors": dict(records.errors)}
                found[dataset, method, seed]["alpha"] = records.alpha
    return found
