"""A run's scores in the paper's units: one value per seed for a metric, a method, and a dataset or an average."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from .._errors import InputError
from ..bench import Run
from ..data import find_protocol, is_protocol
from ..evaluate import Scored, deviation, pool, score
from ._tables import MEMBERS

# Brier is the top-label score, the only one that fits the printed values.
METRICS = {"brier": "brier_top_label", "cece": "classwise_ece", "aece": "adaptive_ece"}


class RunScores:
    """Scores of a run, computed once on request: percent, or seconds for times, which include `encoding`.

    entries: the manifest's entries of the paper's datasets, by the paper's name.
    failed: number of unreadable images by dataset.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        # A user's own data may have the name of a dataset of the paper.
        self.entries: dict[str, Mapping[str, Any]] = {
            find_protocol(entry["name"]).name: entry
            for entry in run.manifest["datasets"]
            if is_protocol(entry["name"]) and entry.get("average") != "own"
        }
        self.failed: dict[str, int] = {}
        self._of_dataset = cache(self._compute)

    def members(self, dataset: str) -> tuple[str, ...]:
        """The run's datasets behind a name in the tables: the dataset itself, or those of an average."""
        return tuple(name for name in MEMBERS.get(dataset, (dataset,)) if name in self.entries)

    def values(self, metric: str, method: str, dataset: str) -> tuple[float, ...]:
        """One value per seed (`..._std`: a single value); empty if the run lacks a dataset or a second seed."""
        if metric.endswith("_std"):
            spread = deviation(self.values(metric.removesuffix("_std"), method, dataset))
            return () if spread is None else (spread,)
        members = self.members(dataset)
        return self.mean(metric, method, members) if len(members) == len(MEMBERS.get(dataset, (dataset,))) else ()

    def mean(self, metric: str, method: str, datasets: Sequence[str]) -> tuple[float, ...]:
        """The mean over datasets, one value per seed; empty if one of them is missing."""
        rows = [self._of_dataset(metric, method, dataset) for dataset in datasets]
        return tuple(np.mean(rows, axis=0).tolist()) if rows and all(rows) else ()

    def pooled(self, method: str, dataset: str) -> Scored:
        """The samples of all seeds together."""
        return pool(self._scored(method, dataset, ()), ())

    def _compute(self, metric: str, method: str, dataset: str) -> tuple[float, ...]:
        if metric == "extra_seconds":
            adapter = method.partition("+")[0]
            both = zip(*(self._of_dataset("seconds", m, dataset) for m in (method, adapter)), strict=False)
            return tuple(with_calibrator - alone for with_calibrator, alone in both)
        if metric == "seconds":
            found = self._scored(method, dataset, ())
            return tuple((scored.milliseconds + np.nan_to_num(scored.encoding)) / 1000 for scored in found)
        if metric == "encoding":
            found = self._scored(method, dataset, ())
            return tuple(s.encoding / 1000 for s in found) if not np.isnan([s.encoding for s in found]).any() else ()
        name = METRICS.get(metric, metric)
        return tuple(100 * scored.values[name] for scored in self._scored(method, dataset, (name,)))

    def _scored(self, method: str, dataset: str, metrics: Sequence[str]) -> list[Scored]:
        """One per seed; none if a seed of an unfinished run is missing, or all its images failed."""
        if method not in self.run.methods or dataset not in self.entries:
            return []
        found = []
        for seed in self.run.seeds:
            try:
                records = self.run.records(self.entries[dataset]["name"], method, seed)
            except InputError:  # unfinished
                if self.run.complete:
                    raise
                return []
            if records.failed:
                self.failed[dataset] = max(records.failed, self.failed.get(dataset, 0))
            if not len(records.label):
                return []
            found.append(score(records, metrics))
        return found
