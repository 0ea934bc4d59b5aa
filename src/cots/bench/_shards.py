"""Shards, the records of consecutive samples under one method, and states between them: a safetensors file each."""

import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import safetensors.numpy
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .._errors import CotsError
from ..calibrators import Calibrated
from ..data import Sample
from ._files import Location, names, remove, write_whole

SUFFIX = ".safetensors"


def file_name(index: int) -> str:
    return f"{index:05d}{SUFFIX}"


def present(folder: Location) -> set[int]:
    """Indices of the finished files in `folder`; unfinished ones have other names."""
    stems = (name.removesuffix(SUFFIX) for name in names(folder))
    return {int(stem) for stem in stems if stem.isdigit()}


def records_folder(folder: Location, dataset: str, seed: int, method: str) -> Location:
    """The folder of a method's shards in the run folder `folder`."""
    return folder / "shards" / dataset / f"seed{seed}" / method


def read_tensors(
    file: Location, names: Sequence[str] | None = None, framework: str = "numpy"
) -> tuple[dict[str, Any], dict[str, str]]:
    """The named tensors of a safetensors file (all by default) as NumPy's or torch's ("pt"), and its metadata.

    Other tensors are not read from a local file; a file behind a URL is read whole.
    """
    try:
        if isinstance(file, Path):
            with safe_open(file, framework=framework) as archive:  # type: ignore[arg-type]
                wanted = archive.keys() if names is None else names
                return {name: archive.get_tensor(name) for name in wanted}, archive.metadata() or {}
        data = file.read_bytes()
        tensors = (safetensors.torch if framework == "pt" else safetensors.numpy).load(data)
        size = int.from_bytes(data[:8], "little")  # length of the JSON header that follows
        metadata = json.loads(data[8 : 8 + size]).get("__metadata__", {})
        return {name: tensors[name] for name in (tensors if names is None else names)}, metadata
    except (OSError, SafetensorError, KeyError) as error:
        raise CotsError(f"{file} is damaged ({error}). Delete it and re-run the same command to rebuild it.") from error


class ShardWriter:
    """Collects the batches of one shard, then writes them as one file."""

    def __init__(self, file: Location, samples: Sequence[Sample], classes: int, first: int) -> None:
        """first: position of the shard's first sample."""
        self.file, self.first, self.ids = file, first, [sample.id for sample in samples]
        self.errors: dict[str, str] = {}
        self.alpha: float | None = None
        n = len(samples)
        self._metadata: dict[str, str] = {}
        self._columns = {
            "label": torch.tensor([sample.label for sample in samples], dtype=torch.int64),
            "prediction": torch.full((n,), -1, dtype=torch.int64),
            "confidence": torch.full((n,), torch.nan),
            "tau": torch.full((n,), torch.nan),
            "milliseconds": torch.full((n,), torch.nan),
            "probabilities": torch.full((n, classes), torch.nan),
            "views": torch.full((n, 0), -1, dtype=torch.int16),
        }

    def add(self, places: Sequence[int], result: Calibrated, milliseconds: float) -> None:
        """Add the result of one batch; `milliseconds` is per sample."""
        self.alpha = result.alpha
        if selected := result.views.shape[1] - self._columns["views"].shape[1]:  # known with the first result
            self._columns["views"] = torch.full((len(self.ids), selected), -1, dtype=torch.int16)
        rows = torch.tensor(places) - self.first
        for name in ("prediction", "confidence", "tau", "probabilities", "views"):
            column = self._columns[name]
            column[rows] = getattr(result, name).cpu().to(column.dtype)
        self._columns["milliseconds"][rows] = milliseconds

    def fail(self, place: int, reason: str) -> None:
        """Mark one sample as failed."""
        self.errors[self.ids[place - self.first]] = reason

    def give_up(self, reason: str) -> None:
        """Mark all samples as failed, for a reason that lies in none of them."""
        self.errors = dict.fromkeys(self.ids, reason)
        self._metadata["given_up"] = reason

    def write(self) -> None:
        metadata = {"ids": self.ids, "errors": self.errors, "alpha": self.alpha}
        self._metadata |= {name: json.dumps(value) for name, value in metadata.items()}
        write_whole(self.file, safetensors.torch.save(self._columns, self._metadata))


def save_state(folder: Location, shard: int, state: Any) -> None:
    """Save an online adapter's state after `shard`, then remove older ones.

    Call it once the shard's records are written: a run killed in between resumes from an older state, with the same
    results. A state that is not a dataclass of tensors is not saved, and its stream starts over.
    """
    if not is_dataclass(state) or not all(isinstance(getattr(state, f.name), Tensor) for f in fields(state)):
        return
    tensors = {f.name: getattr(state, f.name).cpu().contiguous() for f in fields(state)}
    kind = {"module": type(state).__module__, "class": type(state).__name__}
    write_whole(folder / file_name(shard), safetensors.torch.save(tensors, kind))
    for older in present(folder):
        if older < shard:
            remove(folder / file_name(older))


def load_state(folder: Location, before: int) -> tuple[int, Any]:
    """The latest state saved before shard `before`: the shard that comes after it, and the state; else 0 and None."""
    for shard in sorted(present(folder), reverse=True):
        if shard < before:
            # A damaged state costs time, not results: an older one or none will do.
            with contextlib.suppress(CotsError, AttributeError, TypeError):
                tensors, kind = read_tensors(folder / file_name(shard), framework="pt")
                # Only classes of modules that are already loaded, as those of registered adapters are.
                module = sys.modules.get(kind.get("module", ""))
                state_class = getattr(module, kind.get("class", ""))
                if is_dataclass(state_class):
                    return shard + 1, state_class(**tensors)  # type: ignore[operator]
    return 0, None
