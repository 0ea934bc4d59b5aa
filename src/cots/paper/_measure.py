"""Figures of a run in the paper's units: one number a seed for a metric, a method and a set or an average of sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from .. import metrics
from .._errors import CotsError, InputError
from ..data import find_protocol
from ..methods import parse_method
from ._tables import MEMBERS


class Records(Protocol):
    """What a run keeps of one data set, method and seed; arrays hold the samples without an error."""

    @property
    def failed(self) -> int: ...
    @property
    def label(self) -> Any: ...
    @property
    def correct(self) -> Any: ...
    @property
    def confidence(self) -> Any: ...
    @property
    def probabilities(self) -> Any: ...
    @property
    def milliseconds(self) -> Any: ...


class RunLike(Protocol):
    """The reading side of `cots.bench.Run`, as far as figures need it."""

    @property
    def manifest(self) -> Mapping[str, Any]: ...
    @property
    def methods(self) -> Sequence[str]: ...
    @property
    def seeds(self) -> Sequence[int]: ...
    @property
    def complete(self) -> bool: ...
    def records(self, dataset: str, method: str, seed: int) -> Records: ...


def paper_name(name: str) -> str | None:
    """What the tables call a data set, by any of its aliases; None for a set that is not the paper's.

    >>> paper_name("OxfordPets"), paper_name("my-photos")
    ('pets', None)
    """
    try:
        return find_protocol(name).name
    except InputError:
        return None


class Measured:
    """A run, asked for figures: percent for scores, seconds for time; nothing is computed twice."""

    def __init__(self, run: RunLike) -> None:
        self.run = run
        self.entries: dict[str, Mapping[str, Any]] = {}
        for entry in run.manifest["datasets"]:
            name = paper_name(entry["name"])
            # Data of one's own may lie in a folder that is called like a set of the paper.
            if name is not None and entry.get("average") != "own":
                self.entries[name] = entry
        self.methods = {str(parse_method(method)): method for method in run.methods}
        self.failed: dict[str, int] = {}
        self._values: dict[tuple[str, str, str], tuple[float, ...]] = {}

    def members(self, dataset: str) -> tuple[str, ...]:
        """The sets of this run behind a name of the tables: itself, or those of the average that are here."""
        return tuple(name for name in MEMBERS.get(dataset, (dataset,)) if name in self.entries)

    def values(self, metric: str, method: str, dataset: str) -> tuple[float, ...]:
        """One figure a seed; empty when the run does not have it. An average needs every one of its sets."""
        if dataset in MEMBERS and len(self.members(dataset)) < len(MEMBERS[dataset]):
            return ()
        return self.mean(metric, method, self.members(dataset))

    def mean(self, metric: str, method: str, datasets: Sequence[str]) -> tuple[float, ...]:
        """The mean over data sets, one number a seed; empty when one of them is not there."""
        rows = [self._one(metric, method, dataset) for dataset in datasets]
        if not rows or not all(rows):
            return ()
        return tuple(float(value) for value in np.mean(rows, axis=0))

    def _one(self, metric: str, method: str, dataset: str) -> tuple[float, ...]:
        key = (metric, method, dataset)
        if key not in self._values:
            self._values[key] = self._compute(*key)
        return self._values[key]

    def _compute(self, metric: str, method: str, dataset: str) -> tuple[float, ...]:
        if metric == "extra_seconds":
            alone = method.split("+")[0]
            pairs = zip(self._one("seconds", method, dataset), self._one("seconds", alone, dataset), strict=False)
            return tuple(with_it - without for with_it, without in pairs)
        if method not in self.methods or dataset not in self.entries:
            return ()
        values = []
        for seed in self.run.seeds:
            try:
                records = self.run.records(self.entries[dataset]["name"], self.methods[method], seed)
            except CotsError:
                if self.run.complete:
                    raise
                return ()
            if records.failed:
                self.failed[dataset] = max(records.failed, self.failed.get(dataset, 0))
            if not len(records.label):
                return ()
            values.append(score(metric, records))
        return tuple(values)


def score(metric: str, records: Records) -> float:
    """One figure of one record set. Brier is the top-label score: the paper's printed figures can be no other."""
    if metric == "seconds":
        return float(np.mean(records.milliseconds)) / 1000
    if metric == "accuracy":
        result = metrics.accuracy(records.correct)
    elif metric == "ece":
        result = metrics.ece(records.confidence, records.correct)
    elif metric == "brier":
        result = metrics.brier_top_label(records.confidence, records.correct)
    elif metric == "cece":
        result = metrics.classwise_ece(records.probabilities, records.label)
    elif metric == "aece":
        result = metrics.adaptive_ece(records.probabilities, records.label)
    else:
        raise InputError(f"{metric!r} is no figure of the paper's tables.")
    return 100 * float(result)


def deviation(values: Sequence[float]) -> float | None:
    """Sample standard deviation over seeds (divisor n - 1); None for a single seed."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None
