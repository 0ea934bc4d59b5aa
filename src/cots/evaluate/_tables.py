"""The text of a report: templates, and tables in Markdown, LaTeX (booktabs), tidy CSV and for the terminal."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

from ..metrics import METRICS, Metric
from . import _words as words
from ._summary import Cell, Summary

if TYPE_CHECKING:
    from jinja2 import Environment

CSV_COLUMNS = (
    "model", "weights_hash", "dataset", "group", "method", "base", "metric", "unit", "statistic", "seed", "value", "n",
    "failed", "bins", "edges", "level", "resamples",
)  # fmt: skip
_TEX_ARROWS = {"up": r"\uparrow", "down": r"\downarrow", "same": "=", "": ""}
_TEX_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--", "\N{MINUS SIGN}": "$-$",
    "<": "$<$", ">": "$>$", "|": "$|$",
}  # fmt: skip
Drawn = Sequence[tuple[str, str, str]]  # figures: path, title, caption


def render(template: str, **given: Any) -> str:
    """Render a file of templates/; it can use the names of `_words` and the cells of tables."""
    return _environment(template.rpartition(".")[2]).get_template(template).render(**given).lstrip()


@cache
def _environment(ending: str) -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # LaTeX uses braces, so its templates have other delimiters.
    marks: dict[str, Any] = {"variable_start_string": "<<", "variable_end_string": ">>", "block_start_string": "<%"}
    marks |= {"block_end_string": "%>", "comment_start_string": "<#", "comment_end_string": "#>"}
    found = Environment(
        loader=PackageLoader("cots.evaluate"),
        autoescape=ending == "html",
        finalize=_plain_markdown if ending == "md" else None,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        **(marks if ending == "tex" else {}),
    )
    found.filters |= {"tex": tex, "one_line": one_line}
    found.globals |= {name: getattr(words, name) for name in vars(words) if not name.startswith("_")}
    found.globals |= {"markdown_cell": _markdown_cell, "latex_cell": _latex_cell}
    found.globals["adapter"] = lambda method: method.partition("+")[0]
    return found


def markdown(summary: Summary, figures: Drawn = (), sets: dict[str, Any] | None = None) -> str:
    """A report to read on a code host."""
    tables = {"metrics": METRICS.infos(), "sets": sets, "costs": list(costs(summary))}
    return render("report.md", summary=summary, figures=figures, **tables).rstrip() + "\n"


def costs(summary: Summary) -> Iterator[tuple[str, ...]]:
    """Mean temperature of each method, and milliseconds of encoding and of adaptation with calibration."""
    for method in summary.methods:
        runs = [run for (_, name), found in summary.scored.items() if name == method for run in found.values()]
        if runs:
            columns = ([getattr(run, name) for run in runs] for name in ("tau", "encoding", "milliseconds"))
            means = (sum(column) / len(runs) for column in columns)
            yield method, *("–" if math.isnan(value) else f"{value:.2f}" for value in means)


def latex_tables(summary: Summary) -> str:
    r"""One booktabs table per metric, to \input into a paper."""
    return render("tables.tex", summary=summary, metrics=METRICS.infos())


def latex_document(figures: Drawn = ()) -> str:
    """A document around tables.tex and the figures."""
    return render("report.tex", figures=figures)


def tidy_csv(summary: Summary) -> str:
    """One row per figure: each seed's, then mean, std, low, high and the change against the base, as fractions."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for column, method, metric in product(summary.columns, summary.methods, METRICS.infos()):
        if cell := summary.cell(column.name, method, metric.name):
            writer.writerows(_csv_rows(summary, metric, cell, column.group or ""))
    return out.getvalue()


def text_table(summary: Summary) -> str:
    """Accuracy and ECE of every method, for a terminal."""
    blocks = []
    for metric in (METRICS.info("accuracy"), METRICS.info("ece")):
        rows = [[f"{metric.short} {metric.unit}", *(column.title for column in summary.columns)]]
        for method in summary.methods:
            cells = (summary.cell(column.name, method, metric.name) for column in summary.columns)
            rows.append([method, *(_figure(metric, cell) for cell in cells)])
        blocks.append(aligned(rows))
    notes = (f"{words.sizes(summary)}; {words.provenance(summary)}.", words.kinds(summary), *words.warnings(summary))
    return "\n\n".join([*blocks, *notes])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text in columns, the first left-aligned and the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ((f"{cell:{'>' if i else '<'}{widths[i]}}" for i, cell in enumerate(row)) for row in rows)
    return "\n".join("  ".join(line).rstrip() for line in lines)


def tex(text: str) -> str:
    """`text` with LaTeX's special characters escaped."""
    return "".join(_TEX_SPECIAL.get(ch, ch) for ch in text)


def _plain_markdown(value: Any) -> Any:
    """Text from a manifest, escaped so that it is not HTML, a link or a new paragraph."""
    if not isinstance(value, str):
        return value
    return re.sub(r"\s*[\r\n]\s*", " ", value.replace("&", "&amp;").replace("<", "&lt;").replace("](", "]\\("))


def one_line(text: str) -> str:
    """`text` as a cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())


def _figure(metric: Metric, cell: Cell | None) -> str:
    if cell is None:
        return "–"
    spread = f" ± {metric.show(cell.std).lstrip('+')}" if cell.std is not None else ""
    return f"{metric.show(cell.mean)}{spread}{f' {words.arrow(metric, cell)}' if cell.base else ''}"


def _interval(metric: Metric, cell: Cell | None) -> str:
    if cell is None or cell.low is None:
        return ""
    return f"[{metric.show(cell.low, interval=True)}, {metric.show(cell.high, interval=True)}]"


def _markdown_cell(summary: Summary, metric: Metric, column: str, method: str) -> str:
    cell = summary.cell(column, method, metric.name)
    bold = "**" if method in summary.best(column, metric.name) else ""
    return f"{bold}{_figure(metric, cell)}{bold} {_interval(metric, cell)}".rstrip()


def _latex_cell(summary: Summary, metric: Metric, column: str, method: str) -> str:
    cell = summary.cell(column, method, metric.name)
    if cell is None:
        return "--"
    value = tex(metric.show(cell.mean))
    if method in summary.best(column, metric.name):
        value = f"\\textbf{{{value}}}"
    if cell.std is not None:
        value += f" {{\\scriptsize $\\pm$ {tex(metric.show(cell.std).lstrip('+'))}}}"
    if sign := _TEX_ARROWS[words.mark(metric, cell)]:
        value += f" ${sign}$" if cell.clear or sign == "=" else f" $({sign})$"
    return f"{value} {{\\scriptsize {tex(_interval(metric, cell))}}}" if cell.low is not None else value


def _csv_rows(summary: Summary, metric: Metric, cell: Cell, group: str) -> Iterator[list[object]]:
    counts = {seed: (len(run), run.failed) for seed, run in summary.scored.get((cell.column, cell.method), {}).items()}
    total = [sum(pair) for pair in zip(*counts.values(), strict=True)] if counts else ["", ""]
    unit = "fraction" if metric.unit == "%" else metric.unit
    binned = [summary.bins if metric.bins else "", metric.bins]
    head = [summary.model, summary.weights_hash, cell.column, group, cell.method, cell.base or "", metric.name, unit]
    for seed, value in zip(cell.seeds, cell.values, strict=True):
        yield [*head, "seed", seed, repr(value), *counts.get(seed, ("", "")), *binned, "", ""]
    for statistic in ("mean", "std", "low", "high", "change", "change_low", "change_high"):
        value = getattr(cell, statistic)
        drawn = [summary.level, summary.resamples] if statistic.endswith(("low", "high")) else ["", ""]
        if value is not None:
            yield [*head, statistic, "all", repr(float(value)), *total, *binned, *drawn]
