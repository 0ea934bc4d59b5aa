"""A stand-in run whose scores can be computed in the head, and a small copy of a dataset of the paper."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from PIL import Image

import cots
from cots.bench import Model
from cots.data import find_protocol, is_protocol
from support.manifests import entry, manifest

N = 1000


def records(accuracy, confidence, milliseconds=1.0, n=N, failed=0, encoding=np.nan):
    """n samples of two classes; class 0 is always predicted, with one confidence, and correct for `accuracy` of n."""
    label = np.zeros(n, dtype=np.int64)
    label[round(accuracy * n) :] = 1
    return SimpleNamespace(
        ids=range(n),
        label=label,
        prediction=np.zeros_like(label),
        correct=label == 0,
        confidence=np.full(n, confidence),
        probabilities=np.tile([confidence, 1 - confidence], (n, 1)),
        tau=np.ones(n),
        milliseconds=np.full(n, milliseconds),
        encoding=encoding,
        errors={f"failed-{i}": "cannot be read" for i in range(failed)},
        failed=failed,
    )


class FakeRun:
    """The reading side of a run; `figures[dataset, method]` has the arguments of `records` for each seed."""

    def __init__(
        self, figures, seeds=(0, 1, 2), model="ViT-B-16/openai", template="a photo of a {}.", n=None, **changes
    ):
        self.figures, self.seeds, self.complete = figures, tuple(seeds), True
        names = dict.fromkeys(dataset for dataset, _ in figures)
        self.methods = tuple(dict.fromkeys(method for _, method in figures))
        datasets = []
        for i, name in enumerate(names):
            given = {"template": template, "alpha": 0.5 + 0.01 * i}
            if is_protocol(name):
                protocol = find_protocol(name)
                given |= {"n": protocol.test_size, "views": protocol.views, "augmix": protocol.augmix}
            given |= {"n": n} if n else {}
            given |= changes
            datasets.append(entry(name, **given))
        about = Model(name=model, weights_hash="0123456789abcdef", precision="float32")
        self.manifest = manifest(model=about, seeds=self.seeds, methods=self.methods, datasets=tuple(datasets))

    def records(self, dataset, method, seed):
        if (dataset, method) not in self.figures:
            raise cots.InputError(f"{dataset} has no records of {method}")
        return records(*self.figures[dataset, method][self.seeds.index(seed)])


def row(comparison, **where):
    """The one row with these values."""
    (found,) = [r for r in comparison.rows if all(getattr(r, name) == value for name, value in where.items())]
    return found


def write_pets(root: Path, images: int = 6) -> Path:
    """A data folder with an OxfordPets of three classes."""
    (root / "oxford_pets" / "images").mkdir(parents=True)
    generator = np.random.default_rng(0)
    items = []
    for i in range(images):
        noise = Image.fromarray(generator.integers(0, 256, (8, 10, 3), dtype=np.uint8))
        noise.resize((50, 40), Image.Resampling.BICUBIC).save(root / "oxford_pets" / "images" / f"{i}.png")
        items.append([f"{i}.png", i % 3, ["abyssinian", "beagle", "pug"][i % 3]])
    split = {"train": items, "val": items, "test": items}
    (root / "oxford_pets" / "split_zhou_OxfordPets.json").write_text(json.dumps(split))
    return root
