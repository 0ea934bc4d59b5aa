"""The reading side: what a run folder holds, as arrays."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._errors import InputError, unknown_name
from ._job import records_folder
from ._manifest import DONE, read_manifest
from ._paths import Location, UrlPath, location
from ._shards import file_name, present, read_shard

_SMALL = ("label", "prediction", "confidence", "tau", "milliseconds")


class Failures(NamedTuple):
    """Records with errors, and how many of them belong to shards that failed as a whole, on a cluster."""

    records: int
    given_up: int


class Missing(NamedTuple):
    """Shards of one method on one dataset under one seed that are not there yet."""

    dataset: str
    method: str
    seed: int
    shards: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """Per-sample results of one method on one dataset under one seed, without the samples that failed.

    label, prediction, confidence, tau, milliseconds (n,); probabilities (n,K) and views (n,m) are read from the disk
    when they are asked for. milliseconds: adaptation and calibration, its share of the batch; work that methods of one
    run share is counted with the first of them. errors: reason by id of the samples that failed; failed: how many;
    alpha: the ensemble's weight.
    """

    dataset: str
    method: str
    seed: int
    ids: tuple[str, ...] = field(repr=False)
    label: np.ndarray = field(repr=False)
    prediction: np.ndarray = field(repr=False)
    confidence: np.ndarray = field(repr=False)
    tau: np.ndarray = field(repr=False)
    milliseconds: np.ndarray = field(repr=False)
    errors: Mapping[str, str]
    failed: int
    alpha: float | None
    files: tuple[Location, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.label)

    @property
    def correct(self) -> np.ndarray:
        """Whether each prediction is the label."""
        return self.prediction == self.label

    @cached_property
    def probabilities(self) -> np.ndarray:
        """(n,K), float32; kept once read. `chunks` reads them piece by piece instead."""
        return self._column("probabilities")

    @cached_property
    def views(self) -> np.ndarray:
        """(n,m): the views in Omega, lowest entropy first; m = 0 where the method selects none."""
        return self._column("views")

    def _column(self, name: str) -> np.ndarray:
        """Read into its place piece by piece, so that no second copy is held."""
        whole, row = np.empty((len(self), 0), np.float32), 0
        for chunk in self.chunks(name):
            # A shard in which every sample failed does not know how many views are selected.
            if not row and chunk.shape[1] > whole.shape[1]:
                whole = np.empty((len(self), chunk.shape[1]), chunk.dtype)
            if len(chunk):
                whole[row : row + len(chunk)] = chunk
                row += len(chunk)
        return whole

    def chunks(self, column: str = "probabilities") -> Iterator[np.ndarray]:
        """A column shard by shard, for sets that are too large to hold."""
        for file in self.files:
            columns, _ = read_shard(file, ("prediction", column))
            yield columns[column][columns["prediction"] >= 0]


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A run folder, finished or not.

    run = cots.bench.Run.open("runs/x")
    run.datasets, run.methods, run.seeds, run.complete
    run.records("pets", "tpt+cots", seed=0).probabilities
    """

    folder: Location
    manifest: dict[str, Any] = field(repr=False)

    @classmethod
    def open(cls, folder: str | Path | UrlPath) -> Run:
        """The run in `folder`; it may still be under way."""
        place = location(folder)
        manifest = read_manifest(place)
        if manifest is None:
            there = "holds no manifest.json" if place.is_dir() else "does not exist"
            raise InputError(f"{folder} {there}: give the folder that a run was written to (its out).")
        return cls(folder=place, manifest=manifest)

    @property
    def datasets(self) -> tuple[str, ...]:
        return tuple(entry["name"] for entry in self.manifest["datasets"])

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(self.manifest["methods"])

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(self.manifest["seeds"])

    @property
    def complete(self) -> bool:
        """Whether every method is there on every dataset with every seed."""
        return (self.folder / DONE).is_file()

    def dataset(self, name: str) -> dict[str, Any]:
        """The manifest's entry of a dataset: title, n, classes, views, alpha and so on."""
        for entry in self.manifest["datasets"]:
            if entry["name"] == name:
                return entry
        raise unknown_name(f"dataset in {self.folder}:", name, self.datasets)

    def text(self) -> str:
        """What the folder holds and what it still lacks."""
        model, missing = self.manifest["model"], self.missing()
        lines = [
            f"{self.folder}: {model['name']}, weights {model['weights_hash'][:12]}",
            f"datasets {', '.join(self.datasets)}; methods {', '.join(self.methods)}",
            f"seeds {', '.join(map(str, self.seeds))}",
        ]
        lines += [f"missing: {m.method} on {m.dataset} with seed {m.seed} ({len(m.shards)} shards)" for m in missing]
        return "\n".join([*lines, "unfinished: give the run's command again" if missing else "complete"])

    def missing(self) -> list[Missing]:
        """What is not there yet, of all methods on all datasets with all seeds of the manifest."""
        return list(self.each_missing())

    def each_missing(self) -> Iterator[Missing]:
        """What `missing` lists, one after the other."""
        for dataset, seed, method in itertools.product(self.datasets, self.seeds, self.methods):
            if shards := self._missing_shards(dataset, method, seed):
                yield Missing(dataset, method, seed, shards)

    def failures(self, dataset: str, method: str, seed: int) -> Failures:
        """How many of the records that are there hold errors; read shard by shard."""
        records = given_up = 0
        folder = records_folder(self.folder, dataset, seed, method)
        for shard in present(folder):
            columns, metadata = read_shard(folder / file_name(shard), ("prediction",))
            failed = int((columns["prediction"] < 0).sum())
            records += failed
            given_up += failed if "given_up" in metadata else 0
        return Failures(records, given_up)

    def records(self, dataset: str, method: str, seed: int, *, partial: bool = False) -> Records:
        """The results of one method on one dataset under one seed; `partial` takes what is there so far."""
        self.dataset(dataset)
        if method not in self.methods:
            raise unknown_name(f"method in {self.folder}:", method, self.methods)
        if seed not in self.seeds:
            raise InputError(f"{self.folder} has no seed {seed!r}; it has {', '.join(map(str, self.seeds))}.")
        folder = records_folder(self.folder, dataset, seed, method)
        there = sorted(present(folder))
        missing = self._missing_shards(dataset, method, seed)
        if missing and not (partial and there):
            raise InputError(
                f"{method} on {dataset} with seed {seed} is not finished in {self.folder}: {len(missing)} of "
                f"{len(missing) + len(there)} shards are missing. Give the run's command again to go on with it."
            )
        return _read_records(dataset, method, seed, tuple(folder / file_name(shard) for shard in there))

    def _missing_shards(self, dataset: str, method: str, seed: int) -> tuple[int, ...]:
        count = -(-self.dataset(dataset)["n"] // self.manifest["shard_size"])
        there = present(records_folder(self.folder, dataset, seed, method))
        return tuple(shard for shard in range(count) if shard not in there)


def _read_records(dataset: str, method: str, seed: int, files: tuple[Location, ...]) -> Records:
    ids: list[str] = []
    errors: dict[str, str] = {}
    parts: list[dict[str, np.ndarray]] = []
    alpha, failed = None, 0
    for file in files:
        columns, metadata = read_shard(file, _SMALL)
        good = columns["prediction"] >= 0
        ids += [name for name, kept in zip(json.loads(metadata["ids"]), good, strict=True) if kept]
        errors |= json.loads(metadata["errors"])
        failed += int((~good).sum())
        alpha = json.loads(metadata["alpha"]) if alpha is None else alpha
        parts.append({name: values[good] for name, values in columns.items()})
    return Records(
        dataset=dataset,
        method=method,
        seed=seed,
        ids=tuple(ids),
        errors=errors,
        failed=failed,
        alpha=alpha,
        files=files,
        **{name: np.concatenate([part[name] for part in parts]) for name in _SMALL},
    )
