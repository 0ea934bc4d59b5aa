"""The figures of a run: every metric of every method on every dataset, over seeds, with intervals and comparisons."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .._errors import InputError
from ..bench import Run
from ..metrics import METRICS, BinnedScore
from ..metrics._intervals import check_resampling
from ._compare import Cell, Figures, average_figures, compare, dataset_figures
from ._score import Scored, pool, score

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
        return dataclasses.replace(self.pooled(dataset, method).reliability(), value=value)


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
    missing = []
    names = [metric.name for metric in METRICS.infos()]  # once: listing them reads the metadata of every package
    for done, (dataset, method, seed) in enumerate(todo):
        progress(f"{dataset} {method} seed {seed}", done, len(todo))
        try:
            records = run.records(dataset, method, seed)
        except InputError:  # unfinished
            missing.append((dataset, method, seed))
            continue
        for sample, error in records.errors.items():
            failures.setdefault((dataset, sample, str(error)), []).append((method, seed))
        if len(records.ids):
            scored.setdefault((dataset, method), {})[seed] = score(records, names, bins)
        else:
            missing.append((dataset, method, seed))
    if not scored:
        raise InputError("The run has no finished records to report. Run it with `cots run` first.")
    progress("intervals", len(todo), len(todo))
    columns = (*datasets, *averages(datasets))
    cells = _cells(scored, columns, methods, resamples, level)
    return Summary(
        manifest=manifest,
        model=model["name"],
        weights_hash=model["weights_hash"],
        seeds=seeds,
        methods=methods,
        columns=columns,
        cells={(cell.column, cell.method, cell.metric): cell for cell in cells},
        scored=scored,
        failures=tuple(Failure(*sample, tuple(where)) for sample, where in failures.items()),
        missing=tuple(missing),
        complete=bool(run.complete) and not missing,
        bins=bins,
        level=level,
        resamples=resamples,
    )


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
            found = {m: average_figures([known[part].get(m) for part in column.members]) for m in methods}
            figures = {m: average for m, average in found.items() if average is not None}
        else:
            by_method = {m: scored[column.name, m] for m in methods if (column.name, m) in scored}
            figures = known[column.name] = dataset_figures(column.name, by_method, resamples)
        yield from compare(column.name, figures, level)
