"""Cells of a report's tables: means over seeds, bootstrap intervals, the change against the adapter alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..metrics._bootstrap import centred
from ._metrics import METRICS, RESAMPLED, Scored
from ._resample import draw_seed, resample


@dataclass(frozen=True, kw_only=True)
class Column:
    """A dataset, or the average over a group of datasets (`members`)."""

    name: str
    title: str
    n: int = 0
    classes: int = 0
    alpha: float | None = None
    group: str | None = None
    members: tuple[str, ...] = ()

    @property
    def average(self) -> bool:
        return bool(self.members)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One metric of one method on one column. Figures are fractions (NLL: nats).

    `values` has one figure a seed; `low` and `high` bound the bootstrap interval of their `mean`; `change` is the mean
    minus that of `base` (the adapter alone), with an interval of its own from the same draws.
    """

    column: str
    method: str
    metric: str
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    low: float | None = None
    high: float | None = None
    base: str | None = None
    change: float | None = None
    change_low: float | None = None
    change_high: float | None = None
    better: bool = False

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    @property
    def std(self) -> float | None:
        """Standard deviation over seeds (divisor seeds - 1); one seed has none."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    @property
    def clear(self) -> bool:
        """The interval of the change leaves out zero."""
        return (
            self.change_low is not None
            and self.change_high is not None
            and (self.change_low > 0.0 or self.change_high < 0.0)
        )


def base_of(method: str, methods: Sequence[str]) -> str | None:
    """The adapter alone, where the run has it and it is another method.

    >>> base_of("tpt+cots", ["tpt", "tpt+cots"]), base_of("tpt", ["tpt"]), base_of("ctpt+cots", ["tpt"])
    ('tpt', None, None)
    """
    base = method.partition("+")[0]
    return base if base != method and base in methods else None


def group_noun(group: str | None) -> str:
    """What the datasets of a group are called together."""
    return "ImageNet variants" if group == "variants" else f"{group} sets"


def averages(datasets: Sequence[Column]) -> Iterator[Column]:
    for group in dict.fromkeys(d.group for d in datasets if d.group):
        members = tuple(d.name for d in datasets if d.group == group)
        if len(members) > 1:
            yield Column(
                name=f"average:{group}",
                title=f"Average of {len(members)} {group_noun(group)}",
                group=group,
                members=members,
            )


def all_cells(
    scored: Mapping[tuple[str, str], Mapping[int, Scored]],
    columns: Sequence[Column],
    methods: Sequence[str],
    bins: int,
    resamples: int,
    level: float,
) -> dict[tuple[str, str, str], Cell]:
    cells: dict[tuple[str, str, str], Cell] = {}
    by_dataset: dict[tuple[str, str], np.ndarray] = {}
    for column in columns:
        draws: dict[str, np.ndarray] = {}
        values: dict[str, dict[int, dict[str, float]]] = {}
        parts = column.members or (column.name,)
        everything = (run.ids for m in methods for run in scored.get((column.name, m), {}).values())
        population = list(dict.fromkeys(sample for ids in everything for sample in ids))
        for method in methods:
            runs = [scored.get((part, method), {}) for part in parts]
            # An average is only comparable where every member has every seed.
            common = [s for s in runs[0] if all(s in other for other in runs)]
            if not common or (column.average and any(len(r) != len(common) for r in runs)):
                continue
            values[method] = {
                s: {m.name: float(np.mean([r[s].values[m.name] for r in runs])) for m in METRICS} for s in common
            }
            if column.average:
                draws[method] = np.mean([by_dataset[part, method] for part in parts], axis=0)
            else:
                draws[method] = by_dataset[column.name, method] = resample(
                    list(runs[0].values()), population, seed=draw_seed(column.name), resamples=resamples, bins=bins
                )
        for method in values:
            # On the same seeds only: a base that is still being computed would compare unlike with unlike.
            base = base_of(method, [m for m in values if values[m].keys() == values[method].keys()])
            for cell in _cells(column.name, method, base, values, draws, level):
                cells[column.name, method, cell.metric] = cell
    return cells


def _cells(
    column: str,
    method: str,
    base: str | None,
    values: Mapping[str, Mapping[int, Mapping[str, float]]],
    draws: Mapping[str, np.ndarray],
    level: float,
) -> Iterator[Cell]:
    for metric in METRICS:
        at = RESAMPLED.index(metric.name) if metric.resampled else None
        ours = [figures[metric.name] for figures in values[method].values()]
        low = high = None
        if at is not None:
            low, high = metric.clip(centred(draws[method][:, at], float(np.mean(ours)), level))
        change = change_low = change_high = None
        better = False
        if base is not None:
            theirs = [figures[metric.name] for figures in values[base].values()]
            change = float(np.mean(ours) - np.mean(theirs))
            better = metric.goodness(float(np.mean(ours))) > metric.goodness(float(np.mean(theirs)))
            if at is not None:
                # The same draws for both: what an odd draw does to both cancels in the difference.
                change_low, change_high = centred(draws[method][:, at] - draws[base][:, at], change, level)
        yield Cell(
            column=column,
            method=method,
            metric=metric.name,
            seeds=tuple(values[method]),
            values=tuple(ours),
            low=low,
            high=high,
            base=base,
            change=change,
            change_low=change_low,
            change_high=change_high,
            better=better,
        )
