"""Two methods on the same images: paired differences, how often each wins, and Holm's correction of many comparisons.

Both methods are resampled with the same draws of images, with all seeds of an image together, so what makes an image
hard for both cancels. p is that of a normal distribution with the standard error of the resampled difference.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from .._errors import InputError
from ..bench import DatasetEntry, Run
from ..metrics import METRICS, Metric
from ..metrics.intervals import check_resampling, holm, p_value, quantiles
from ._score import Scored, read_seeds, score
from ._summary import Column, MethodFigures, averages, column_of, figures_of, name_in
from .text import aligned, counted, interval

LISTED = 8  # methods that an error names; more are counted
# What two runs must share, by words for an error: without these, the same image is not the same comparison.
PROTOCOL: Mapping[str, Callable[[DatasetEntry], Any]] = {
    "samples, labels or class names": lambda entry: entry.split_hash[:12],
    "number of samples": lambda entry: entry.n,
    "limit": lambda entry: entry.limit,
    "views": lambda entry: entry.views,
    "AugMix": lambda entry: entry.augmix,
    "corruption": lambda entry: entry.corrupt,
}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One metric of two methods on a dataset or an average, as fractions (NLL: nats): `change` is first minus second.

    low, high: its interval. p: of no difference; holm: corrected for all comparisons of the metric on datasets, or on
    averages. They are None for a metric that cannot be resampled.
    """

    column: Column
    metric: Metric
    first: str
    second: str
    values: tuple[float, float]
    low: float | None = None
    high: float | None = None
    p: float | None = None
    holm: float | None = None

    @property
    def change(self) -> float:
        return self.values[0] - self.values[1]

    @property
    def winner(self) -> str:
        """The better method; empty if they are equal."""
        ours, others = map(self.metric.goodness, self.values)
        if ours == others:
            return ""
        return self.first if ours > others else self.second

    def clear(self, level: float) -> bool:
        """Whether the difference is more than chance at this level, after the correction."""
        return self.holm is not None and self.holm < 1 - level


@dataclass(frozen=True, kw_only=True)
class Comparisons:
    """The differences between every two of `methods`, and settings that differ between their runs."""

    methods: tuple[str, ...]
    metrics: tuple[Metric, ...]
    columns: tuple[Column, ...]
    differences: tuple[Difference, ...]
    level: float
    resamples: int
    notes: tuple[str, ...] = ()

    def select(self, metric: str, average: bool | None = None) -> Iterator[Difference]:
        """The differences in a metric, on averages or datasets only if said so."""
        for difference in self.differences:
            if difference.metric.name == metric and average in (None, difference.column.average):
                yield difference

    def text(self) -> str:
        """The differences of two methods, or a matrix of wins of more, for a terminal."""
        lines = [f"note: {note}" for note in self.notes]
        for metric in self.metrics:
            lines += ["", *(self._pair(metric) if len(self.methods) == 2 else self._matrices(metric))]
        return "\n".join(lines).lstrip("\n")

    def _pair(self, metric: Metric) -> list[str]:
        first, second = self.methods
        rows = [["", first, second, "difference", f"{100 * self.level:g}% interval", "p", ""]]
        for one in self.select(metric.name):
            within = interval(metric, one.low, one.high, signed=True) or "–"
            shown = [metric.show(value) for value in one.values]
            word = f"{one.winner} better" if one.winner and one.clear(self.level) else ""
            rows.append(
                [one.column.title, *shown, metric.show(one.change, signed=True), within, _shown(one.holm), word]
            )
        return [f"{metric.title} in {metric.unit}, {metric.direction}", aligned(rows), self._footer(metric)]

    def _matrices(self, metric: Metric) -> list[str]:
        lines = [f"{metric.title}, {metric.direction}"]
        for average, noun in ((False, "dataset"), (True, "average")):
            columns = {one.column.name for one in self.select(metric.name, average)}
            if not columns:
                continue
            rows = [[f"of {counted(len(columns), noun)}", *self.methods]]
            for ours in self.methods:
                row = [ours]
                for theirs in self.methods:
                    won = self.wins(metric.name, ours, theirs, average=average)
                    sure = self.wins(metric.name, ours, theirs, average=average, clear=True)
                    row.append("–" if ours == theirs else f"{won} ({sure})")
                rows.append(row)
            lines.append(aligned(rows))
        note = "On how many the row is better than the column; in brackets, on how many by more than chance."
        return [*lines, note, self._footer(metric)]

    def _footer(self, metric: Metric) -> str:
        """How differences were judged."""
        if all(one.p is None for one in self.select(metric.name)):
            return "This metric cannot be resampled: no intervals, and no difference counts as more than chance."
        named, largest = [], 0
        for average, words in ((False, "datasets"), (True, "averages")):
            size = len(list(self.select(metric.name, average)))
            largest = max(largest, size)
            if size:
                named.append(f"{counted(size, 'comparison')} on {words}")
        many = f" after Holm's correction of {' and '.join(named)}" if largest > 1 else ""
        return (
            f"More than chance: p < {100 * (1 - self.level):.3g}%{many}; {self.resamples:,} paired resamples of images."
        )

    def wins(self, metric: str, first: str, second: str, *, average: bool = False, clear: bool = False) -> int:
        """On how many datasets, or averages, `first` is better than `second`; with `clear`, more than by chance."""
        count = 0
        for difference in self.select(metric, average):
            if {difference.first, difference.second} == {first, second} and difference.winner == first:
                count += difference.clear(self.level) or not clear
        return count


def compare_methods(
    run: Run,
    methods: Sequence[str] = (),
    *,
    other: Run | None = None,
    metrics: Sequence[str] = ("accuracy", "ece"),
    bins: int = 20,
    resamples: int = 1000,
    level: float = 0.95,
) -> Comparisons:
    """Compare every two of these methods of a run, by default of all, on each dataset and average.

    other: a second run, which must have the same samples, seeds and protocol; of two methods, the second is from there,
    and one method is compared with itself.
    """
    check_resampling(resamples, level)
    chosen = tuple(METRICS.info(name) for name in dict.fromkeys(metrics))
    if other is None:
        names = [name_in(run, method) for method in methods] or list(run.methods)
        sides = {name: (run, name) for name in names}
        notes: list[str] = []
    else:
        sides, notes = _sides_of(run, other, methods), list(_refuse_others(run, other))
    if len(sides) < 2:
        raise _one_method(run, sides)
    scored: dict[tuple[str, str], Mapping[int, Scored]] = {}
    unfinished: dict[str, list[str]] = {}
    datasets = [column_of(entry) for entry in run.manifest.datasets if other is None or entry.name in other.datasets]
    for label, (where, method) in sides.items():
        for dataset in datasets:
            by_seed = _scores(where, dataset.name, method, chosen, bins)
            if by_seed:
                scored[dataset.name, label] = by_seed
            if len(by_seed) < len(where.seeds):
                unfinished.setdefault(dataset.name, []).append(label)
    for name, labels in unfinished.items():
        notes.append(f"{name} is not finished for {_listed(labels)}, so pairs with other seeds are left out")
    columns = (*datasets, *averages(datasets))
    found: list[Difference] = []
    for column, figures in figures_of(scored, columns, tuple(sides), resamples):
        for first, second in combinations(sides, 2):
            if first in figures and second in figures:
                found += differences_of(column, chosen, (first, figures[first]), (second, figures[second]), level)
    if not found:
        raise InputError(
            f"{run.folder} has no finished records of two methods with the same seeds. Resume its run first."
        )
    corrected = holm_corrected(found)
    return Comparisons(
        methods=tuple(sides), metrics=chosen, columns=columns, differences=corrected, level=level, resamples=resamples,
        notes=tuple(notes),
    )  # fmt: skip


def _shown(p: float | None) -> str:
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def differences_of(
    column: Column, metrics: Iterable[Metric], ours: tuple[str, MethodFigures], theirs: tuple[str, MethodFigures],
    level: float,
) -> Iterator[Difference]:  # fmt: skip
    (first, left), (second, right) = ours, theirs
    if left.seeds != right.seeds:  # an unfinished method would not be comparable
        return
    for metric in metrics:
        values = float(left.values[metric.name].mean()), float(right.values[metric.name].mean())
        about = {"column": column, "metric": metric, "first": first, "second": second, "values": values}
        if metric.name in left.draws:
            draws, change = left.draws[metric.name] - right.draws[metric.name], values[0] - values[1]
            low, high = metric.clip_change(quantiles(draws, level, change))
            about |= {"low": low, "high": high, "p": p_value(change, draws)}
        yield Difference(**about)


def holm_corrected(differences: Sequence[Difference]) -> tuple[Difference, ...]:
    """With `holm`, of each metric on datasets and on averages apart."""
    families: dict[tuple[str, bool], list[int]] = {}
    for index, difference in enumerate(differences):
        if difference.p is not None:
            families.setdefault((difference.metric.name, difference.column.average), []).append(index)
    corrected = list(differences)
    for indices in families.values():
        values = [differences[index].p or 0.0 for index in indices]
        for index, value in zip(indices, holm(values), strict=True):
            corrected[index] = replace(differences[index], holm=value)
    return tuple(corrected)


def _scores(run: Run, dataset: str, method: str, metrics: Iterable[Metric], bins: int) -> dict[int, Scored]:
    """The finished seeds."""
    names, by_seed = [metric.name for metric in metrics], {}
    for seed, records in read_seeds(run, dataset, method):
        if records is not None and len(records.ids):
            by_seed[seed] = score(records, names, bins)
    return by_seed


def _sides_of(run: Run, other: Run, methods: Sequence[str]) -> dict[str, tuple[Run, str]]:
    """Labels with run and method of the two sides."""
    if len(methods) not in (1, 2):
        raise InputError("Two runs are compared by one method of both, or by one of each. Pass one or two methods.")
    first, second = name_in(run, methods[0]), name_in(other, methods[-1])
    if first != second:
        return {first: (run, first), second: (other, second)}
    return {f"{first} in {run.folder}": (run, first), f"{second} in {other.folder}": (other, second)}


def _refuse_others(run: Run, other: Run) -> Iterator[str]:
    """Refuse a run on other samples, seeds or views; notes on what else differs."""
    if set(run.seeds) != set(other.seeds):
        raise _not_comparable(run, other, f"seeds {_listed(run.seeds)}, {_listed(other.seeds)}")
    shared = [entry for entry in run.manifest.datasets if entry.name in other.datasets]
    if not shared:
        raise _not_comparable(run, other, f"datasets {_listed(run.datasets)}, {_listed(other.datasets)}")
    for entry in shared:
        theirs = other.dataset(entry.name)
        for words, value in PROTOCOL.items():
            if value(entry) != value(theirs):
                raise _not_comparable(run, other, f"{words} of {entry.name} {value(entry)}, {value(theirs)}")
        for words, ours, others in (
            ("prompt", entry.template, theirs.template), ("learned context", entry.context, theirs.context),
        ):  # fmt: skip
            if ours != others:
                yield f"{words} of {entry.name}: {ours}, {others}"
    models = run.manifest.model, other.manifest.model
    for words, ours, others in (
        ("model", models[0].name, models[1].name),
        ("weights", models[0].weights_hash[:12], models[1].weights_hash[:12]),
        ("precision", models[0].precision, models[1].precision),
    ):
        if ours != others:
            yield f"{words}: {ours}, {others}"
    left_out = set(run.datasets) ^ set(other.datasets)
    if left_out:
        yield f"only in one run, so left out: {_listed(sorted(left_out))}"


def _one_method(run: Run, given: Collection[str]) -> InputError:
    others = [name for name in run.methods if name not in given]
    if not others:
        return InputError(f"A comparison needs two different methods; {run.folder} has only {_listed(given)}.")
    more = f" and {len(others) - LISTED} more" if len(others) > LISTED else ""
    return InputError(
        f"A comparison needs two different methods; {run.folder} also has {_listed(others[:LISTED])}{more}."
    )


def _not_comparable(run: Run, other: Run, what: str) -> InputError:
    return InputError(
        f"{run.folder} and {other.folder} cannot be compared, because they differ in {what}. Run one of them again "
        "with the other's."
    )


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))
