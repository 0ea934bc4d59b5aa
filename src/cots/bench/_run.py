"""Run and Records: read a run folder; check_run: verify all its files (`cots validate RUN`)."""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from .._checked import DamagedFile, verify
from .._errors import InputError, unknown_name
from .._files import DAMAGED, Location, fresh, location, names
from ._binding import Binding, Bindings
from ._manifest import DONE, MANIFEST, read_done, read_manifest
from ._schema import DatasetEntry, Manifest
from ._shards import (
    damaged,
    features_folder,
    file_name,
    present,
    read_bound,
    read_shard,
    records_folder,
    state_folder,
)

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
    files: tuple[Location, ...] = field(repr=False)
    bindings: tuple[Binding, ...] = field(repr=False)  # of the files

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
        for file, binding in zip(self.files, self.bindings, strict=True):
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
        folder = records_folder(self.folder, dataset, seed, method)
        for shard in present(folder):
            binding = self.bindings.shard(dataset, method, seed, shard)
            columns, info = read_shard(folder / file_name(shard), binding, ("prediction",))
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
        folder = records_folder(self.folder, dataset, seed, method)
        there = sorted(present(folder) & set(self._shards(dataset)))
        missing = self._missing(dataset, method, seed)
        if missing and not (partial and there):
            raise InputError(
                f"{method} on {dataset} with seed {seed} is unfinished in {self.folder}: {len(missing)} of "
                f"{len(missing) + len(there)} shards are missing. Re-run the same command to resume."
            )
        files = tuple(folder / file_name(shard) for shard in there)
        bindings = tuple(self.bindings.shard(dataset, method, seed, shard) for shard in there)
        return _read_records(dataset, method, seed, files, bindings)

    def _shards(self, dataset: str) -> range:
        return range(-(-self.dataset(dataset).n // self.manifest.shard_size))

    def _missing(self, dataset: str, method: str, seed: int) -> tuple[int, ...]:
        there = present(records_folder(self.folder, dataset, seed, method))
        return tuple(shard for shard in self._shards(dataset) if shard not in there)


def _read_records(
    dataset: str, method: str, seed: int, files: tuple[Location, ...], bindings: tuple[Binding, ...]
) -> Records:
    ids: list[str] = []
    errors: dict[str, str] = {}
    parts: list[dict[str, np.ndarray]] = []
    alpha, failed, encoding = None, 0, []
    for file, binding in zip(files, bindings, strict=True):
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
    columns["bindings"] = bindings
    columns["encoding"] = float(np.mean(encoding)) if encoding else np.nan
    return Records(dataset=dataset, method=method, seed=seed, **columns)


@dataclass(kw_only=True)
class RunCheck:
    """The result of `check_run`: number of files, files without a checksum, damaged files, missing shards."""

    folder: Location
    files: int = 0
    unverified: int = 0
    damaged: list[DamagedFile] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.damaged and not self.missing

    def text(self) -> str:
        """The damaged and missing files, and the remedy."""
        lines = [f"{self.folder}: {self.files} files checked, {len(self.damaged)} damaged"]
        lines += [
            f"  damaged: {str(error.file).removeprefix(f'{self.folder}/')} ({error.reason})" for error in self.damaged
        ]
        lines += [
            f"  missing: {len(shards)} shard{'s' * (len(shards) > 1)} of {method} on {dataset}, seed {seed}"
            for dataset, method, seed, shards in self.missing
        ]
        if self.unverified:
            lines.append(f"  {self.unverified} files of an earlier version have no checksum and cannot be verified")
        if any(error.file.name == MANIFEST for error in self.damaged):
            lines.append("Restore the manifest from a copy, or run into a new folder.")
        elif not self.ok:
            lines.append("Re-run the command of the run to recompute them.")
        return "\n".join(lines)


def check_run(folder: Location, progress: Callable[[int, int], object] = lambda done, total: None) -> RunCheck:
    """Verify every file of the run in `folder`, except features in a shared cache, which runs verify when reading."""
    check = RunCheck(folder=folder)
    try:
        run = Run.open(folder)
    except DamagedFile as error:
        check.files, check.damaged = 1, [error]
        return check
    check.missing = run.missing()
    check.files, check.unverified = 1, int(not verify(folder / MANIFEST))
    if run.complete:
        check.files += 1
        try:
            read_done(folder)
        except DamagedFile as error:
            check.damaged.append(error)
    folders: dict[Location, Callable[[Location, int], object]] = {}
    for name in ("features", "state"):
        folders |= dict.fromkeys(_folders(folder / name), _verify)
    folders |= _readers(run)
    for done, (part, read) in enumerate(folders.items()):
        progress(done + 1, len(folders))
        errors = damaged(part, read)
        wrong = {error.file for error in errors}
        files = [part / file_name(index) for index in present(part)]
        check.damaged += errors
        check.files += len(files)
        check.unverified += sum(not verify(file) for file in files if file not in wrong)
    return check


def _verify(file: Location, index: int) -> None:
    verify(file)


@dataclass(frozen=True)
class _Reader:
    """Reads the files of one folder, which belong where `binding` says."""

    read: Callable[[Location, Binding], object]
    binding: Callable[[int], Binding]

    def __call__(self, file: Location, index: int) -> None:
        self.read(file, self.binding(index))


def _readers(run: Run) -> dict[Location, _Reader]:
    """A reader for each folder of records, features and states."""
    of, readers = run.bindings, {}
    for dataset, seed, method in itertools.product(run.datasets, run.seeds, run.methods):
        adapter = method.partition("+")[0]
        shard = functools.partial(of.shard, dataset, method, seed)
        state = functools.partial(of.state, dataset, adapter, seed)
        features = functools.partial(of.features, dataset, seed)
        readers[records_folder(run.folder, dataset, seed, method)] = _Reader(read_shard, shard)
        readers[state_folder(run.folder, dataset, seed, adapter)] = _Reader(read_bound, state)
        readers[features_folder(run.folder, dataset, seed)] = _Reader(read_bound, features)
    return readers


def _folders(folder: Location) -> list[Location]:
    """`folder` and the folders in it, at any depth."""
    inner = [name for name in names(folder) if "." not in name and not name.endswith(DAMAGED)]
    return [folder, *(each for name in inner for each in _folders(folder / name))]
