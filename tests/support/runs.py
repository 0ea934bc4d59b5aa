"""Generated photos, a small run over them, all of its numbers, and the same numbers without cots.bench."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import cots
from cots import bench
from cots.data import Dataset, open_dataset
from support.logits import published
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
    options = {"methods": METHODS, "views": 6, "augmix": False, "batch_size": 4, "shard_size": 8}
    return bench.RunConfig(**{"model": tiny("vit"), "datasets": [dataset], "out": out, **options, **changes})


def by_hand(
    dataset: Dataset, method: str, seed: int, indices, batch_size: int, augmix: bool = False, **settings
) -> dict[str, np.ndarray]:
    """The columns that the stages give, batch after batch of consecutive samples, without cots.bench."""
    backbone, (adapter, _, calibrator) = tiny("vit"), method.partition("+")
    task = cots.Task(backbone, dataset.classes)
    view_settings = cots.ViewSettings.from_preprocess(backbone.preprocess, n=6, augmix=augmix)
    columns: dict[str, list] = {name: [] for name in COLUMNS}
    state = None

    def of(make, i: int) -> torch.Tensor:
        return make(dataset.read(i), view_settings, cots.sample_seed(seed, dataset.name, dataset.samples[i].id))

    for start in range(0, len(indices), batch_size):
        rows = indices[start : start + batch_size]
        inputs = torch.stack([of(_views if adapter == "ttl" else _features, i) for i in rows])
        extra = {"state": state} if adapter.startswith("tda") else {"seed": seed} if adapter == "ttl" else settings
        adapted = cots.adapt(adapter, inputs, task, **extra)
        state = adapted.state
        result = published(adapted.logits, adapted.zero_shot_logits, calibrator or "none", alpha=task.alpha)
        columns["label"] += [dataset.samples[i].label for i in rows]
        for name in COLUMNS[1:]:
            columns[name] += list(getattr(result, name).numpy())
    return {name: np.array(values) for name, values in columns.items()}


def stream_order(dataset: Dataset, seed: int) -> list[int]:
    """Indices of all samples in the order of a shuffled stream: by a hash of seed, dataset and id."""
    keys = {i: cots.sample_seed(seed, dataset.name, "stream order", s.id) for i, s in enumerate(dataset.samples)}
    return sorted(keys, key=lambda i: keys[i])


@functools.cache
def _views(source: Path, settings: cots.ViewSettings, seed: int) -> torch.Tensor:
    return cots.make_views(cots.read_image(source, orient=False, flatten=False), settings, seed)


@functools.cache
def _features(source: Path, settings: cots.ViewSettings, seed: int) -> torch.Tensor:
    """In half precision, as runs keep them."""
    return tiny("vit").encode_images(_views(source, settings, seed)).half().float()


def figures(run: bench.Run) -> dict:
    """Everything that must not depend on how a run was executed: all columns but the time."""
    found = {}
    for dataset in run.datasets:
        for method in run.methods:
            for seed in run.seeds:
                records = run.records(dataset, method, seed)
                arrays = {name: getattr(records, name).tobytes() for name in COLUMNS}
                found[dataset, method, seed] = {**arrays, "ids": records.ids, "errors": dict(records.errors)}
                found[dataset, method, seed]["alpha"] = records.alpha
    return found


def stop_at(records: int):
    """A progress callback that interrupts a run once so many records of a job are done."""

    def progress(stage, dataset, seed, done, total):
        if stage == "methods" and done >= records:
            raise KeyboardInterrupt

    return progress
