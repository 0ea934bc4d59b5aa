"""Figures of several methods: averages over datasets, bootstrap intervals, changes against a base.

The bootstrap draws images, with all seeds of an image together. The seeds of a run use other views of the same images;
treating their records as independent would make intervals too narrow by up to the square root of the number of seeds.
All methods of a dataset share the draws, so intervals of differences are paired.
"""

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..metrics import METRICS
from ..metrics._intervals import draw_weights, quantiles
from ._score import Scored, deviation


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One metric of one method on one column. Figures are fractions (NLL: nats).

    `values` has one figure per seed; `low` and `high` bound the bootstrap interval of their `mean`; `change` is the
    mean minus that of `base` (the adapter alone), with its own interval from the same draws.
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
        """Standard deviation over seeds; None for a single seed."""
        return deviation(self.values)

    @property
    def clear(self) -> bool:
        """Whether the interval of the change excludes zero."""
        return (self.change_low or 0.0) > 0.0 or (self.change_high or 0.0) < 0.0


@dataclass(frozen=True)
class Figures:
    """A method on a dataset or an average: values by seed and metric, and resampled means over seeds."""

    values: Mapping[int, Mapping[str, float]]
    draws: Mapping[str, np.ndarray]


def base_of(method: str, methods: Sequence[str]) -> str | None:
    """The adapter alone, if it is another method of the run."""
    base = method.partition("+")[0]
    return base if base != method and base in methods else None


def draw_seed(dataset: str) -> int:
    """The seed of the draws of a dataset: the same for all methods, different between datasets."""
    return zlib.crc32(dataset.encode())


def resample(
    runs: Sequence[Scored], population: Sequence[str], *, seed: int, resamples: int = 1000
) -> dict[str, np.ndarray]:
    """Per metric, the mean over `runs` (the seeds) on each resample.

    population: the ids to draw from; an image that failed in one run counts only in the others. The draws are those of
    `cots.metrics.bootstrap` with the same seed. A resample without records of a run is NaN.
    """
    place = {sample: i for i, sample in enumerate(population)}
    rows = [np.array([place[sample] for sample in run.ids]) for run in runs]
    stacks = []
    for weights_Bn in draw_weights(len(population), seed, resamples):
        found = [run.resampled(weights_Bn[:, row]) for run, row in zip(runs, rows, strict=True)]
        stacks.append({name: np.mean([one[name] for one in found], axis=0) for name in found[0]})
    return {name: np.concatenate([stack[name] for stack in stacks]) for name in stacks[0]}


def dataset_figures(dataset: str, by_method: Mapping[str, Mapping[int, Scored]], resamples: int) -> dict[str, Figures]:
    """The figures of every method on one dataset, from the same draws."""
    population = list(dict.fromkeys(i for runs in by_method.values() for run in runs.values() for i in run.ids))
    found = {}
    for method, runs in by_method.items():
        draws = resample(list(runs.values()), population, seed=draw_seed(dataset), resamples=resamples)
        found[method] = Figures({seed: run.values for seed, run in runs.items()}, draws)
    return found


def average_figures(members: Sequence[Figures | None]) -> Figures | None:
    """The mean over datasets; None unless all have the same seeds."""
    known = [member for member in members if member is not None]
    if len(known) < len(members) or any(m.values.keys() != known[0].values.keys() for m in known):
        return None
    values = {
        seed: {name: float(np.mean([m.values[seed][name] for m in known])) for name in first}
        for seed, first in known[0].values.items()
    }
    return Figures(values, {name: np.mean([m.draws[name] for m in known], axis=0) for name in known[0].draws})


def compare(column: str, by_method: Mapping[str, Figures], level: float) -> Iterator[Cell]:
    """The cells of a column: every metric of every method, with interval and change against the base."""
    for method, ours in by_method.items():
        # Only with the same seeds: an unfinished base would not be comparable.
        base = base_of(method, [m for m, other in by_method.items() if other.values.keys() == ours.values.keys()])
        for name in next(iter(ours.values.values())):
            metric = METRICS.info(name)
            values, draws = tuple(figures[name] for figures in ours.values.values()), ours.draws.get(name)
            mean, more = float(np.mean(values)), {}
            if draws is not None:
                more["low"], more["high"] = metric.clip(quantiles(draws, level, mean))
            if base is not None:
                theirs = by_method[base]
                other = float(np.mean([figures[name] for figures in theirs.values.values()]))
                more |= {"base": base, "change": mean - other, "better": metric.goodness(mean) > metric.goodness(other)}
                if draws is not None:
                    ends = quantiles(draws - theirs.draws[name], level, mean - other)
                    more["change_low"], more["change_high"] = ends
            yield Cell(column=column, method=method, metric=name, seeds=tuple(ours.values), values=values, **more)
