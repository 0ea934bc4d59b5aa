"""Shards: the per-sample records of consecutive samples under one method, as one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load as load_numpy
from safetensors.torch import load as load_torch
from safetensors.torch import save

from .._errors import CotsError
from ..calibrators import Calibrated
from ._files import names, write_whole
from ._numbers import Numbers
from ._paths import Location, UrlPath

COLUMNS = ("label", "prediction", "confidence", "tau", "milliseconds", "probabilities", "views")
SUFFIX = ".safetensors"


def file_name(index: int) -> str:
    return f"{index:05d}{SUFFIX}"


def present(folder: Location) -> Numbers:
    """Indices of the files that are there; those in the making have another name."""
    stems = (name.removesuffix(SUFFIX) for name in names(folder))
    return Numbers(int(stem) for stem in stems if stem.isdigit())


@contextmanager
def open_archive(file: Location, framework: str) -> Iterator[Any]:
    """A safetensors file with `get_tensor` and `metadata`: memory-mapped, or read whole where it lies behind a URL."""
    if isinstance(file, UrlPath):
        yield _Archive(file.read_bytes(), framework)
        return
    with safe_open(file, framework=framework) as archive:  # type: ignore[arg-type]
        yield archive


class _Archive:
    def __init__(self, data: bytes, framework: str) -> None:
        self._tensors = (load_numpy if framework == "numpy" else load_torch)(data)
        size = int.from_bytes(data[:8], "little")  # the format: length of the header, the header in JSON, the data
        self._metadata = json.loads(data[8 : 8 + size]).get("__metadata__", {})

    def get_tensor(self, name: str) -> Any:
        return self._tensors[name]

    def metadata(self) -> dict[str, str]:
        return self._metadata


@dataclass
class ShardWriter:
    """Collects the batches of one shard, then writes them in one step."""

    file: Location
    ids: Sequence[str]
    labels: Sequence[int]
    classes: int
    first: int  # place of the shard's first sample
    rows: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    alpha: float | None = None
    selected: int = 0
    given_up: str = ""  # why the whole shard could not be done

    def add(self, places: Sequence[int], result: Calibrated, milliseconds: float) -> None:
        """The result of one batch; `milliseconds` for each of its samples."""
        self.alpha, self.selected = result.alpha, result.views.shape[1]
        columns = (result.prediction, result.confidence, result.tau, result.probabilities, result.views)
        on_cpu = [column.cpu() for column in columns]
        for row, place in enumerate(places):
            self.rows[place] = (*(column[row] for column in on_cpu), milliseconds)

    def fail(self, place: int, reason: str) -> None:
        self.errors[self.ids[place - self.first]] = reason

    def give_up(self, reason: str) -> None:
        """All of its samples failed for one reason that is not in any of them."""
        self.given_up = reason
        self.errors = dict.fromkeys(self.ids, reason)

    def write(self) -> None:
        n = len(self.ids)
        tensors = {
            "label": torch.tensor(self.labels, dtype=torch.int64),
            "prediction": torch.full((n,), -1, dtype=torch.int64),
            "confidence": torch.full((n,), torch.nan),
            "tau": torch.full((n,), torch.nan),
            "milliseconds": torch.full((n,), torch.nan),
            "probabilities": torch.full((n, self.classes), torch.nan),
            "views": torch.full((n, self.selected), -1, dtype=torch.int16),
        }
        for place, (prediction, confidence, tau, probabilities, views, milliseconds) in self.rows.items():
            row = place - self.first
            tensors["prediction"][row] = prediction
            tensors["confidence"][row] = confidence
            tensors["tau"][row] = tau
            tensors["probabilities"][row] = probabilities
            tensors["views"][row] = views
            tensors["milliseconds"][row] = milliseconds
        metadata = {
            "ids": json.dumps(list(self.ids)),
            "errors": json.dumps(self.errors),
            "alpha": json.dumps(self.alpha),
        }
        if self.given_up:
            metadata["given_up"] = self.given_up
        write_whole(self.file, save(tensors, metadata))


def read_shard(file: Location, columns: Sequence[str]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The named columns, memory-mapped as they are read, and the metadata."""
    try:
        with open_archive(file, "numpy") as archive:
            return {column: archive.get_tensor(column) for column in columns}, archive.metadata()
    except (OSError, SafetensorError) as error:
        raise CotsError(
            f"{file} is damaged ({error}). Delete it and give the run's command again: it is made anew."
        ) from error
