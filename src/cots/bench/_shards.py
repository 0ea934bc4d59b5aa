"""Shards, the records of consecutive samples of one method, and states of online adapters, as safetensors files."""

import contextlib
import json
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._arrays import check_finite
from .._checked import DamagedFile, read_tensors, write_tensors
from .._files import DAMAGED, Location, names, remove, set_aside
from ..calibrators import Calibrated
from ..data import Sample
from ._binding import Binding

SUFFIX = ".safetensors"
REMAKE = "Re-run the command that wrote it to recompute it."
_KINDS = {"label": "i1", "prediction": "i1", "confidence": "f1", "tau": "f1", "milliseconds": "f1"}
_KINDS |= {"probabilities": "f2", "views": "i2"}  # kind of numbers, and dimensions


def file_name(index: int) -> str:
    return f"{index:05d}{SUFFIX}"


def present(folder: Location) -> set[int]:
    """Indices of the finished files in `folder`; unfinished ones have other names."""
    stems = (name.removesuffix(SUFFIX) for name in names(folder))
    return {int(stem) for stem in stems if stem.isdigit()}


def records_folder(folder: Location, dataset: str, seed: int, method: str) -> Location:
    """The folder of a method's shards in the run folder `folder`."""
    return folder / "shards" / dataset / f"seed{seed}" / method


def state_folder(folder: Location, dataset: str, seed: int, adapter: str) -> Location:
    """The folder of an online adapter's states in the run folder `folder`."""
    return folder / "state" / dataset / f"seed{seed}" / adapter


def features_folder(folder: Location, dataset: str, seed: int) -> Location:
    """The folder of view features in the run folder `folder`."""
    return folder / "features" / dataset / f"seed{seed}"


def read_bound(
    file: Location, binding: Binding, names: Sequence[str] | None = None, framework: str = "numpy"
) -> tuple[dict[str, Any], dict[str, str]]:
    """The named tensors of a file and its metadata; DamagedFile if it is damaged or belongs elsewhere."""
    tensors, metadata = read_tensors(file, names, framework, remedy=REMAKE)
    try:
        binding.check(metadata)
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise DamagedFile(file, str(error), REMAKE) from error
    return tensors, metadata


class ShardInfo(NamedTuple):
    """The metadata of a shard; encoding: mean milliseconds, NaN if unknown."""

    ids: list[str]
    errors: dict[str, str]
    alpha: float | None
    given_up: bool
    encoding: float


def read_shard(
    file: Location, binding: Binding, columns: Sequence[str] = tuple(_KINDS), ids: Sequence[str] | None = None
) -> tuple[dict[str, np.ndarray], ShardInfo]:
    """The named columns and the metadata of a shard; DamagedFile if its content is not valid or belongs elsewhere.

    ids: of the samples, if known.
    """
    read, metadata = read_bound(file, binding, columns)
    try:
        stored, errors, alpha = (json.loads(metadata[name]) for name in ("ids", "errors", "alpha"))
        alpha = None if alpha is None else float(alpha)
        encoding = float(metadata.get("encoding", "nan"))
        info = ShardInfo([str(name) for name in stored], dict(errors), alpha, "given_up" in metadata, encoding)
        if len(info.ids) != binding.samples or (ids is not None and info.ids != list(ids)):
            raise ValueError("it has other samples")
        for name, values in read.items():
            if f"{values.dtype.kind}{values.ndim}" != _KINDS[name] or len(values) != len(info.ids):
                raise ValueError(f"{name} does not fit {len(info.ids)} samples")
    except (KeyError, ValueError, TypeError, RecursionError) as error:  # of an earlier version, without a checksum
        raise DamagedFile(file, str(error), REMAKE) from error
    return read, info


def set_damaged_aside(error: DamagedFile) -> None:
    """Set a damaged file aside with a warning; the caller recomputes it."""
    set_aside(error.file)
    message = f"{error.file} is damaged ({error.reason}); it was renamed to *{DAMAGED} and is recomputed."
    warnings.warn(message, stacklevel=2)


def damaged(folder: Location, check: Callable[[Location, int], object]) -> list[DamagedFile]:
    """The errors of the files in `folder` for which `check` of file and index raises DamagedFile."""
    errors = []
    for index in sorted(present(folder)):
        try:
            check(folder / file_name(index), index)
        except DamagedFile as error:
            errors.append(error)
    return errors


class ShardWriter:
    """Collects the batches of one shard, then writes them as one file."""

    def __init__(self, file: Location, binding: Binding, samples: Sequence[Sample], classes: int, first: int) -> None:
        """first: position of the shard's first sample."""
        self.file, self.first, self.ids = file, first, [sample.id for sample in samples]
        self.errors: dict[str, str] = {}
        self.alpha: float | None = None
        n = len(samples)
        self._encoding: list[float] = []
        self._metadata = binding.metadata()
        self._columns = {
            "label": torch.tensor([sample.label for sample in samples], dtype=torch.int64),
            "prediction": torch.full((n,), -1, dtype=torch.int64),
            "confidence": torch.full((n,), torch.nan),
            "tau": torch.full((n,), torch.nan),
            "milliseconds": torch.full((n,), torch.nan),
            "probabilities": torch.full((n, classes), torch.nan),
            "views": torch.full((n, 0), -1, dtype=torch.int16),
        }

    def add(self, samples: Mapping[int, float], result: Calibrated, milliseconds: float) -> None:
        """Add the result of one batch.

        samples: milliseconds of encoding by position, NaN where not known. milliseconds: of adaptation, per sample.
        """
        self._encoding += [spent for spent in samples.values() if not math.isnan(spent)]
        self.alpha = result.alpha
        if selected := result.views.shape[1] - self._columns["views"].shape[1]:  # known with the first result
            self._columns["views"] = torch.full((len(self.ids), selected), -1, dtype=torch.int16)
        check_finite(result.confidence.cpu(), f"the confidence of {result.method!r}")
        rows = torch.tensor(list(samples)) - self.first
        for name in ("prediction", "confidence", "tau", "probabilities", "views"):
            column = self._columns[name]
            column[rows] = getattr(result, name).cpu().to(column.dtype)
        self._columns["milliseconds"][rows] = milliseconds

    def fail(self, position: int, reason: str) -> None:
        """Mark one sample as failed."""
        self.errors[self.ids[position - self.first]] = reason

    def give_up(self, reason: str) -> None:
        """Mark all samples as failed, for a reason outside the samples."""
        self.errors = dict.fromkeys(self.ids, reason)
        self._metadata["given_up"] = reason

    def write(self) -> None:
        metadata = {"ids": self.ids, "errors": self.errors, "alpha": self.alpha}
        self._metadata |= {name: json.dumps(value) for name, value in metadata.items()}
        if self._encoding:
            self._metadata["encoding"] = repr(sum(self._encoding) / len(self._encoding))
        write_tensors(self.file, self._columns, self._metadata)


def save_state(folder: Location, binding: Binding, state: Any) -> None:
    """Save an online adapter's state after the shard of `binding`, then remove older ones.

    Call it after the records of the shard are written: a run killed in between resumes from an older state, with the
    same results. A state that is not a dataclass of tensors is not saved, and its stream starts over.
    """
    if not is_dataclass(state) or not all(isinstance(getattr(state, f.name), Tensor) for f in fields(state)):
        return
    tensors = {f.name: getattr(state, f.name).cpu().contiguous() for f in fields(state)}
    kind = {"module": type(state).__module__, "class": type(state).__name__}
    write_tensors(folder / file_name(binding.index), tensors, kind | binding.metadata())
    _remove_before(folder, binding.index)


def _remove_before(folder: Location, shard: int) -> None:
    for older in present(folder):
        if older < shard:
            remove(folder / file_name(older))


def load_state(folder: Location, before: int, binding: Callable[[int], Binding]) -> tuple[int, Any]:
    """The next shard and the state, from the latest state saved before shard `before`; 0 and None if there is none."""
    for shard in sorted(present(folder), reverse=True):
        if shard >= before:
            continue
        # A damaged state costs time, not results: use an older one, or none.
        try:
            tensors, metadata = read_bound(folder / file_name(shard), binding(shard), framework="pt")
        except DamagedFile as error:
            set_damaged_aside(error)
            continue
        with contextlib.suppress(AttributeError, TypeError):
            # Only classes of modules that are already loaded, like those of registered adapters.
            state_class = getattr(sys.modules.get(metadata.get("module", "")), metadata.get("class", ""))
            if is_dataclass(state_class):
                _remove_before(folder, shard)  # left by a killed run
                return shard + 1, state_class(**tensors)  # type: ignore[operator]
    return 0, None
