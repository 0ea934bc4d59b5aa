"""What a report says in words: captions with their provenance, marks of change, the sentences at the top."""

from __future__ import annotations

from collections.abc import Sequence

from ..metrics import METRICS, Metric
from ._compare import Cell
from ._summary import Column, Summary, group_noun

ARROWS = {"up": ("▲", "△"), "down": ("▼", "▽"), "same": ("=", "="), "": ("", "")}
EDGE_RULE = "(lo, hi], the first closed at 0"


def provenance(summary: Summary) -> str:
    """Bins, edge rule, seeds and model, for every caption."""
    seeds = f"seed{'s' if len(summary.seeds) > 1 else ''} {', '.join(map(str, summary.seeds))}"
    seeds += " (not all of them for every method)" if summary.missing else ""
    return (
        f"{summary.bins} equal-width bins {EDGE_RULE}; {seeds}; "
        f"model {summary.model} (weights {summary.weights_hash[:12]})"
    )


def size(summary: Summary, column: Column) -> str:
    """`OxfordPets n = 298 to 300 (2 failed)`"""
    least, most = summary.samples(column.name)
    failed = summary.failed(column.name)
    count = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    return f"{column.title} n = {count}{f' ({failed} failed)' if failed else ''}"


def sizes(summary: Summary, of: Column | None = None) -> str:
    """The sizes of all datasets, or of those that the column `of` is made of."""
    names = (of.members or (of.name,)) if of else [column.name for column in summary.datasets]
    return "; ".join(size(summary, column) for column in summary.datasets if column.name in names)


def table_caption(summary: Summary, metric: Metric, filled: str = "filled", hollow: str = "hollow") -> str:
    """Everything a table needs to be read away from its page; `filled` and `hollow` are the two kinds of arrow."""
    parts = [f"{metric.title} in {metric.unit}, {metric.direction}: {metric.explained}."]
    parts.append(f"{_figures(summary)}{_interval_words(summary, metric)}.")
    if any(c.base for c in summary.cells.values()):
        parts.append(_mark_words(summary, metric, filled, hollow))
    if metric.bins == "equal mass":
        bins = f"{summary.bins} ranges of equal mass; " + provenance(summary).split("; ", 1)[1]
    else:
        bins = provenance(summary)
    clipped = sum(run.clipped for runs in summary.scored.values() for run in runs.values())
    if metric.name == "nll" and clipped:
        parts.append(
            f"{clipped:,} records gave their label probability 0 and count as the smallest float32 (103 nats)."
        )
    return " ".join([*parts, f"{sizes(summary)}; {bins}."])


def figure_caption(summary: Summary, column: Column, what: str) -> str:
    """`what` is the sentence that says how to read the figure."""
    pooled = " The records of all seeds are pooled." if len(summary.seeds) > 1 else ""
    return f"{what}{pooled} {size(summary, column)}; {provenance(summary)}."


def overview_caption(summary: Summary, column: Column) -> str:
    return (
        f"{column.title}: accuracy against calibration error, means over seeds; a line joins a method to its adapter "
        f"alone. {sizes(summary, column)}; {provenance(summary)}."
    )


RELIABILITY = (
    "Of the samples given a confidence (across), how many were right (up, blue). The gap to the diagonal is "
    "over-confidence (red) or under-confidence (amber); a tick at the base marks an empty bin; the strip below counts "
    "samples. The ECE printed is the table's."
)
HISTOGRAM = (
    "How many samples were given a confidence: right answers up, wrong ones down, each side with a scale of its own "
    "(its largest count stands beside it). The solid line is the mean confidence, the dashed one the accuracy: their "
    "distance is the confidence gap."
)
RISK = (
    "The share of errors among the samples that are kept (up) when only the most confident share is kept (across). "
    "Lower is better; in brackets the area under the curve."
)


def mark(metric: Metric, cell: Cell) -> str:
    """`up`, `down` or `same` as printed; nothing where there is no base to compare with."""
    if cell.change is None:
        return ""
    moved = round(metric.scale * cell.change, metric.digits)
    return "same" if not moved else "up" if moved > 0 else "down"


def arrow(metric: Metric, cell: Cell) -> str:
    """Filled where the change is clear, hollow where it may be chance."""
    return ARROWS[mark(metric, cell)][not cell.clear]


def spoken_change(metric: Metric, cell: Cell) -> str:
    """What the arrow says: `better than tpt by 3.21 (95% interval 1.0 to 4.2)`."""
    if mark(metric, cell) == "same":
        return f"the same as {cell.base}"
    text = f"{'better' if cell.better else 'worse'} than {cell.base}: {metric.show(cell.change, signed=True)}"
    if cell.change_low is not None:
        ends = (metric.show(end, interval=True, signed=True) for end in (cell.change_low, cell.change_high))
        text += f" [{', '.join(ends)}]"
    return text


def sentences(summary: Summary) -> list[str]:
    """One sentence for each overview column: which method is best calibrated, and what that changes."""
    averages = [column for column in summary.columns if column.average]
    return [text for column in averages or summary.datasets[:3] if (text := _sentence(summary, column))]


def _sentence(summary: Summary, column: Column) -> str:
    found = [cell for method in summary.methods if (cell := summary.cell(column.name, method, "ece"))]
    if len(found) < 2:
        return ""
    least = min(found, key=lambda cell: cell.mean)
    where = (
        f"Averaged over {len(column.members)} {group_noun(column.group)}" if column.average else f"On {column.title}"
    )
    text = f"{where}, {least.method} has the lowest calibration error, ECE {METRICS.info('ece').show(least.mean)}%"
    if least.base is not None:
        return f"{text}, {_against_base(summary, column, least)}."
    built = [cell for cell in found if cell.base is not None]
    if not built:
        return f"{text}."
    best = min(built, key=lambda cell: cell.mean)
    return (
        f"{text}. Of the methods on top of an adapter it is {best.method}, ECE {METRICS.info('ece').show(best.mean)}%, "
        f"{_against_base(summary, column, best)}."
    )


def _against_base(summary: Summary, column: Column, cell: Cell) -> str:
    ece, accuracy = METRICS.info("ece"), METRICS.info("accuracy")
    right = summary.cell(column.name, cell.method, "accuracy")
    assert cell.change is not None
    assert right is not None
    assert right.change is not None
    chance = "" if cell.clear else " (a difference within chance)"
    text = f"against {ece.show(cell.mean - cell.change)}% for {cell.base} alone{chance}"
    if mark(accuracy, right) == "same":
        return f"{text}, at the same accuracy of {accuracy.show(right.mean)}%"
    return f"{text}; accuracy {accuracy.show(right.mean)}% against {accuracy.show(right.mean - right.change)}%"


def warnings(summary: Summary) -> list[str]:
    """What a reader must know before the figures: an unfinished run, failed samples, few samples."""
    found = []
    if not summary.complete:
        parts = len(summary.datasets) * len(summary.methods) * len(summary.seeds)
        left_out = (
            f": {len(summary.missing)} of {parts} parts (a method on a dataset with a seed) have no finished records "
            "and are left out"
            if summary.missing
            else ""
        )
        found.append(f"This run is not finished{left_out}. The figures can still change.")
    if summary.failures:
        named = [f"{summary.failed(c.name)} of {c.title}" for c in summary.datasets if summary.failed(c.name)]
        samples = sum(summary.failed(column.name) for column in summary.datasets)
        records = sum(failure.records for failure in summary.failures)
        found.append(
            f"{_count(samples, 'sample')} failed ({', '.join(named)}) and {'is' if samples == 1 else 'are'} left out "
            f"of every figure where there was no result ({_count(records, 'record')})."
        )
    small = [c.title for c in summary.datasets if summary.samples(c.name)[0] < 50 * summary.bins]
    if small:
        named = "all sets here" if len(small) == len(summary.datasets) > 3 else ", ".join(small)
        found.append(
            f"With fewer than {50 * summary.bins:,} samples ({named}) a {summary.bins}-bin calibration "
            "error is above zero by chance alone; trust the intervals, and differences with a filled arrow."
        )
    return found


def _figures(summary: Summary) -> str:
    if len(summary.seeds) == 1:
        return "One seed, so no spread over seeds"
    return f"Mean ± standard deviation over {'up to ' if summary.missing else ''}{len(summary.seeds)} seeds"


def _interval_words(summary: Summary, metric: Metric) -> str:
    if not metric.resampled:
        return "; no interval, because all classes would have to be sorted again for each resample"
    return (
        f"; in brackets the {100 * summary.level:g}% bootstrap interval over images, all seeds of an image together, "
        f"{summary.resamples:,} resamples, centred on the mean"
    )


def _mark_words(summary: Summary, metric: Metric, filled: str, hollow: str) -> str:
    if not metric.resampled:
        return f"An arrow ({hollow}) shows where the figure moved against the same adapter alone."
    return (
        f"An arrow shows where the figure moved against the same adapter alone: {filled} when the "
        f"{100 * summary.level:g}% interval of the difference leaves out zero, {hollow} when it does not."
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text in columns, the first to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
