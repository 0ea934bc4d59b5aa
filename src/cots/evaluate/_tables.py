"""The tables as text: Markdown, LaTeX (booktabs), tidy CSV and a short one for the terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from ..metrics import METRICS, Metric
from ._compare import Cell
from ._summary import Summary
from ._words import aligned, arrow, mark, provenance, sentences, sizes, table_caption, warnings

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


def markdown(summary: Summary, figures: Sequence[tuple[str, str, str]] = ()) -> str:
    """A report to read on a code host; `figures` are (path, alternative text, caption)."""
    parts = ["# Calibration report", f"{sizes(summary)}; {provenance(summary)}. Made with cots {summary.version}."]
    parts += [f"> {text}" for text in warnings(summary)]
    parts += sentences(summary)
    for metric in METRICS.infos():
        parts += [f"## {metric.title}", _markdown_table(summary, metric), f"*{table_caption(summary, metric)}*"]
    if figures:
        parts.append("## Figures")
        parts += [f"![{alt}]({path})\n\n*{caption}*" for path, alt, caption in figures]
    if summary.failures:
        rows = [f"| {f.dataset} | `{_plain(f.sample)}` | {_plain(f.error)} |" for f in summary.failures]
        parts += ["## Failed samples", "\n".join(["| dataset | sample | error |", "|---|---|---|", *rows])]
    return "\n\n".join(parts) + "\n"


def latex_tables(summary: Summary) -> str:
    """One booktabs table a metric, to \\input into a paper."""
    head = "% Needs \\usepackage{booktabs} and \\usepackage{graphicx}.\n"
    return head + "\n".join(_latex_table(summary, metric) for metric in METRICS.infos())


def latex_document(tables: str, figures: Sequence[tuple[str, str]] = ()) -> str:
    """A document around the file `tables` and the figures, (path, caption) each."""
    shown = "\n".join(
        f"\\begin{{figure}}[p]\\centering\n\\includegraphics[width=\\linewidth,height=0.75\\textheight,keepaspectratio]"
        f"{{\\detokenize{{{path}}}}}\n\\caption{{{tex(caption)}}}\n\\end{{figure}}\n\\clearpage"
        for path, caption in figures
    )
    return (
        "\\documentclass[10pt]{article}\n\\usepackage[margin=2cm]{geometry}\n\\usepackage[T1]{fontenc}\n"
        "\\usepackage{booktabs}\n\\usepackage{graphicx}\n\\title{Calibration report}\n\\author{}\n\\date{}\n"
        f"\\begin{{document}}\n\\maketitle\n\\input{{{tables}}}\n\\clearpage\n{shown}\n\\end{{document}}\n"
    )


def tidy_csv(summary: Summary) -> str:
    """One row a figure: each seed's, then mean, std, low, high and the change against the base, as fractions."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for column in summary.columns:
        for method in summary.methods:
            for metric in METRICS.infos():
                if cell := summary.cell(column.name, method, metric.name):
                    writer.writerows(_csv_rows(summary, metric, cell, column.group or ""))
    return out.getvalue()


def text_table(summary: Summary) -> str:
    """Accuracy and ECE of every method, for a terminal."""
    wanted = [METRICS.info("accuracy"), METRICS.info("ece")]
    blocks = []
    for metric in wanted:
        rows = [[f"{metric.short} {metric.unit}", *(column.title for column in summary.columns)]]
        for method in summary.methods:
            cells = (summary.cell(column.name, method, metric.name) for column in summary.columns)
            rows.append([method, *(_figure(metric, cell) for cell in cells)])
        blocks.append(aligned(rows))
    return "\n\n".join([*blocks, f"{sizes(summary)}; {provenance(summary)}.", *warnings(summary)])


def tex(text: str) -> str:
    """`text` with LaTeX's special characters escaped.

    >>> print(tex("tpt_x & 5%"))
    tpt\\_x \\& 5\\%
    """
    return "".join(_TEX_SPECIAL.get(ch, ch) for ch in text)


def _figure(metric: Metric, cell: Cell | None) -> str:
    if cell is None:
        return "–"
    spread = f" ± {metric.show(cell.std).lstrip('+')}" if cell.std is not None else ""
    return f"{metric.show(cell.mean)}{spread}{f' {arrow(metric, cell)}' if cell.base else ''}"


def _interval(metric: Metric, cell: Cell | None) -> str:
    if cell is None or cell.low is None:
        return ""
    return f"[{metric.show(cell.low, interval=True)}, {metric.show(cell.high, interval=True)}]"


def _markdown_table(summary: Summary, metric: Metric) -> str:
    rows = [["method", *(_plain(column.title) for column in summary.columns)]]
    rows.append(["---", *("---:" for _ in summary.columns)])
    for method in summary.methods:
        row = [method]
        for column in summary.columns:
            cell = summary.cell(column.name, method, metric.name)
            figure = _figure(metric, cell)
            if method in summary.best(column.name, metric.name):
                figure = f"**{figure}**"
            row.append(f"{figure} {_interval(metric, cell)}".rstrip())
        rows.append(row)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _latex_table(summary: Summary, metric: Metric) -> str:
    titles = [tex(column.title) for column in summary.columns]
    lines = [
        "\\begin{table}[t]",
        "\\centering",
        f"\\caption{{{tex(table_caption(summary, metric, 'bare', 'in brackets'))}}}",
        f"\\label{{tab:cots-{metric.name.replace('_', '-')}}}",
        # Shrunk to the line where it is wider, never blown up.
        "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%",
        f"\\begin{{tabular}}{{l{'r' * len(titles)}}}",
        "\\toprule",
        " & ".join(["Method", *titles]) + r" \\",
        "\\midrule",
    ]
    for method in summary.methods:
        cells = [_latex_cell(summary, metric, column.name, method) for column in summary.columns]
        lines.append(" & ".join([f"\\texttt{{{tex(method)}}}", *cells]) + r" \\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}}", "\\end{table}", ""])


def _latex_cell(summary: Summary, metric: Metric, column: str, method: str) -> str:
    cell = summary.cell(column, method, metric.name)
    if cell is None:
        return "--"
    value = tex(metric.show(cell.mean))
    if method in summary.best(column, metric.name):
        value = f"\\textbf{{{value}}}"
    if cell.std is not None:
        value += f" {{\\scriptsize $\\pm$ {tex(metric.show(cell.std).lstrip('+'))}}}"
    if sign := _TEX_ARROWS[mark(metric, cell)]:
        value += f" ${sign}$" if cell.clear or sign == "=" else f" $({sign})$"
    if cell.low is not None:
        value += f" {{\\scriptsize {tex(_interval(metric, cell))}}}"
    return value


def _csv_rows(summary: Summary, metric: Metric, cell: Cell, group: str) -> Iterator[list[object]]:
    runs = summary.scored.get((cell.column, cell.method), {})
    counts = {seed: (len(run), run.failed) for seed, run in runs.items()}
    everything = [sum(pair) for pair in zip(*counts.values(), strict=True)] if counts else ["", ""]
    unit = "fraction" if metric.unit == "%" else metric.unit

    def row(statistic: str, value: float, seed: object, n: object, failed: object) -> list[object]:
        drawn = statistic in ("low", "high", "change_low", "change_high")
        return [
            summary.model, summary.weights_hash, cell.column, group, cell.method, cell.base or "", metric.name, unit,
            statistic, seed, repr(float(value)), n, failed, summary.bins if metric.bins else "", metric.bins,
            summary.level if drawn else "", summary.resamples if drawn else "",
        ]  # fmt: skip

    for seed, value in zip(cell.seeds, cell.values, strict=True):
        yield row("seed", value, seed, *counts.get(seed, ("", "")))
    for statistic in ("mean", "std", "low", "high", "change", "change_low", "change_high"):
        value = getattr(cell, statistic)
        if value is not None:
            yield row(statistic, value, "all", *everything)


def _plain(text: str) -> str:
    """`text` on one line of a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())
