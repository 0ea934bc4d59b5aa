"""A run's scores in the paper's units: one value per seed for a metric, a method, and a dataset or an average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import metrics
from .._errors import CotsError
from ..data import find_protocol
from ..data._protocols import is_protocol
from ._tables import MEMBERS

if TYPE_CHECKING:
    from ..bench import Records, Run


class RunScores:
    """Scores of a run, computed once when asked for: percent, or seconds for time.

    entries: the manifest's entries of the paper's datasets, by the paper's name.
    failed: by dataset, how many images could not be read.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        # Your own data may lie in a folder named like a dataset of the paper.
        self.entries: dict[str, Mapping[str, Any]] = {
            find_protocol(entry["name"]).name: entry
            for entry in run.manifest["datasets"]
            if is_protocol(entry["name"]) and entry.get("average") != "own"
        }
        self.failed: dict[str, int] = {}
        self._values: dict[tuple[str, str, str], tuple[float, ...]] = {}

    def members(self, dataset: str) -> tuple[str, ...]:
        """The run's datasets behind a name of the tables: itself, or those of an average that the run has."""
        return tuple(name for name in MEMBERS.get(dataset, (dataset,)) if name in self.entries)

    def values(self, metric: str, method: str, dataset: str) -> tuple[float, ...]:
        """One value per seed; empty when the run has none. An average needs all of its datasets."""
        members = self.members(dataset)
        return self.mean(metric, method, members) if len(members) == len(MEMBERS.get(dataset, (dataset,))) else ()

    def mean(self, metric: str, method: str, datasets: Sequence[str]) -> tuple[float, ...]:
        """The mean over datasets, one value per seed; empty when one of them is missing."""
        rows = [self._of_dataset(metric, method, dataset) for dataset in datasets]
        return tuple(np.mean(rows, axis=0).tolist()) if rows and all(rows) else ()

    def pooled(self, method: str, dataset: str) -> tuple[np.ndarray, np.ndarray]:
        """Confidence and correctness of all seeds together."""
        records = [self.run.records(self.entries[dataset]["name"], method, seed) for seed in self.run.seeds]
        return np.concatenate([r.confidence for r in records]), np.concatenate([r.correct for r in records])

    def _of_dataset(self, metric: str, method: str, dataset: str) -> tuple[float, ...]:
        key = (metric, method, dataset)
        if key not in self._values:
            self._values[key] = self._compute(*key)
        return self._values[key]

    def _compute(self, metric: str, method: str, dataset: str) -> tuple[float, ...]:
        if metric == "extra_seconds":
            adapter = method.partition("+")[0]
            both = zip(*(self._of_dataset("seconds", m, dataset) for m in (method, adapter)), strict=False)
            return tuple(with_calibrator - alone for with_calibrator, alone in both)
        if method not in self.run.methods or dataset not in self.entries:
            return ()
        values = []
        for seed in self.run.seeds:
            try:
                records = self.run.records(self.entries[dataset]["name"], method, seed)
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
    """One score of one method, dataset and seed. "brier" is the top-label score: the printed values can be no other."""
    if metric == "seconds":
        return float(np.mean(records.milliseconds)) / 1000
    if metric == "accuracy":
        return 100 * float(metrics.accuracy(records.correct))
    if metric in TOP_LABEL:
        return 100 * float(TOP_LABEL[metric](records.confidence, records.correct))
    return 100 * float(CLASS_WISE[metric](records.probabilities, records.label))


TOP_LABEL = {"ece": metrics.ece, "brier": metrics.brier_top_label}
CLASS_WISE = {"cece": metrics.classwise_ece, "aece": metrics.adaptive_ece}


def std_over_seeds(values: Sequence[float]) -> float | None:
    """Sample standard deviation (divisor n - 1); None for a single seed."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None
