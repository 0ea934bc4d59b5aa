"""The words of a report: captions with provenance, marks of change, the sentences at the top."""

from ..adapters import ADAPTERS
from ..bench._run import seeds_text
from ..metrics import METRICS, Metric
from ._compare import Cell
from ._summary import Column, Summary, group_noun

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
    level, seeds = f"{100 * summary.level:g}%", len(summary.seeds)
    spread = f"Mean ± standard deviation over {'up to ' if summary.missing else ''}{seeds} seeds"
    spread = spread if seeds > 1 else "One seed, so no spread over seeds"
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
            f"{_count(samples, 'sample')} failed ({named}); all figures exclude records without a result "
            f"({_count(records, 'record')})."
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


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
