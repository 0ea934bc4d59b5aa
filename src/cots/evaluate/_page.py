"""The page: one self-contained HTML file that works offline, in light and dark, on a phone and with a screen reader."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence

from ..metrics import METRICS, Metric
from ._charts import colour, dot, histogram_svg, risk_svg, scatter_svg, series
from ._compare import Cell, base_of
from ._reliability import reliability_svg
from ._style import REPORT_STYLE
from ._summary import Column, Summary
from ._tables import ARROWS
from ._words import (
    HISTOGRAM,
    RELIABILITY,
    RISK,
    figure_caption,
    mark,
    overview_caption,
    provenance,
    sentences,
    sizes,
    spoken_change,
    table_caption,
    warnings,
)

MAIN = ("accuracy", "ece")
_LISTED = 50  # failed samples shown; the CSV and the run folder have all


def report_page(summary: Summary, title: str = "Calibration report") -> str:
    """The whole page for a summary."""
    open_sets = 4  # more than these unfolded would make the page a scroll without end
    sets = "".join(_dataset(summary, column, i < open_sets) for i, column in enumerate(summary.datasets))
    others = "".join(
        f"<details><summary>{_e(m.title)}</summary>{_table(summary, m)}</details>"
        for m in METRICS.infos()
        if m.name not in MAIN
    )
    links = [("overview", "Overview"), ("tables", "Tables"), ("other", "Other metrics"), ("figures", "Figures")]
    links += [("failed", "Failed samples")] if summary.failures else []
    links += [("run", "This run")]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_e(title)}: {_e(summary.model)}</title><style>{REPORT_STYLE}</style></head><body>
<a class="skip" href="#tables">Skip to the tables</a><main>
<h1>{_e(title)}</h1>
<p class="soft wide-text">{_e(sizes(summary))}; {_e(provenance(summary))}.</p>
{_facts(summary)}
{"".join(f'<p class="warn" role="note">{_e(text)}</p>' for text in warnings(summary))}
<nav aria-label="On this page">{"".join(f'<a href="#{to}">{_e(name)}</a>' for to, name in links)}</nav>
<section id="overview"><h2>Overview</h2>
{"".join(f'<p class="lead">{_e(text)}</p>' for text in sentences(summary))}
{_scatters(summary)}</section>
<section id="tables"><h2>Accuracy and calibration error</h2>
{"".join(_table(summary, METRICS.info(name)) for name in MAIN)}</section>
<section id="other"><h2>Other metrics</h2>{others}</section>
<section id="figures"><h2>Figures</h2>{_key()}{sets}</section>
{_failed(summary)}
{_about(summary)}
</main></body></html>
"""


def _facts(summary: Summary) -> str:
    facts = {
        "model": _e(summary.model),
        "weights": f"<code>{_e(summary.weights_hash[:12])}</code>",
        "datasets": str(len(summary.datasets)),
        "samples": f"{sum(summary.samples(column.name)[1] for column in summary.datasets):,}",
        "methods": str(len(summary.methods)),
        "seeds": _e(", ".join(map(str, summary.seeds))),
    }
    return f'<dl class="facts">{"".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in facts.items())}</dl>'


def _scatters(summary: Summary) -> str:
    columns = [column for column in summary.columns if column.average] or list(summary.datasets[:4])
    figures = []
    for column in columns:
        points = [
            (method, i, right.mean, ece.mean, base_of(method, summary.methods))
            for i, method in enumerate(summary.methods)
            if (right := summary.cell(column.name, method, "accuracy"))
            and (ece := summary.cell(column.name, method, "ece"))
        ]
        if points:
            caption = overview_caption(summary, column)
            figures.append(
                _figure(scatter_svg(points, column.title), caption, _legend([(m, i, "") for m, i, *_ in points]))
            )
    return "".join(figures)


def _table(summary: Summary, metric: Metric) -> str:
    # A wide table scrolls sideways: what most readers look for comes first there, and last, as in papers, elsewhere.
    wide = len(summary.columns) > 7
    columns = sorted(summary.columns, key=lambda column: not column.average) if wide else summary.columns
    head = "".join(
        f'<th scope="col"{" class=avg" if column.average else ""}>{_e(column.title)}</th>' for column in columns
    )
    best = {column.name: summary.best(column.name, metric.name) for column in columns}
    rows = []
    for i, method in enumerate(summary.methods):
        cells = "".join(_cell(summary, metric, column, method, best[column.name]) for column in columns)
        # A line above each adapter keeps a base and what is built on it together.
        group = method.partition("+")[0]
        first = i == 0 or summary.methods[i - 1].partition("+")[0] != group
        name = f'<i class="{dot(i)}" style="{colour(i)}"></i>{_e(method)}'
        rows.append(f'<tr{" class=base" if first else ""}><th scope="row">{name}</th>{cells}</tr>')
    short = f"{metric.short} {metric.unit}"
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_e(metric.title)}"><table>'
        f'<caption><span class="at">{_e(metric.title)} <span class="soft">{_e(metric.unit)}, {_e(metric.direction)}'
        "</span></span></caption>"
        f'<thead><tr><th scope="col">{_e(short)}</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        f'<p class="note">{_e(table_caption(summary, metric))}</p>'
    )


def _cell(summary: Summary, metric: Metric, column: Column, method: str, best: set[str]) -> str:
    cell = summary.cell(column.name, method, metric.name)
    kinds = [kind for kind, on in (("avg", column.average), ("best", method in best)) if on]
    start = f'<td class="{" ".join(kinds)}">' if kinds else "<td>"
    if cell is None:
        return f'{start}<span class="same" title="no records">–</span></td>'
    spread = f' <span class="pm">± {metric.show(cell.std).lstrip("+")}</span>' if cell.std is not None else ""
    interval = (
        f"<small>[{metric.show(cell.low, interval=True)}, {metric.show(cell.high, interval=True)}]</small>"
        if cell.low is not None
        else ""
    )
    return f"{start}<b>{metric.show(cell.mean)}</b>{spread} {_arrow(metric, cell)}{interval}</td>"


def _arrow(metric: Metric, cell: Cell) -> str:
    """The mark and, for whoever points at it or listens, what it means."""
    if cell.base is None:
        return '<span class="arrow"></span>'
    which = mark(metric, cell)
    kind = "same" if which == "same" else "up" if cell.better else "down"
    words = _e(spoken_change(metric, cell))
    sign = ARROWS[which][not cell.clear]
    return (
        f'<span class="arrow {kind}" title="{words}"><span aria-hidden="true">{sign}</span>'
        f'<span class="tip">{words}</span></span>'
    )


def _dataset(summary: Summary, column: Column, unfolded: bool) -> str:
    reliability, histograms, curves, legend = [], [], [], []
    for i, method in enumerate(summary.methods):
        pooled = summary.pooled(column.name, method)
        ece, aurc = (summary.cell(column.name, method, name) for name in ("ece", "aurc"))
        if pooled is None or ece is None or aurc is None:
            continue
        # The bars pool the seeds; the figure beside them is the table's, so that a page never shows two.
        bars = dataclasses.replace(pooled.reliability(), value=ece.mean)
        note = f"accuracy {100 * pooled.correct.mean():.1f}%, mean confidence {100 * pooled.mean_confidence:.1f}%"
        reliability.append(f"<figure>{reliability_svg(bars, method, note)}</figure>")
        histograms.append(
            f"<figure>{histogram_svg(pooled.confidence, pooled.correct, title=method, bins=summary.bins)}</figure>"
        )
        curves.append((method, i, pooled.confidence, pooled.correct))
        legend.append((method, i, f"{METRICS.info('aurc').show(aurc.mean)}%"))
    if not curves:
        return f"<h3>{_e(column.title)}</h3><p>No records yet.</p>"
    alpha = f", alpha {column.alpha:.2f}" if column.alpha is not None else ""
    return f"""<details class="set"{" open" if unfolded else ""}>
<summary>{_e(column.title)} <span class="soft">{column.classes:,} classes{alpha}</span></summary>
<h3>Reliability</h3>{_row("Reliability diagrams", column, reliability)}
<p class="note">{_e(figure_caption(summary, column, RELIABILITY))}</p>
<h3>Confidence</h3>{_row("Confidence histograms", column, histograms)}
<p class="note">{_e(figure_caption(summary, column, HISTOGRAM))}</p>
<h3>Risk and coverage</h3>
{_figure(risk_svg(curves, column.title), figure_caption(summary, column, RISK), _legend(legend))}</details>"""


def _row(what: str, column: Column, figures: Sequence[str]) -> str:
    """Small figures side by side; on a phone they scroll sideways, so the row can take the keyboard's focus."""
    return (
        f'<div class="grid" tabindex="0" role="group" aria-label="{what}, {_e(column.title)}">{"".join(figures)}</div>'
    )


def _figure(svg: str, caption: str, legend: str = "") -> str:
    return f'<figure>{svg}{legend}</figure><p class="note">{_e(caption)}</p>'


def _legend(entries: Sequence[tuple[str, int, str]]) -> str:
    items = "".join(
        f'<li><svg viewBox="0 0 24 10" aria-hidden="true"><path class="line" {series(i)} d="M0 5 H24"/></svg>{_e(name)}'
        f"{f' <small>({_e(note)})</small>' if note else ''}</li>"
        for name, i, note in entries
    )
    return f'<ul class="legend">{items}</ul>'


def _key() -> str:
    spots = (("acc", "right"), ("over", "over-confident by, or wrong"), ("under", "under-confident by"))
    return (
        '<p class="soft key">'
        + "".join(f'<i><span style="background:var(--{kind})"></span>{words}</i> ' for kind, words in spots)
        + "</p>"
    )


def _failed(summary: Summary) -> str:
    if not summary.failures:
        return ""
    rows = "".join(
        f"<tr><th scope=row>{_e(f.dataset)}</th><td>{_e(f.sample)}</td><td>{_e(f.error)}</td>"
        f"<td>{len(f.methods)} methods, seeds {_e(', '.join(map(str, f.seeds)))}</td></tr>"
        for f in summary.failures[:_LISTED]
    )
    more = len(summary.failures) - _LISTED
    rest = f'<p class="note">and {more:,} more in the run folder.</p>' if more > 0 else ""
    return (
        '<section id="failed"><h2>Failed samples</h2>'
        + _plain_table(
            "Samples without a result, left out of the figures", ("dataset", "sample", "error", "where"), rows
        )
        + f"{rest}</section>"
    )


def _about(summary: Summary) -> str:
    rows = []
    for method in summary.methods:
        runs = [run for (_, m), found in summary.scored.items() if m == method for run in found.values()]
        if runs:
            tau, took = (sum(getattr(run, what) for run in runs) / len(runs) for what in ("tau", "milliseconds"))
            cells = "".join(f"<td>{'–' if value != value else f'{value:.2f}'}</td>" for value in (tau, took))
            rows.append(f"<tr><th scope=row>{_e(method)}</th>{cells}</tr>")
    table = _plain_table(
        "Temperature and time of a sample, means over datasets and seeds",
        ("method", "tau", "milliseconds"),
        "".join(rows),
    )
    return (
        f'<section id="run"><h2>This run</h2>{table}'
        f'<p class="note">{_e(sizes(summary))}; {_e(provenance(summary))}.</p>'
        f'<footer class="soft">Made with cots {_e(summary.version)} from a run of {_e(summary.created)}, precision '
        f"{_e(summary.precision)}, weights <code>{_e(summary.weights_hash)}</code>.</footer></section>"
    )


def _plain_table(caption: str, head: Sequence[str], rows: str) -> str:
    cells = "".join(f'<th scope="col">{name}</th>' for name in head)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}"><table>'
        f'<caption><span class="at">{caption}</span></caption><thead><tr>{cells}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _e(text: object) -> str:
    return html.escape(str(text))
