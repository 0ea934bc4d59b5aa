"""Run and Records: read a run folder."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from .._errors import InputError, unknown_name
from .._files import Location, fresh, location
from ._binding import Binding, Bindings
from ._manifest import DONE, read_manifest
from ._schema import DatasetEntry, Manifest
from ._shards import file_name, present, read_shard, records_folder

_SMALL = ("label", "prediction", "confidence", "tau", "milliseconds")


def seeds_text(seeds: Sequence[int]) -> str:
    """`seed 0`, or `seeds 0, 1, 2`."""
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


class Failures(NamedTuple):
    """Number of failed records, and of those in abandoned shards."""

    records: int
    given_up: int


class Missing(NamedTuple):
    """Shards of one method on one dataset under one seed that do not exist yet."""

    dataset: str
    method: str
    seed: int
    shards: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Records:
    """Results per sample of one method on one dataset under one seed, without failed samples.

    | attribute       | shape, dtype    | meaning                                                                  |
    |-----------------|-----------------|--------------------------------------------------------------------------|
    | `ids`           | n, str          | sample ids, in the order of the list, or of the stream                   |
    | `label`         | (n,), int64     | true class                                                               |
    | `prediction`    | (n,), int64     | predicted class                                                          |
    | `correct`       | (n,), bool      | whether the prediction is the label                                      |
    | `confidence`    | (n,), float32   | probability of the prediction                                            |
    | `probabilities` | (n,K), float32  | of every class; read from disk on first use, or by `chunks()`            |
    | `tau`           | (n,), float32   | temperature, NaN where the method has none                               |
    | `views`         | (n,m), int16    | views in Omega, lowest entropy first; m = 0 where the method selects none|
    | `milliseconds`  | (n,), float32   | adaptation and calibration, its share of the batch                       |
    | `encoding`      | float           | mean milliseconds of encoding a sample's views, NaN where not known      |
    | `alpha`         | float or None   | weight of the ensemble                                                   |
    | `errors`        | id -> reason    | the samples that failed                                                  |
    | `failed`        | int             | their number                                                             |
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
    encoding: float = field(repr=False)
    files: Mapping[Location, Binding] = field(repr=False)  # and where they belong

    def __len__(self) -> int:
        return len(self.label)

    @property
    def correct(self) -> np.ndarray:
        """Whether each prediction is the label."""
        return self.prediction == self.label

    @cached_property
    def probabilities(self) -> np.ndarray:
        """(n,K) probabilities of all classes, kept once read."""
        return self._column("probabilities")

    @cached_property
    def views(self) -> np.ndarray:
        """(n,m) indices of the views in Omega, kept once read."""
        return self._column("views")

    def chunks(self, column: str = "probabilities") -> Iterator[np.ndarray]:
        """A column shard by shard, for datasets too large for memory."""
        for file, binding in self.files.items():
            columns, _ = read_shard(file, binding, ("prediction", column))
            yield columns[column][columns["prediction"] >= 0]

    def _column(self, name: str) -> np.ndarray:
        # A shard whose samples all failed does not know the number of columns.
        chunks = [chunk for chunk in self.chunks(name) if len(chunk)]
        return np.concatenate(chunks) if chunks else np.empty((0, 0), np.float32)


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A run folder, finished or not: `folder`, and the `manifest` written before its first record."""

    folder: Location
    manifest: Manifest = field(repr=False)

    @classmethod
    def open(cls, folder: str | Location) -> Self:
        """Open the run in `folder`, which may be a URL; it may still be running."""
        where = location(folder)
        manifest = read_manifest(where)
        if manifest is None:
            problem = "has no manifest.json" if where.is_dir() else "does not exist"
            raise InputError(f"{folder} {problem}. Pass the folder that a run was written to (--out of cots run).")
        return cls(folder=where, manifest=manifest)

    @cached_property
    def bindings(self) -> Bindings:
        """Where each file of the run belongs."""
        return Bindings(self.manifest)

    @property
    def datasets(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.manifest.datasets)

    @property
    def methods(self) -> tuple[str, ...]:
        return self.manifest.methods

    @property
    def seeds(self) -> tuple[int, ...]:
        return self.manifest.seeds

    @property
    def complete(self) -> bool:
        """Whether every method has finished on every dataset with every seed."""
        return fresh(self.folder / DONE).is_file()

    def dataset(self, name: str) -> DatasetEntry:
        """The entry of a dataset in the manifest: title, n, classes, views, alpha, ..."""
        for entry in self.manifest.datasets:
            if entry.name == name:
                return entry
        raise unknown_name(f"dataset in {self.folder}:", name, self.datasets)

    def missing(self) -> list[Missing]:
        """The missing shards of all methods, datasets and seeds of the manifest."""
        missing = []
        for dataset, seed, method in itertools.product(self.datasets, self.seeds, self.methods):
            if shards := self._missing(dataset, method, seed):
                missing.append(Missing(dataset, method, seed, shards))
        return missing

    def failures(self, dataset: str, method: str, seed: int) -> Failures:
        """Number of records with errors so far."""
        records = given_up = 0
        for file, binding in self.files(dataset, method, seed).items():
            columns, info = read_shard(file, binding, ("prediction",))
            failed = int((columns["prediction"] < 0).sum())
            records += failed
            given_up += failed if info.given_up else 0
        return Failures(records, given_up)

    def records(self, dataset: str, method: str, seed: int, *, partial: bool = False) -> Records:
        """The results of one method on one dataset under one seed; `partial` allows an unfinished one."""
        self.dataset(dataset)
        if method not in self.methods:
            raise unknown_name(f"method in {self.folder}:", method, self.methods)
        if seed not in self.seeds:
            raise InputError(f"{self.folder} has no seed {seed!r}; it has {', '.join(map(str, self.seeds))}.")
        files = self.files(dataset, method, seed)
        missing = self._missing(dataset, method, seed)
        if missing and not (partial and files):
            raise InputError(
                f"{method} on {dataset} with seed {seed} is unfinished in {self.folder}: {len(missing)} of "
                f"{len(missing) + len(files)} shards are missing. Re-run the same command to resume."
            )
        return _read_records(dataset, method, seed, files)

    def files(self, dataset: str, method: str, seed: int) -> dict[Location, Binding]:
        """The shards that exist, and where they belong."""
        folder, files = records_folder(self.folder, dataset, seed, method), {}
        for shard in sorted(present(folder) & set(self._shards(dataset))):
            files[folder / file_name(shard)] = self.bindings.shard(dataset, method, seed, shard)
        return files

    def _shards(self, dataset: str) -> range:
        return range(-(-self.dataset(dataset).n // self.manifest.shard_size))

    def _missing(self, dataset: str, method: str, seed: int) -> tuple[int, ...]:
        there = present(records_folder(self.folder, dataset, seed, method))
        return tuple(shard for shard in self._shards(dataset) if shard not in there)


def _read_records(dataset: str, method: str, seed: int, files: Mapping[Location, Binding]) -> Records:
    ids: list[str] = []
    errors: dict[str, str] = {}
    parts: list[dict[str, np.ndarray]] = []
    alpha, failed, encoding = None, 0, []
    for file, binding in files.items():
        columns, info = read_shard(file, binding, _SMALL)
        good = columns["prediction"] >= 0
        ids += [name for name, kept in zip(info.ids, good, strict=True) if kept]
        errors |= info.errors
        failed += int((~good).sum())
        alpha = info.alpha if alpha is None else alpha
        encoding += [info.encoding] * int(good.sum())
        parts.append({name: values[good] for name, values in columns.items()})
    columns: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in _SMALL}
    columns |= {"ids": tuple(ids), "errors": errors, "failed": failed, "alpha": alpha, "files": files}
    columns["encoding"] = float(np.mean(encoding)) if encoding else np.nan
    return Records(dataset=dataset, method=method, seed=seed, **columns)
