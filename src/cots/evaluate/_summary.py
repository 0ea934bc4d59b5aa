"""The figures of a run: every metric of every method on every dataset, over seeds, with intervals and comparisons.

The bootstrap draws images, with all seeds of an image together. The seeds of a run use other views of the same images;
treating their records as independent would make intervals too narrow by up to the square root of the number of seeds.
All methods of a dataset share the draws, so intervals of differences are paired.
"""

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from .._errors import InputError
from ..bench import Run
from ..metrics import METRICS, BinnedScore
from ..metrics._intervals import check_resampling, quantiles
from ._score import Scored, deviation, drawn, pool, score

Progress = Callable[[str, int, int], None]


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


class Failure(NamedTuple):
    """A sample without a result, and the methods and seeds that it failed with."""

    dataset: str
    sample: str
    error: str
    where: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """All figures of a run; made by `summarise`."""

    manifest: Mapping[str, Any] = field(repr=False)
    model: str
    weights_hash: str
    seeds: tuple[int, ...]
    methods: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: Mapping[tuple[str, str, str], Cell] = field(repr=False)
    scored: Mapping[tuple[str, str], Mapping[int, Scored]] = field(repr=False)
    failures: tuple[Failure, ...]
    missing: tuple[tuple[str, str, int], ...]
    complete: bool
    bins: int
    level: float
    resamples: int

    @property
    def datasets(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if not column.average)

    def cell(self, column: str, method: str, metric: str) -> Cell | None:
        return self.cells.get((column, method, metric))

    def best(self, column: str, metric: str) -> set[str]:
        """The methods with the best printed figure of a column; none if all are equal."""
        shown = METRICS.info(metric)
        found = {m: cell.mean for m in self.methods if (cell := self.cell(column, m, metric))}
        rounded = {m: round(shown.goodness(shown.scale * value), shown.digits) for m, value in found.items()}
        top = max(rounded.values(), default=0.0)
        return {m for m, value in rounded.items() if value == top} if len(set(rounded.values())) > 1 else set()

    def samples(self, dataset: str) -> tuple[int, int]:
        """Minimum and maximum number of samples over methods and seeds."""
        sizes = [len(run) for (name, _), runs in self.scored.items() if name == dataset for run in runs.values()]
        return (min(sizes), max(sizes)) if sizes else (0, 0)

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
    bins: int = 20,
    resamples: int = 1000,
    level: float = 0.95,
    progress: Progress = lambda what, done, total: None,
) -> Summary:
    """The figures of a run: `summarise(cots.bench.Run.open("runs/x")).cell("pets", "tpt+cots", "ece").mean`."""
    check_resampling(resamples, level)
    manifest = run.manifest
    methods, seeds, model = tuple(manifest["methods"]), tuple(manifest["seeds"]), manifest["model"]
    datasets = [
        Column(
            name=entry["name"],
            title=entry.get("title") or entry["name"],
            classes=len(entry["classes"]),
            alpha=entry.get("alpha"),
            group=entry.get("average"),
        )
        for entry in manifest["datasets"]
    ]
    todo = [(d.name, m, s) for d in datasets for m in methods for s in seeds]
    scored: dict[tuple[str, str], dict[int, Scored]] = {}
    failures: dict[tuple[str, str, str], list[tuple[str, int]]] = {}
    names = [metric.name for metric in METRICS.infos()]  # once: listing them reads the metadata of every package
    for done, (dataset, method, seed) in enumerate(todo):
        progress(f"{dataset} {method} seed {seed}", done, len(todo))
        try:
            records = run.records(dataset, method, seed)
        except InputError:  # unfinished
            continue
        for sample, error in records.errors.items():
            failures.setdefault((dataset, sample, str(error)), []).append((method, seed))
        if len(records.ids):
            scored.setdefault((dataset, method), {})[seed] = score(records, names, bins)
    missing = tuple((d, m, s) for d, m, s in todo if s not in scored.get((d, m), {}))
    if not scored:
        raise InputError("The run has no finished records to report. Run it with `cots run` first.")
    progress("intervals", len(todo), len(todo))
    columns = (*datasets, *averages(datasets))
    cells = _cells(scored, columns, methods, resamples, level)
    return Summary(
        manifest=manifest, model=model["name"], weights_hash=model["weights_hash"], seeds=seeds, methods=methods,
        columns=columns, cells={(cell.column, cell.method, cell.metric): cell for cell in cells}, scored=scored,
        failures=tuple(Failure(*sample, tuple(where)) for sample, where in failures.items()), missing=missing,
        complete=bool(run.complete) and not missing, bins=bins, level=level, resamples=resamples,
    )  # fmt: skip


def base_of(method: str, methods: Sequence[str]) -> str | None:
    """The adapter alone, if it is another method of the run."""
    base = method.partition("+")[0]
    return base if base != method and base in methods else None


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


class Figures(NamedTuple):
    """A method on a dataset or an average: values by seed and metric, and resampled means over seeds."""

    values: Mapping[int, Mapping[str, float]]
    draws: Mapping[str, np.ndarray]


def _cells(
    scored: Mapping[tuple[str, str], Mapping[int, Scored]],
    columns: Sequence[Column],
    methods: Sequence[str],
    resamples: int,
    level: float,
) -> Iterator[Cell]:
    known: dict[str, dict[str, Figures]] = {}
    for column in columns:
        if column.average:
            found = {m: _average([known[part].get(m) for part in column.members]) for m in methods}
            figures = {m: average for m, average in found.items() if average is not None}
        else:
            by_method = {m: scored[column.name, m] for m in methods if (column.name, m) in scored}
            population = list(dict.fromkeys(i for runs in by_method.values() for run in runs.values() for i in run.ids))
            figures = known[column.name] = {
                method: Figures(
                    {seed: run.values for seed, run in runs.items()},
                    resample(list(runs.values()), population, seed=draw_seed(column.name), resamples=resamples),
                )
                for method, runs in by_method.items()
            }
        yield from _compared(column.name, figures, level)


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

    def means(weights_Bn: np.ndarray) -> dict[str, np.ndarray]:
        found = [run.resampled(weights_Bn[:, row]) for run, row in zip(runs, rows, strict=True)]
        return {name: np.mean([one[name] for one in found], axis=0) for name in found[0]}

    return drawn(means, len(population), seed, resamples)


def _average(members: Sequence[Figures | None]) -> Figures | None:
    """The mean over datasets; None unless all have the same seeds."""
    known = [member for member in members if member is not None]
    if len(known) < len(members) or any(m.values.keys() != known[0].values.keys() for m in known):
        return None
    values = {
        seed: {name: float(np.mean([m.values[seed][name] for m in known])) for name in first}
        for seed, first in known[0].values.items()
    }
    return Figures(values, {name: np.mean([m.draws[name] for m in known], axis=0) for name in known[0].draws})


def _compared(column: str, by_method: Mapping[str, Figures], level: float) -> Iterator[Cell]:
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
