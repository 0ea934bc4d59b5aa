"""A made-up run with the reading side of a run folder: records of logits that are more, or less, sure than right."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np

from cots._errors import InputError
from cots.bench import DatasetEntry, Manifest
from support.manifests import HASH as HASH
from support.manifests import entry, manifest

METHODS = ("zeroshot", "tpt", "tpt+sals", "tpt+cots", "tpt+ecots", "ctpt+cots")
# How sharp each method's softmax is, and how much its logits are moved away from the zero-shot ones.
SHARPNESS = {"zeroshot": 2.0, "tpt": 4.6, "tpt+sals": 3.4, "tpt+cots": 2.6, "tpt+ecots": 2.3, "ctpt+cots": 2.4}


@dataclass(frozen=True)
class FakeRecords:
    ids: tuple[str, ...]
    label: np.ndarray
    prediction: np.ndarray
    confidence: np.ndarray
    tau: np.ndarray
    milliseconds: np.ndarray
    probabilities: np.ndarray
    errors: dict[str, str] = field(default_factory=dict)
    alpha: float = 0.7
    encoding: float = 11.5

    def __len__(self) -> int:
        return len(self.label)

    @property
    def correct(self) -> np.ndarray:
        return self.prediction == self.label

    def chunks(self, column: str):
        yield getattr(self, column)

    @property
    def failed(self) -> int:
        return len(self.errors)


@dataclass
class FakeRun:
    sets: dict[str, tuple[str, int, int, str | None, float]]  # name: title, n, classes, average, difficulty
    methods: tuple[str, ...] = METHODS
    seeds: tuple[int, ...] = (0, 1, 2)
    broken: dict[str, dict[int, str]] = field(default_factory=dict)
    absent: tuple[tuple[str, str, int], ...] = ()
    complete: bool = True

    @property
    def datasets(self) -> tuple[str, ...]:
        return tuple(self.sets)

    def dataset(self, name: str) -> DatasetEntry:
        return next(entry for entry in self.manifest.datasets if entry.name == name)

    @property
    def manifest(self) -> Manifest:
        datasets = []
        for name, (title, n, classes, average, _) in self.sets.items():
            names = tuple(f"class {i}" for i in range(classes))
            datasets.append(entry(name, title=title, n=n, classes=names, average=average))
        return manifest(seeds=self.seeds, methods=self.methods, batch_size=16, datasets=tuple(datasets))

    def records(self, dataset: str, method: str, seed: int) -> FakeRecords:
        if (dataset, method, seed) in self.absent:
            raise InputError(f"{dataset} has no records of {method} for seed {seed}.")
        _, n, classes, _, difficulty = self.sets[dataset]
        image = np.random.default_rng(zlib.crc32(dataset.encode()))
        label = image.integers(0, classes, n)
        logits = image.normal(size=(n, classes)) * difficulty
        logits[np.arange(n), label] += 0.75 * np.log(classes) + image.gamma(2.0, 0.9, n)
        adapter = method.partition("+")[0]
        views = np.random.default_rng(zlib.crc32(f"{dataset} {adapter} {seed}".encode()))
        moved = {"zeroshot": 0.0, "tpt": 0.35}.get(adapter, 0.3) * (0.5 if method == "tpt+ecots" else 1.0)
        logits = logits + views.normal(size=(n, classes)) * moved
        logits *= SHARPNESS.get(method, 1.0)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p = (p / p.sum(axis=1, keepdims=True)).astype(np.float32)
        broken = self.broken.get(dataset, {})
        keep = np.array([i for i in range(n) if i not in broken], dtype=int)
        return FakeRecords(
            ids=tuple(f"{dataset}/{i:04d}.jpg" for i in keep),
            label=label[keep],
            prediction=p.argmax(axis=1)[keep],
            confidence=p.max(axis=1)[keep],
            tau=np.full(len(keep), np.nan if "cots" not in method else 1.0 / SHARPNESS[method], dtype=np.float32),
            milliseconds=np.full(len(keep), 4.0, dtype=np.float32),
            probabilities=p[keep],
            errors={f"{dataset}/{i:04d}.jpg": text for i, text in broken.items()},
        )


def small_run(**changes) -> FakeRun:
    """Two sets of one group and one of its own, small enough for many tests."""
    settings: dict = {
        "sets": {
            "pets": ("OxfordPets", 60, 5, "fine-grained", 1.0),
            "dtd": ("DTD", 48, 4, "fine-grained", 1.6),
            "mine": ("My <photos> & 100%_more", 30, 3, None, 1.2),
        },
        "methods": ("zeroshot", "tpt", "tpt+cots", "ctpt+cots"),
        "seeds": (0, 1),
        "broken": {"dtd": {3: "cannot identify image file", 7: "image is truncated | at byte 5"}},
    }
    return FakeRun(**{**settings, **changes})
