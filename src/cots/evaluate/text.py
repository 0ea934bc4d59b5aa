"""The text of a report: captions with provenance, marks of change, sentences, and tables from templates."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ..bench import seeds_text
from ..methods import method_kind, method_title
from ..metrics import METRICS, Metric
from ._summary import ALPHA, Column, Estimate, Summary, group_noun

if TYPE_CHECKING:
    from jinja2 import Environment

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
_TEX_ARROWS = {"up": r"\uparrow", "down": r"\downarrow", "same": "=", "": ""}
_TEX_SPECIAL = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--", "\N{MINUS SIGN}": "$-$",
    "<": "$<$", ">": "$>$", "|": "$|$",
})  # fmt: skip


EQUAL_WIDTH = "equal-width bins (lo, hi], the first closed at 0"


def source_text(sizes: Sequence[str], bins: str, seeds: str, models: Iterable[tuple[str, str]]) -> str:
    """The end of every caption: `OxfordPets n = 298; 20 ...; seeds 0, 1; model mini (weights c895ab454030).`"""
    named = ", ".join(dict.fromkeys(f"{name} (weights {weights[:12]})" for name, weights in models))
    return "; ".join([*sizes, bins, seeds, f"model {named}"]) + "."


def provenance(summary: Summary, of: Column | None = None, bins: str = EQUAL_WIDTH) -> str:
    """`source_text` with `OxfordPets n = 298 to 300 (2 failed)` of all datasets, or of those in the column `of`."""
    sizes = []
    for column in summary.datasets:
        if of is not None and column.name not in (of.members or (of.name,)):
            continue
        least, most = summary.samples(column.name)
        size = f"{column.title} n = {least:,}"
        if most > least:
            size += f" to {most:,}"
        if failed := summary.failed(column.name):
            size += f" ({failed} failed)"
        sizes.append(size)
    seeds = seeds_text(summary.seeds)
    if summary.missing:
        seeds += " (not all of them for every method)"
    return source_text(sizes, f"{summary.bins} {bins}", seeds, [(summary.model, summary.weights_hash)])


def adapter(method: str) -> str:
    return method.partition("+")[0]


def kind(summary: Summary, method: str) -> str:
    """`episodic` or `online`; of a plug-in that is not loaded, by what the run recorded."""
    if known := method_kind(method):
        return known
    orders = []
    for settings in summary.manifest.settings.values():
        orders += [own.stream_order for name, own in settings.items() if adapter(name) == adapter(method)]
    return ("online" if any(orders) else "episodic") if orders else ""


def kinds(summary: Summary) -> str:
    """A sentence on which methods are online, so that the order of the records matters."""
    adapters = dict.fromkeys(map(adapter, summary.methods))
    online = [name for name in adapters if kind(summary, name) == "online"]
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
    against = summary.baseline or "the same adapter alone"
    arrows = f"An arrow ({hollow}) shows a change against {against}."
    if any(cell.metric == metric.name and cell.low is not None for cell in summary.cells.values()):
        interval = (
            f"in brackets the {level} bootstrap interval over images, with all seeds of an image together, "
            f"{summary.resamples:,} resamples, centred on the mean"
        )
        arrows = (
            f"An arrow shows a change against {against}: {filled} if the {level} interval of the "
            f"difference excludes zero, {hollow} if not."
        )
        if summary.baseline:
            arrows = (
                f"An arrow shows a change against {against}: {filled} if p is below {100 * ALPHA:g}% after Holm's "
                f"correction for all methods of the column, {hollow} if not."
            )
    parts = [f"{metric.title} in {metric.unit}, {metric.direction}: {metric.explained}.", f"{spread}; {interval}."]
    parts += [arrows] if any(cell.base for cell in summary.cells.values()) else []
    clipped = sum(run.clipped for runs in summary.scored.values() for run in runs.values())
    if metric.name == "nll" and clipped:
        parts.append(f"In {clipped:,} records the label has probability 0, counted as the smallest float32 (103 nats).")
    equal_mass = metric.bins == "equal mass"
    origin = provenance(summary, bins="ranges of equal mass") if equal_mass else provenance(summary)
    return " ".join([*parts, kinds(summary), origin])


def figure_caption(summary: Summary, column: Column, what: str) -> str:
    """The caption of a figure; `what` explains how to read it."""
    pooled = " The records of all seeds are pooled." if len(summary.seeds) > 1 else ""
    return f"{what}{pooled} {provenance(summary, column)}"


def overview_caption(summary: Summary, column: Column) -> str:
    return (
        f"{column.title}: accuracy against calibration error, means over seeds; a line joins a method to its adapter "
        f"alone. {provenance(summary, column)}"
    )


def mark(metric: Metric, cell: Estimate) -> str:
    """`up`, `down` or `same` as printed; empty without a base to compare with."""
    if cell.change is None:
        return ""
    moved = round(metric.scale * cell.change, metric.digits)
    if not moved:
        return "same"
    return "up" if moved > 0 else "down"


def arrow(metric: Metric, cell: Estimate) -> str:
    """The arrow of a change: filled if it is clear, hollow if it may be chance."""
    return ARROWS[mark(metric, cell)][not cell.clear]


def spoken_change(metric: Metric, cell: Estimate) -> str:
    """What the arrow means: `better than tpt: -3.21 [-5.0, -1.0]`."""
    if mark(metric, cell) == "same":
        return f"the same as {cell.base}"
    text = f"{'better' if cell.better else 'worse'} than {cell.base}: {metric.show(cell.change, signed=True)}"
    return f"{text} {interval(metric, cell.change_low, cell.change_high, signed=True)}".rstrip()


def sentences(summary: Summary) -> list[str]:
    """One sentence per overview column: the best calibrated method, and its change against the base."""
    columns = summary.averages or summary.datasets[:3]
    return list(filter(None, [_sentence(summary, column) for column in columns]))


def warnings(summary: Summary) -> list[str]:
    """Warnings about the figures: an unfinished run, failed samples, few samples."""
    texts = []
    if not summary.complete:
        parts = len(summary.datasets) * len(summary.methods) * len(summary.seeds)
        absent = f"{len(summary.missing)} of {parts} parts (a method on a dataset with a seed) have no finished records"
        texts.append(
            f"This run is not finished{f': {absent}' if summary.missing else ''}. The figures can still change."
        )
    if summary.failures:
        named, samples = [], 0
        for column in summary.datasets:
            if failed := summary.failed(column.name):
                named.append(f"{failed} of {column.title}")
                samples += failed
        records = sum(len(failure.where) for failure in summary.failures)
        texts.append(
            f"{counted(samples, 'sample')} failed ({', '.join(named)}); all figures exclude records without a result "
            f"({counted(records, 'record')})."
        )
    small = [c.title for c in summary.datasets if summary.samples(c.name)[0] < 50 * summary.bins]
    if small:
        named = "all datasets here" if len(small) == len(summary.datasets) > 3 else ", ".join(small)
        texts.append(
            f"With fewer than {50 * summary.bins:,} samples ({named}), a {summary.bins}-bin calibration error is above "
            "zero by chance alone; rely on the intervals and on differences with a filled arrow."
        )
    return texts


def _sentence(summary: Summary, column: Column) -> str:
    cells = [summary.cells[column.name, method, "ece"] for _, method in summary.shown(column)]
    if len(cells) < 2:
        return ""
    where = f"On {column.title}"
    if column.average:
        where = f"Averaged over {len(column.members)} {group_noun(column.group)}"
    best, ece = min(cells, key=lambda cell: cell.mean), METRICS.info("ece")
    text = f"{where}, {best.method} has the lowest calibration error (ECE): {ece.show(best.mean)}%"
    calibrated = [cell for cell in cells if cell.base is not None]
    if best.base is None and calibrated:
        best = min(calibrated, key=lambda cell: cell.mean)
        text += f". Of the calibrated methods, {best.method} has the lowest: {ece.show(best.mean)}%"
    if best.base:
        text += _against_base(summary, column, best)
    return f"{text}."


def _against_base(summary: Summary, column: Column, cell: Estimate) -> str:
    ece, accuracy = METRICS.info("ece"), METRICS.info("accuracy")
    right = summary.cells[column.name, cell.method, "accuracy"]
    chance = "" if cell.clear else ", a difference within chance"
    text = f" ({cell.base} alone: {ece.show(cell.mean - (cell.change or 0.0))}%{chance})"
    if mark(accuracy, right) == "same":
        return f"{text}. Both are right equally often: {accuracy.show(right.mean)}%"
    before = accuracy.show(right.mean - (right.change or 0.0))
    return f"{text}. It is right {accuracy.show(right.mean)}% of the time, {cell.base} {before}%"


def counted(number: int, noun: str) -> str:
    """`1 sample`, `2 samples`"""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def render(template: str, **given: Any) -> str:
    """Render a file of templates/, which can use the public names of this module."""
    return _environment(template.rpartition(".")[2]).get_template(template).render(**given).lstrip()


def source(name: str) -> str:
    """A file of templates/ as it is."""
    return (files("cots.evaluate") / "templates" / name).read_text("utf-8")


def digest(content: str, kind: str) -> bytes:
    return hashlib.new(kind, content.encode()).digest()


def source_hash(content: str) -> str:
    """Of a style or script, for a page's content security policy, which lets nothing else run."""
    return f"sha384-{base64.b64encode(digest(content, 'sha384')).decode()}"


@cache
def _environment(ending: str) -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # LaTeX uses braces, so its templates have other delimiters.
    marks: dict[str, Any] = {"variable_start_string": "<<", "variable_end_string": ">>", "block_start_string": "<%"}
    marks |= {"block_end_string": "%>", "comment_start_string": "<#", "comment_end_string": "#>"}
    environment = Environment(
        loader=PackageLoader("cots.evaluate"),
        autoescape=ending == "html",
        finalize=_plain_markdown if ending == "md" else None,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        **(marks if ending == "tex" else {}),
    )
    environment.filters |= {"tex": tex, "one_line": one_line, "method_title": method_title}
    environment.globals |= {name: value for name, value in globals().items() if not name.startswith("_")}
    return environment


def text_table(summary: Summary) -> str:
    """Accuracy, ECE and NLL of every method, for a terminal."""
    blocks = []
    for metric in map(METRICS.info, ("accuracy", "ece", "nll")):
        rows = [[f"{metric.short} {metric.unit}", *(column.title for column in summary.columns)]]
        for method in summary.methods:
            row = [method]
            for column in summary.columns:
                cell = summary.cell(column.name, method, metric.name)
                row.append("–" if cell is None else _figure(metric, cell))
            rows.append(row)
        blocks.append(aligned(rows))
    return "\n\n".join([*blocks, provenance(summary), kinds(summary), *warnings(summary)])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text in columns, the first left-aligned and the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        line = first.ljust(widths[0])
        for cell, width in zip(others, widths[1:], strict=True):
            line += "  " + cell.rjust(width)
        lines.append(line.rstrip())
    return "\n".join(lines)


def tex(text: str) -> str:
    """`text` with LaTeX's special characters escaped."""
    return text.translate(_TEX_SPECIAL)


def _plain_markdown(value: Any) -> Any:
    """Text from a manifest, escaped so that it is not HTML, a link or a new paragraph."""
    if not isinstance(value, str):
        return value
    return re.sub(r"\s*[\r\n]\s*", " ", value.replace("&", "&amp;").replace("<", "&lt;").replace("](", "]\\("))


def one_line(text: str) -> str:
    """`text` as a cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())


def _figure(metric: Metric, cell: Estimate) -> str:
    text = metric.show(cell.mean)
    if cell.std is not None:
        text += f" ± {metric.show(cell.std).lstrip('+')}"
    if cell.base:
        text += f" {arrow(metric, cell)}"
    return text


def interval(metric: Metric, low: float | None, high: float | None, signed: bool = False) -> str:
    """`[1.2, 3.4]`; empty without ends."""
    if low is None:
        return ""
    return f"[{metric.show(low, interval=True, signed=signed)}, {metric.show(high, interval=True, signed=signed)}]"


def markdown_cell(summary: Summary, metric: Metric, column: str, method: str) -> str:
    if (cell := summary.cell(column, method, metric.name)) is None:
        return "–"
    bold = "**" if method in summary.best(column, metric.name) else ""
    return f"{bold}{_figure(metric, cell)}{bold} {interval(metric, cell.low, cell.high)}".rstrip()


def latex_cell(summary: Summary, metric: Metric, column: str, method: str) -> str:
    if (cell := summary.cell(column, method, metric.name)) is None:
        return "--"
    value = tex(metric.show(cell.mean))
    if method in summary.best(column, metric.name):
        value = f"\\textbf{{{value}}}"
    if cell.std is not None:
        value += f" {{\\scriptsize $\\pm$ {tex(metric.show(cell.std).lstrip('+'))}}}"
    if sign := _TEX_ARROWS[mark(metric, cell)]:
        value += f" ${sign}$" if cell.clear or sign == "=" else f" $({sign})$"
    within = tex(interval(metric, cell.low, cell.high))
    return f"{value} {{\\scriptsize {within}}}" if within else value
