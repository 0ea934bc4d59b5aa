"""The words of a report (captions with provenance, marks of change, the sentences at the top) and of the demo.

Each conclusion of the demo has a paired 95% interval: the confidences of a photo under all methods are resampled
together, so the interval is that of a difference.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..adapters import ADAPTERS
from ..bench._run import seeds_text
from ..metrics import METRICS, Interval, Metric, bootstrap, risk_coverage
from ..metrics._metric import mean_of
from ._score import Scored
from ._summary import Cell, Column, Summary, group_noun

ARROWS = {"up": ("▲", "△"), "down": ("▼", "▽"), "same": ("=", "="), "": ("", "")}
RELIABILITY = (
    "Accuracy (y axis, blue) of the samples in each confidence bin (x axis). The gap to the diagonal is "
    "over-confidence (red) or under-confidence (amber); a tick at the base marks an empty bin; the strip below counts "
    "samples. The ECE is that of the table."
)
HISTOGRAM = (
    "Number of samples per confidence bin: correct ones above, wrong ones below, each side with its own scale (its "
    "largest count is next to it). The solid line is the mean confidence, the dashed line the accuracy; their distance "
    "is the confidence gap."
)
RISK = (
    "Error rate among accepted samples (y axis) if only the most confident share of samples is accepted (x axis). "
    "Lower is better; the area under the curve is in brackets."
)


def provenance(summary: Summary, bins: str = "equal-width bins (lo, hi], the first closed at 0") -> str:
    """Bins, seeds and model, for every caption."""
    seeds = seeds_text(summary.seeds)
    seeds += " (not all of them for every method)" if summary.missing else ""
    return f"{summary.bins} {bins}; {seeds}; model {summary.model} (weights {summary.weights_hash[:12]})"


def sizes(summary: Summary, of: Column | None = None) -> str:
    """`OxfordPets n = 298 to 300 (2 failed)` of all datasets, or of those in the column `of`."""
    names = (of.members or (of.name,)) if of else [column.name for column in summary.datasets]
    parts = []
    for column in (column for column in summary.datasets if column.name in names):
        (least, most), failed = summary.samples(column.name), summary.failed(column.name)
        count = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        parts.append(f"{column.title} n = {count}{f' ({failed} failed)' if failed else ''}")
    return "; ".join(parts)


def kind(method: str) -> str:
    """`episodic` or `online`; empty for a method that is not installed."""
    adapter = method.partition("+")[0]
    return ADAPTERS.info(adapter).kind if adapter in ADAPTERS else ""


def kinds(summary: Summary) -> str:
    """A sentence on which methods are online, so that the order of the records matters."""
    adapters = dict.fromkeys(method.partition("+")[0] for method in summary.methods)
    online = [name for name in adapters if kind(name) == "online"]
    if not online:
        return "All methods are episodic."
    rest = "; the others are episodic" if len(online) < len(adapters) else ""
    return f"Online, in the order of the records: {', '.join(online)}{rest}."


def table_caption(summary: Summary, metric: Metric, filled: str = "filled", hollow: str = "hollow") -> str:
    """A caption that makes a table self-contained; `filled` and `hollow` name the two kinds of arrow."""
    level, spread = f"{100 * summary.level:g}%", "One seed, so no spread over seeds"
    if (seeds := len(summary.seeds)) > 1:
        spread = f"Mean ± standard deviation over {'up to ' if summary.missing else ''}{seeds} seeds"
    interval = "no bootstrap interval"
    arrows = f"An arrow ({hollow}) shows a change against the same adapter alone."
    if metric.resampled:
        interval = (
            f"in brackets the {level} bootstrap interval over images, with all seeds of an image together, "
            f"{summary.resamples:,} resamples, centred on the mean"
        )
        arrows = (
            f"An arrow shows a change against the same adapter alone: {filled} if the {level} interval of the "
            f"difference excludes zero, {hollow} if not."
        )
    parts = [f"{metric.title} in {metric.unit}, {metric.direction}: {metric.explained}.", f"{spread}; {interval}."]
    parts += [arrows] if any(cell.base for cell in summary.cells.values()) else []
    clipped = sum(run.clipped for runs in summary.scored.values() for run in runs.values())
    if metric.name == "nll" and clipped:
        parts.append(f"In {clipped:,} records the label has probability 0, counted as the smallest float32 (103 nats).")
    bins = provenance(summary, "ranges of equal mass") if metric.bins == "equal mass" else provenance(summary)
    return " ".join([*parts, kinds(summary), f"{sizes(summary)}; {bins}."])


def figure_caption(summary: Summary, column: Column, what: str) -> str:
    """The caption of a figure; `what` explains how to read it."""
    pooled = " The records of all seeds are pooled." if len(summary.seeds) > 1 else ""
    return f"{what}{pooled} {sizes(summary, column)}; {provenance(summary)}."


def overview_caption(summary: Summary, column: Column) -> str:
    return (
        f"{column.title}: accuracy against calibration error, means over seeds; a line joins a method to its adapter "
        f"alone. {sizes(summary, column)}; {provenance(summary)}."
    )


def mark(metric: Metric, cell: Cell) -> str:
    """`up`, `down` or `same` as printed; empty without a base to compare with."""
    if cell.change is None:
        return ""
    moved = round(metric.scale * cell.change, metric.digits)
    return "same" if not moved else "up" if moved > 0 else "down"


def arrow(metric: Metric, cell: Cell) -> str:
    """The arrow of a change: filled if it is clear, hollow if it may be chance."""
    return ARROWS[mark(metric, cell)][not cell.clear]


def spoken_change(metric: Metric, cell: Cell) -> str:
    """What the arrow means: `better than tpt: -3.21 [-5.0, -1.0]`."""
    if mark(metric, cell) == "same":
        return f"the same as {cell.base}"
    text = f"{'better' if cell.better else 'worse'} than {cell.base}: {metric.show(cell.change, signed=True)}"
    ends = (metric.show(end, interval=True, signed=True) for end in (cell.change_low, cell.change_high))
    return f"{text} [{', '.join(ends)}]" if cell.change_low is not None else text


def sentences(summary: Summary) -> list[str]:
    """One sentence per overview column: the best calibrated method, and its change against the base."""
    averages = [column for column in summary.columns if column.average]
    return [text for column in averages or summary.datasets[:3] if (text := _sentence(summary, column))]


def warnings(summary: Summary) -> list[str]:
    """Warnings about the figures: an unfinished run, failed samples, few samples."""
    found = []
    if not summary.complete:
        parts = len(summary.datasets) * len(summary.methods) * len(summary.seeds)
        absent = f"{len(summary.missing)} of {parts} parts (a method on a dataset with a seed) have no finished records"
        found.append(
            f"This run is not finished{f': {absent}' if summary.missing else ''}. The figures can still change."
        )
    if summary.failures:
        failed = {column.title: summary.failed(column.name) for column in summary.datasets}
        named = ", ".join(f"{count} of {title}" for title, count in failed.items() if count)
        samples, records = sum(failed.values()), sum(len(failure.where) for failure in summary.failures)
        found.append(
            f"{counted(samples, 'sample')} failed ({named}); all figures exclude records without a result "
            f"({counted(records, 'record')})."
        )
    small = [c.title for c in summary.datasets if summary.samples(c.name)[0] < 50 * summary.bins]
    if small:
        named = "all datasets here" if len(small) == len(summary.datasets) > 3 else ", ".join(small)
        found.append(
            f"With fewer than {50 * summary.bins:,} samples ({named}), a {summary.bins}-bin calibration error is above "
            "zero by chance alone; rely on the intervals and on differences with a filled arrow."
        )
    return found


def _sentence(summary: Summary, column: Column) -> str:
    found = [cell for method in summary.methods if (cell := summary.cell(column.name, method, "ece"))]
    if len(found) < 2:
        return ""
    average = f"Averaged over {len(column.members)} {group_noun(column.group)}"
    best = min(found, key=lambda cell: cell.mean)
    text = f"{average if column.average else f'On {column.title}'}, {best.method} has the lowest calibration error"
    text += f", ECE {METRICS.info('ece').show(best.mean)}%"
    on_adapter = [cell for cell in found if cell.base is not None]
    if best.base is None and on_adapter:
        best = min(on_adapter, key=lambda cell: cell.mean)
        text += f". Of the methods on top of an adapter it is {best.method}, ECE {METRICS.info('ece').show(best.mean)}%"
    return f"{text}{_against_base(summary, column, best) if best.base else ''}."


def _against_base(summary: Summary, column: Column, cell: Cell) -> str:
    ece, accuracy = METRICS.info("ece"), METRICS.info("accuracy")
    right = summary.cells[column.name, cell.method, "accuracy"]
    chance = "" if cell.clear else " (a difference within chance)"
    text = f", against {ece.show(cell.mean - (cell.change or 0.0))}% for {cell.base} alone{chance}"
    if mark(accuracy, right) == "same":
        return f"{text}, at the same accuracy of {accuracy.show(right.mean)}%"
    return f"{text}; accuracy {accuracy.show(right.mean)}% against {accuracy.show(right.mean - (right.change or 0.0))}%"


def counted(number: int, noun: str) -> str:
    """`1 sample`, `2 samples`"""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def confidence_claim(zero: Scored, tuned: Scored, calibrated: Scored, changed: int, **draws: Any) -> str:
    """The share of the confidence added by TPT that CoTS removes; changed: number of predictions CoTS changes."""
    added = bootstrap(_difference, zero.confidence, tuned.confidence, **draws)
    first = f"TPT claims {_percent(tuned.mean_confidence)} and is right {_percent(tuned.correct.mean())}"
    if added.low <= 0:
        what = "took confidence away" if added.high < 0 else "did not clearly add confidence"
        return f"{first}; on these photos tuning {what} ({_points(added)}), so there is none to take back."
    share = bootstrap(_taken_back, zero.confidence, tuned.confidence, calibrated.confidence, **draws)
    answers = "the same answers" if not changed else f"{changed} answer{'s' if changed > 1 else ''} changed"
    second = f"CoTS claims {_percent(calibrated.mean_confidence)} with {answers}"
    interval = f"95% interval {_percent(share.low)} to {_percent(share.high)}"
    if share.low > 0:
        found = f"it takes back {_percent(share.value)} of the confidence that tuning added ({interval})"
    elif share.high < 0:
        more = f"95% interval {_percent(-share.high)} to {_percent(-share.low)}"
        found = f"it adds another {_percent(-share.value)} of the confidence that tuning added ({more})"
    else:
        found = f"whether it takes back any of the confidence that tuning added is not clear ({interval})"
    return f"{first}; {second}: {found}."


def accuracy_claim(zero: Scored, tuned: Scored, **draws: Any) -> str:
    """Whether TPT gained accuracy."""
    gain = bootstrap(_difference, zero.correct.astype(float), tuned.correct.astype(float), **draws)
    if gain.low > 0:
        return f"Tuning also gained accuracy: {_points(gain)}."
    if gain.high < 0:
        return f"Tuning cost accuracy: {_points(gain)}."
    return f"Tuning gained no clear accuracy: {_points(gain)}."


def trust_claim(tuned: Scored, calibrated: Scored, errors: float = 0.1, **draws: Any) -> str:
    """Coverage and error rate if photos are kept by stated confidence, up to an expected error rate of `errors`."""
    (kept, wrong), (kept_after, wrong_after) = (
        believed(one.confidence, one.correct, errors=errors) for one in (tuned, calibrated)
    )
    change = _change(lambda c, a, w: believed(c, a, errors=errors, weights=w)[1], tuned, calibrated, draws)
    verdict = _verdict(change, "CoTS leaves fewer errors", "CoTS leaves more errors")
    broken = " Neither keeps the promise." if min(wrong, wrong_after) > errors else ""
    return (
        f"Keep the photos whose stated confidence promises at most {_percent(errors)} errors. With TPT you keep "
        f"{_percent(kept)} of the photos and {_percent(wrong)} of these are wrong; with CoTS you keep "
        f"{_percent(kept_after)} and {_percent(wrong_after)} are wrong: {verdict} ({_points(change)}).{broken}"
    )


def coverage_claim(tuned: Scored, calibrated: Scored, errors: float = 0.1, **draws: Any) -> str:
    """Coverage at a given error rate, with the best threshold for these photos."""

    def coverage(confidence: np.ndarray, correct: np.ndarray, weights: Any = None) -> Any:
        curve = risk_coverage(confidence, correct, weights=weights)
        return np.where(curve.risk <= errors, curve.coverage, 0.0).max(axis=-1)

    before, after = (coverage(one.confidence, one.correct) for one in (tuned, calibrated))
    change = _change(coverage, tuned, calibrated, draws)
    verdict = _verdict(change, "CoTS keeps fewer", "CoTS keeps more")
    return (
        f"With labels to choose the threshold by, at most {_percent(errors)} errors: you keep {100 * after:.1f}% of "
        f"the photos instead of {100 * before:.1f}%: {verdict} ({_points(change)})."
    )


def believed(confidence: np.ndarray, correct: np.ndarray, *, errors: float, weights: Any = None) -> tuple[Any, Any]:
    """The share of photos kept and their error rate, if the most confident photos are kept up to a mean 1 - c of
    `errors`.

    With `weights` (B,S), one value of each per row; the error rate is 0 if nothing is kept.
    """
    order = np.argsort(-confidence, kind="stable")
    rows = np.ones(len(confidence)) if weights is None else np.asarray(weights)[..., order]
    kept = rows.cumsum(-1)
    stated = (rows * (1 - confidence[order])).cumsum(-1)
    # The mean of 1 - c over kept photos never falls, so the qualifying photos come first.
    inside = rows * (stated <= errors * kept)
    share = inside.sum(-1)
    wrong = (inside * ~correct[order]).sum(-1) / np.maximum(share, 1e-12)
    return share / kept[..., -1], wrong


def _difference(before: np.ndarray, after: np.ndarray, *, weights: Any = None) -> Any:
    return mean_of(after - before, weights)


def _taken_back(zero: np.ndarray, tuned: np.ndarray, calibrated: np.ndarray, *, weights: Any = None) -> Any:
    return mean_of(tuned - calibrated, weights) / mean_of(tuned - zero, weights)


def _change(figure: Callable[..., Any], tuned: Scored, calibrated: Scored, draws: Mapping[str, Any]) -> Interval:
    """How CoTS changes a figure of (confidence, correct, weights)."""

    def difference(c: np.ndarray, a: np.ndarray, d: np.ndarray, b: np.ndarray, *, weights: Any = None) -> Any:
        return figure(d, b, weights) - figure(c, a, weights)

    return bootstrap(difference, tuned.confidence, tuned.correct, calibrated.confidence, calibrated.correct, **draws)


def _verdict(change: Interval, below: str, above: str) -> str:
    return below if change.high < 0 else above if change.low > 0 else "a difference that may be chance"


def _percent(value: float) -> str:
    return f"{100 * value:.0f}%"


def _points(interval: Interval) -> str:
    """`-0.2 points, 95% interval -1.0 to +0.6`"""
    value, low, high = (f"{round(100 * x, 1) + 0.0:+.1f}" for x in (interval.value, interval.low, interval.high))
    return f"{value} points, 95% interval {low} to {high}"
