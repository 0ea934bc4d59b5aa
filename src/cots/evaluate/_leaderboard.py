"""A table of many runs on one page: figures with intervals, pairwise wins, cost, and where every row comes from.

Rows are compared only if they have the same samples, seeds and views. Both are then resampled with the same draws of
images, as in `compare_methods`, with Holm's correction over all pairs of rows.
"""

import math
import string
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from .._errors import InputError
from ..bench import Run
from ..metrics import METRICS, Metric
from ..metrics.intervals import check_resampling, quantiles
from ._paired import PROTOCOL, Difference, differences_of, holm_corrected
from ._score import Scored, read_seeds, score
from ._summary import Column, MethodFigures, ReportProgress, averages, column_of, figures_of

SHOWN = ("accuracy", "ece", "smooth_ece", "nll")
JUDGED = ("accuracy", "ece", "nll")  # metrics of which wins are counted


@dataclass(frozen=True, kw_only=True)
class Source:
    """A run of the table. protocol: a letter, the same for runs with the same samples, seeds and views."""

    run: Run = field(repr=False)
    name: str
    protocol: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method of a run on a dataset or average. figures: value and interval by metric, as fractions (NLL: nats).

    wins: by metric, the numbers of comparable rows that it is better and worse than by more than chance. milliseconds:
    per sample, of adaptation and calibration, and encoding, of the views; NaN if unknown.
    """

    source: Source
    column: Column
    method: str
    samples: int
    failed: int
    figures: Mapping[str, tuple[float, float | None, float | None]]
    wins: Mapping[str, tuple[int, int]]
    milliseconds: float
    encoding: float


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """The rows of all sources; `notes` say what differs between their protocols."""

    rows: tuple[Row, ...]
    sources: tuple[Source, ...]
    metrics: tuple[Metric, ...]
    notes: tuple[str, ...]
    level: float
    resamples: int

    @property
    def columns(self) -> tuple[Column, ...]:
        """The datasets and averages, averages first."""
        found = {row.column.name: row.column for row in self.rows}
        return tuple(sorted(found.values(), key=lambda column: not column.average))


def make_leaderboard(
    runs: Mapping[str, Run],
    *,
    mixed: bool = False,
    resamples: int = 1000,
    level: float = 0.95,
    progress: ReportProgress = lambda what, done, total: None,
) -> Leaderboard:
    """The leaderboard of finished runs by name.

    mixed: allow runs that differ in samples, seeds or views; their rows are not compared with each other.
    """
    check_resampling(resamples, level)
    sources, notes = _by_protocol(runs, mixed)
    metrics = tuple(METRICS.info(name) for name in SHOWN)
    rows: list[Row] = []
    for letter in dict.fromkeys(source.protocol for source in sources):
        own = [source for source in sources if source.protocol == letter]
        rows += _rows(own, metrics, resamples, level, progress)
    return Leaderboard(
        rows=tuple(rows), sources=tuple(sources), metrics=metrics, notes=tuple(notes), level=level, resamples=resamples
    )


def protocol_of(run: Run) -> dict[str, str]:
    """What decides whether the rows of two runs are comparable, by words for an error."""
    found = {"datasets": ", ".join(sorted(run.datasets)), "seeds": ", ".join(map(str, sorted(run.seeds)))}
    for entry in run.manifest.datasets:
        for words, value in PROTOCOL.items():
            found[f"{words} of {entry.name}"] = str(value(entry))
    return found


def _by_protocol(runs: Mapping[str, Run], mixed: bool) -> tuple[list[Source], list[str]]:
    """The sources with the letters of their protocols, and notes on what differs from the first one's."""
    if not runs:
        raise InputError("A leaderboard needs at least one run.")
    protocols: list[tuple[str, dict[str, str]]] = []  # the first run of each, by letter
    seen: dict[str, str] = {}
    sources, notes = [], []
    for name, run in runs.items():
        if run.missing():
            raise InputError(f"{run.folder} is unfinished. Re-run its command to finish it.")
        if run.manifest.id and run.manifest.id in seen:
            raise InputError(f"{name} and {seen[run.manifest.id]} are the same run. Pass it once.")
        seen[run.manifest.id] = name
        own = protocol_of(run)
        known = [protocol for _, protocol in protocols]
        if own not in known:
            if protocols:
                first, other = protocols[0]
                what = _difference(other, own)
                if not mixed:
                    raise InputError(
                        f"{first} and {name} have different protocols: {what}. Make one page for each, or pass mixed "
                        "(--mixed), which the page then says."
                    )
                letter = _letter(len(protocols))
                notes.append(f"{letter} ({name}) differs from A ({first}): {what}")
            protocols.append((name, own))
            known.append(own)
        sources.append(Source(run=run, name=name, protocol=_letter(known.index(own))))
    return sources, notes


def _letter(number: int) -> str:
    """A, B, ..., Z, AA, AB, ..."""
    rest, last = divmod(number, 26)
    return (_letter(rest - 1) if rest else "") + string.ascii_uppercase[last]


def _difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """The first thing that differs: `seeds 0, 1 against 0`."""
    for words in (*ours, *theirs):
        if ours.get(words) != theirs.get(words):
            return f"{words} {ours.get(words, 'none')} against {theirs.get(words, 'none')}"
    raise AssertionError("the protocols are equal")


def _rows(
    sources: Sequence[Source], metrics: Sequence[Metric], resamples: int, level: float, progress: ReportProgress
) -> Iterator[Row]:
    """The rows of sources with the same protocol."""
    labels: dict[str, tuple[Source, str]] = {}
    scored: dict[tuple[str, str], Mapping[int, Scored]] = {}
    for source in sources:
        for method in source.run.methods:
            progress(f"{source.name} {method}", 0, 1)
            label = f"{source.name}/{method}"
            labels[label] = source, method
            for dataset in source.run.datasets:
                scored[dataset, label] = _scores(source.run, dataset, method)
    datasets = [column_of(entry) for entry in sources[0].run.manifest.datasets]
    columns = (*datasets, *averages(datasets))
    by_column: list[tuple[Column, dict[str, MethodFigures]]] = []
    differences: list[Difference] = []
    judged = [metric for metric in metrics if metric.name in JUDGED]
    for column, figures in figures_of(scored, columns, tuple(labels), resamples):
        progress(f"intervals of {column.title}", 0, 1)
        by_column.append((column, figures))
        for first, second in combinations(figures, 2):
            differences += differences_of(column, judged, (first, figures[first]), (second, figures[second]), level)
    wins = _wins(holm_corrected(differences), level)
    for column, figures in by_column:
        for label, found in figures.items():
            source, method = labels[label]
            runs: list[Scored] = []
            for member in column.members or (column.name,):
                runs += scored[member, label].values()
            yield Row(
                source=source, column=column, method=method,
                samples=sum(map(len, runs)), failed=sum(run.failed for run in runs),
                figures={metric.name: _interval(metric, found, level) for metric in metrics},
                wins={metric.name: wins[column.name, metric.name, label] for metric in judged},
                milliseconds=_mean([run.milliseconds for run in runs]), encoding=_mean([run.encoding for run in runs]),
            )  # fmt: skip


def _scores(run: Run, dataset: str, method: str) -> dict[int, Scored]:
    found = {}
    for seed, records in read_seeds(run, dataset, method):
        if records is None or not len(records.ids):
            raise InputError(
                f"{run.folder} has no results of {method} on {dataset} with seed {seed}; its photos failed."
            )
        found[seed] = score(records, SHOWN)
    return found


def _interval(metric: Metric, found: MethodFigures, level: float) -> tuple[float, float | None, float | None]:
    value = float(found.values[metric.name].mean())
    if metric.name not in found.draws:
        return value, None, None
    return value, *metric.clip(quantiles(found.draws[metric.name], level, value))


def _wins(differences: Sequence[Difference], level: float) -> Mapping[tuple[str, str, str], tuple[int, int]]:
    """By column, metric and label: how many rows it beats, and how many it loses to, by more than chance."""
    counts: dict[tuple[str, str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for one in differences:
        if not (one.winner and one.clear(level)):
            continue
        for label in (one.first, one.second):
            key, won = (one.column.name, one.metric.name, label), label == one.winner
            counts[key] = counts[key][0] + won, counts[key][1] + (not won)
    return counts


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
