"""The figures of a run: every metric of every method on every dataset, over seeds, with intervals and comparisons.

The bootstrap draws images, with all seeds of an image together. The seeds of a run use other views of the same images;
treating their records as independent would make intervals too narrow by up to the square root of the number of seeds.
All methods of a dataset share the draws, so intervals of differences are paired.
"""

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from .._errors import InputError, unknown_name
from ..bench import DatasetEntry, Manifest, Run
from ..methods import parse_method
from ..metrics import METRICS, BinnedScore
from ..metrics.intervals import check_resampling, holm, p_value, quantiles
from ._score import Scored, deviation, drawn, pool, read_seeds, score

ALPHA = 0.05  # of a change against a baseline
ReportProgress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A dataset, or the average over a group of datasets (`members`)."""

    name: str
    title: str
    classes: int = 0
    alpha: float | None = None
    group: str | None = None
    members: tuple[str, ...] = ()

    @property
    def average(self) -> bool:
        return bool(self.members)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One metric of one method on one column. Figures are fractions (NLL: nats).

    `values` has one figure per seed; `low` and `high` bound the bootstrap interval of their `mean`; `change` is the
    mean minus that of `base` (the adapter alone, or the baseline of a report), with its own interval from the same
    draws. holm: p of no difference from a baseline, corrected for all methods of the column.
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
    holm: float | None = None

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    @property
    def std(self) -> float | None:
        """Standard deviation over seeds; None for a single seed."""
        return deviation(self.values)

    @property
    def clear(self) -> bool:
        """Whether the change is more than chance: `holm` is below 5%, or without one, the interval excludes 0."""
        if self.holm is not None:
            return self.holm < ALPHA
        return (self.change_low or 0.0) > 0.0 or (self.change_high or 0.0) < 0.0


class Failure(NamedTuple):
    """A sample without a result, and the methods and seeds that it failed with."""

    dataset: str
    sample: str
    error: str
    where: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """All figures of a run; made by `summarise`."""

    manifest: Manifest = field(repr=False)
    model: str
    weights_hash: str
    seeds: tuple[int, ...]
    methods: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: Mapping[tuple[str, str, str], Estimate] = field(repr=False)
    scored: Mapping[tuple[str, str], Mapping[int, Scored]] = field(repr=False)
    failures: tuple[Failure, ...]
    missing: tuple[tuple[str, str, int], ...]
    complete: bool
    bins: int
    level: float
    resamples: int
    baseline: str | None = None

    @property
    def datasets(self) -> list[Column]:
        return [column for column in self.columns if not column.average]

    @property
    def averages(self) -> list[Column]:
        return [column for column in self.columns if column.average]

    def cell(self, column: str, method: str, metric: str) -> Estimate | None:
        return self.cells.get((column, method, metric))

    def best(self, column: str, metric: str) -> set[str]:
        """The methods with the best printed figure of a column; none if all are equal."""
        shown = METRICS.info(metric)
        printed = {}
        for method in self.methods:
            cell = self.cell(column, method, metric)
            if cell is not None:
                printed[method] = round(shown.goodness(shown.scale * cell.mean), shown.digits)
        if len(set(printed.values())) < 2:
            return set()
        return {method for method, value in printed.items() if value == max(printed.values())}

    def samples(self, dataset: str) -> tuple[int, int]:
        """Minimum and maximum number of samples over methods and seeds."""
        sizes = []
        for (name, _), runs in self.scored.items():
            if name == dataset:
                sizes += map(len, runs.values())
        return min(sizes, default=0), max(sizes, default=0)

    def failed(self, dataset: str) -> int:
        """Number of samples of a dataset that failed with at least one method and seed."""
        return len({failure.sample for failure in self.failures if failure.dataset == dataset})

    def shown(self, column: Column) -> list[tuple[int, str]]:
        """Number and name of each method with figures on a column."""
        return [(i, m) for i, m in enumerate(self.methods) if (column.name, m, "ece") in self.cells]

    def pooled(self, dataset: str, method: str) -> Scored:
        """All seeds together, for diagrams."""
        return pool(list(self.scored[dataset, method].values()), ())

    def reliability(self, dataset: str, method: str) -> BinnedScore:
        """The bins of all seeds together, with the mean ECE over seeds, so that tables and figures agree."""
        value = self.cells[dataset, method, "ece"].mean
        return replace(self.pooled(dataset, method).reliability(), value=value)


def summarise(
    run: Run,
    *,
    baseline: str | None = None,
    bins: int = 20,
    resamples: int = 1000,
    level: float = 0.95,
    progress: ReportProgress = lambda what, done, total: None,
) -> Summary:
    """The figures of a run: `summarise(cots.bench.Run.open("runs/x")).cell("pets", "tpt+cots", "ece").mean`.

    baseline: a method that all others are compared with, instead of each with its adapter alone.
    """
    check_resampling(resamples, level)
    if baseline is not None:
        baseline = name_in(run, baseline)
    datasets = [column_of(entry) for entry in run.manifest.datasets]
    parts = len(datasets) * len(run.methods) * len(run.seeds)
    metrics = [metric.name for metric in METRICS.infos()]  # once: listing them reads the metadata of every package
    scored: dict[tuple[str, str], dict[int, Scored]] = {}
    failures: dict[tuple[str, str, str], list[tuple[str, int]]] = {}
    missing, done = [], 0
    for dataset, method in product(run.datasets, run.methods):
        for seed, records in read_seeds(run, dataset, method):
            progress(f"{dataset} {method} seed {seed}", done, parts)
            done += 1
            if records is None:
                missing.append((dataset, method, seed))
                continue
            for sample, error in records.errors.items():
                failures.setdefault((dataset, sample, str(error)), []).append((method, seed))
            if len(records.ids):
                scored.setdefault((dataset, method), {})[seed] = score(records, metrics, bins)
            else:
                missing.append((dataset, method, seed))
    if not scored:
        raise InputError("The run has no finished records to report. Run it with `cots run` first.")
    progress("intervals", parts, parts)
    columns = (*datasets, *averages(datasets))
    cells = {}
    for column, figures in figures_of(scored, columns, run.methods, resamples):
        for cell in _compared(column.name, figures, level, baseline):
            cells[cell.column, cell.method, cell.metric] = cell
    return Summary(
        manifest=run.manifest, model=run.manifest.model.name, weights_hash=run.manifest.model.weights_hash,
        seeds=run.seeds, methods=run.methods, columns=columns, cells=cells, scored=scored,
        failures=tuple(Failure(*sample, tuple(where)) for sample, where in failures.items()), missing=tuple(missing),
        complete=bool(run.complete) and not missing, bins=bins, level=level, resamples=resamples,
        baseline=baseline,
    )  # fmt: skip


def column_of(entry: DatasetEntry) -> Column:
    title = entry.title or entry.name
    return Column(name=entry.name, title=title, classes=len(entry.classes), alpha=entry.alpha, group=entry.average)


def base_of(method: str, methods: Sequence[str]) -> str | None:
    """The adapter alone, if it is another method of the run."""
    base = method.partition("+")[0]
    return base if base != method and base in methods else None


def name_in(run: Run, method: str) -> str:
    """The run's name for a method, however its settings are written."""
    if method in run.methods:
        return method
    name = str(parse_method(method))
    if name not in run.methods:
        raise unknown_name("method in the run:", name, run.methods)
    return name


def averages(datasets: Sequence[Column]) -> Iterator[Column]:
    """The groups of at least two datasets."""
    for group in dict.fromkeys(d.group for d in datasets if d.group):
        members = tuple(d.name for d in datasets if d.group == group)
        if len(members) > 1:
            title = f"Average of {len(members)} {group_noun(group)}"
            yield Column(name=f"average:{group}", title=title, group=group, members=members)


def group_noun(group: str | None) -> str:
    """The plural noun for the datasets of a group."""
    return "ImageNet variants" if group == "variants" else f"{group} sets"


class MethodFigures(NamedTuple):
    """A method on a dataset or an average: the value of each metric with each seed, and resampled means over seeds."""

    seeds: tuple[int, ...]
    values: Mapping[str, np.ndarray]
    draws: Mapping[str, np.ndarray]


def figures_of(
    scored: Mapping[tuple[str, str], Mapping[int, Scored]],
    columns: Sequence[Column],
    methods: Sequence[str],
    resamples: int,
) -> Iterator[tuple[Column, dict[str, MethodFigures]]]:
    """The figures of each method on each column; averages come after their members."""
    known: dict[tuple[str, str], MethodFigures] = {}
    for column in columns:
        by_method = {}
        runs_of = {method: scored[column.name, method] for method in methods if (column.name, method) in scored}
        population: dict[str, None] = {}
        for runs in runs_of.values():
            for run in runs.values():
                population |= dict.fromkeys(run.ids)
        for method in methods:
            if column.average:
                figures = _average([known.get((member, method)) for member in column.members])
            elif method in runs_of:
                figures = _resampled(runs_of[method], list(population), draw_seed(column.name), resamples)
            else:
                figures = None
            if figures is not None:
                known[column.name, method] = by_method[method] = figures
        yield column, by_method


def _resampled(runs: Mapping[int, Scored], population: Sequence[str], seed: int, resamples: int) -> MethodFigures:
    draws = resample(list(runs.values()), population, seed=seed, resamples=resamples)
    values: dict[str, list[float]] = {}
    for run in runs.values():
        for name, value in run.values.items():
            values.setdefault(name, []).append(value)
    return MethodFigures(tuple(runs), {name: np.array(by_seed) for name, by_seed in values.items()}, draws)


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
    row_of = dict(zip(population, range(len(population)), strict=True))
    rows = [np.array(list(map(row_of.get, run.ids))) for run in runs]

    def means(weights_Bn: np.ndarray) -> dict[str, np.ndarray]:
        by_metric: dict[str, list[np.ndarray]] = {}
        for run, row in zip(runs, rows, strict=True):
            for name, values in run.resampled(weights_Bn[:, row]).items():
                by_metric.setdefault(name, []).append(values)
        return {name: np.mean(values, axis=0) for name, values in by_metric.items()}

    return drawn(means, len(population), seed, resamples)


def _average(members: Sequence[MethodFigures | None]) -> MethodFigures | None:
    """The mean over datasets; None unless all have the same seeds."""
    first = members[0]
    if first is None:
        return None
    values: dict[str, list[np.ndarray]] = {}
    draws: dict[str, list[np.ndarray]] = {}
    for member in members:
        if member is None or member.seeds != first.seeds:
            return None
        for name, by_seed in member.values.items():
            values.setdefault(name, []).append(by_seed)
        for name, by_resample in member.draws.items():
            draws.setdefault(name, []).append(by_resample)
    return MethodFigures(
        first.seeds,
        {name: np.stack(parts, axis=-1).mean(axis=-1) for name, parts in values.items()},
        {name: np.mean(parts, axis=0) for name, parts in draws.items()},
    )


def _compared(
    column: str, by_method: Mapping[str, MethodFigures], level: float, baseline: str | None
) -> Iterator[Estimate]:
    """Every metric of every method on a column, with its interval and its change against the base."""
    corrected = {} if baseline is None else _corrected(by_method, baseline)
    for method, ours in by_method.items():
        base = base_of(method, list(by_method))
        if baseline is not None:
            base = baseline if baseline != method and baseline in by_method else None
        if base is not None and by_method[base].seeds != ours.seeds:  # an unfinished base would not be comparable
            base = None
        for name, by_seed in ours.values.items():
            metric, mean, draws, more = METRICS.info(name), float(by_seed.mean()), ours.draws.get(name), {}
            if draws is not None:
                more["low"], more["high"] = metric.clip(quantiles(draws, level, mean))
            if base is not None:
                other = float(by_method[base].values[name].mean())
                more |= {"base": base, "change": mean - other, "better": metric.goodness(mean) > metric.goodness(other)}
                if draws is not None:
                    ends = quantiles(draws - by_method[base].draws[name], level, mean - other)
                    more["change_low"], more["change_high"] = metric.clip_change(ends)
                    more["holm"] = corrected.get((method, name))
            values = tuple(by_seed.tolist())
            yield Estimate(column=column, method=method, metric=name, seeds=ours.seeds, values=values, **more)


def _corrected(by_method: Mapping[str, MethodFigures], baseline: str) -> dict[tuple[str, str], float]:
    """Holm's p of no difference from the baseline, by method and metric: corrected over the methods of a column."""
    found: dict[str, dict[str, float]] = {}
    base = by_method.get(baseline)
    for method, ours in by_method.items():
        if base is None or method == baseline or ours.seeds != base.seeds:
            continue
        for name in set(ours.draws) & set(base.draws):
            change = float(ours.values[name].mean() - base.values[name].mean())
            found.setdefault(name, {})[method] = p_value(change, ours.draws[name] - base.draws[name])
    corrected = {}
    for name, by_name in found.items():
        for method, value in zip(by_name, holm(list(by_name.values())), strict=True):
            corrected[method, name] = value
    return corrected
