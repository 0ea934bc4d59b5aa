"""Figures for papers and slides: the page's diagrams drawn with matplotlib, as SVG, PNG and PDF."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..metrics import METRICS
from ._charts import confidence_counts
from ._compare import base_of
from ._score import Scored
from ._summary import Column, Summary
from ._words import HISTOGRAM, RELIABILITY, RISK, figure_caption, overview_caption

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("svg", "png", "pdf")
COLOURS = ("#5b6470", "#3b6fb6", "#b8860b", "#1a7f4b", "#c2477f", "#7a4fc0", "#c8541d", "#0f8a96")
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
RIGHT, OVER, UNDER, SOFT, LINE, INK = "#3b6fb6", "#d9534f", "#e0a526", "#5b6470", "#d7dce2", "#1b1f24"
STYLE: Any = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 8.5, "axes.edgecolor": LINE,
    "axes.labelcolor": SOFT, "axes.titlesize": 9.5, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "xtick.color": SOFT,
    "ytick.color": SOFT, "text.color": INK, "xtick.major.size": 0, "ytick.major.size": 0, "legend.frameon": False,
    # The same figures give the same file: no random ids, no dates, fonts that can be edited.
    "svg.hashsalt": "cots", "pdf.fonttype": 42,
}  # fmt: skip
_PANEL, _FOOT, _HEAD = 2.25, 0.16, 0.62  # inches: a panel's side, a line of the caption, the title
_TICKS = ([0.0, 0.5, 1.0], ["0", "50", "100"])


def draw_figures(summary: Summary) -> Iterator[tuple[str, str, str, Figure]]:
    """Every figure of a report: (file name without ending, title, caption, matplotlib figure)."""
    for column in summary.columns:
        if column.average or len(summary.datasets) == 1:
            caption = overview_caption(summary, column)
            yield _draw("overview", f"Accuracy and ECE, {column.title}", caption, _overview, summary, column)
    for column in summary.datasets:
        if not any((column.name, method) in summary.scored for method in summary.methods):
            continue
        for kind, title, words, draw in (
            ("reliability", "Reliability", RELIABILITY, _reliability),
            ("confidence", "Confidence", HISTOGRAM, _confidence),
            ("risk-coverage", "Risk and coverage", RISK, _risk),
        ):
            yield _draw(kind, f"{title}, {column.title}", figure_caption(summary, column, words), draw, summary, column)


def save_figure(figure: Figure, stem: Path, title: str, caption: str, formats: tuple[str, ...] = FORMATS) -> list[Path]:
    """Write a figure in each format, with its caption in the file's own metadata."""
    import matplotlib as mpl

    about = {
        "svg": {"Title": title, "Description": caption, "Date": None},
        "png": {"Title": title, "Description": caption},
        "pdf": {"Title": title, "Subject": caption, "CreationDate": None},
    }
    written = []
    for ending in formats:
        path = stem.with_name(f"{stem.name}.{ending}")
        with mpl.rc_context(STYLE):
            figure.savefig(path, dpi=200, facecolor="white", metadata=about[ending])
        written.append(path)
    return written


def _reliability(summary: Summary, column: Column) -> Figure:
    figure, cells = _grid(summary, column, 1.36)
    for cell, method, pooled in cells:
        bars = pooled.reliability()
        shown = summary.cell(column.name, method, "ece")
        main, strip = (figure.add_subplot(part) for part in cell.subgridspec(2, 1, height_ratios=[4.2, 1], hspace=0.16))
        left, width, filled = bars.edges[:-1], np.diff(bars.edges), bars.counts > 0
        accuracy, confidence = np.nan_to_num(bars.accuracy), np.nan_to_num(bars.mean_confidence)
        low, gap = np.minimum(accuracy, confidence), np.abs(accuracy - confidence)
        main.bar(left, accuracy, width, align="edge", color=RIGHT, edgecolor="white", linewidth=0.5)
        for lean, colour in ((confidence > accuracy, OVER), (confidence < accuracy, UNDER)):
            main.bar(
                left[lean],
                gap[lean],
                width[lean],
                low[lean],
                align="edge",
                color=colour,
                edgecolor="white",
                linewidth=0.5,
            )
        main.plot([0, 1], [0, 1], color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)))
        empty = (left + width / 2)[~filled]
        main.vlines(empty, 0.0, 0.025, color=SOFT, linewidth=0.9)
        _axes(main, method, f"ECE {METRICS.info('ece').show(shown.mean)}%" if shown else "")
        main.set(ylim=(0, 1))
        main.set_yticks(*_TICKS)
        main.set_xticklabels([])
        strip.bar(left, bars.counts, width, align="edge", color="#9aa4b1", edgecolor="white", linewidth=0.5)
        _axes(strip)
        strip.set_yticks([int(bars.counts.max())])
        strip.set_xlabel("confidence %", labelpad=1)
        if cell.is_first_col():
            main.set_ylabel("accuracy %", labelpad=1)
    return figure


def _confidence(summary: Summary, column: Column) -> Figure:
    figure, cells = _grid(summary, column, 1.0)
    for cell, method, pooled in cells:
        confidence, correct = pooled.confidence, pooled.correct
        edges, right, wrong = confidence_counts(confidence, correct, summary.bins)
        up, down = (figure.add_subplot(part) for part in cell.subgridspec(2, 1, height_ratios=[1.9, 1], hspace=0.0))
        mean, accuracy = float(confidence.mean(dtype=np.float64)), float(correct.mean())
        for axes, counts, colour in ((up, right, RIGHT), (down, wrong, OVER)):
            axes.bar(edges[:-1], counts, np.diff(edges), align="edge", color=colour, edgecolor="white", linewidth=0.5)
            axes.axvline(mean, color=INK, linewidth=1.1)
            axes.axvline(accuracy, color=INK, linewidth=1.1, linestyle=(0, (3, 2)))
            _axes(axes)
            axes.set(ylim=(0, 1.05 * max(1, counts.max())))
            axes.set_yticks([int(counts.max())] if counts.max() else [])
        _axes(up, method, f"gap {METRICS.info('confidence_gap').show(mean - accuracy)}")
        up.set_xticklabels([])
        down.invert_yaxis()
        down.spines["bottom"].set_visible(False)
        down.set_xlabel("confidence %", labelpad=1)
        if cell.is_first_col():
            up.set_ylabel("right", labelpad=1)
            down.set_ylabel("wrong", labelpad=1)
    return figure


def _risk(summary: Summary, column: Column) -> Figure:
    figure, axes = _single()
    highest = 0.02
    for i, method in enumerate(summary.methods):
        pooled, aurc = summary.pooled(column.name, method), summary.cell(column.name, method, "aurc")
        if pooled is None or aurc is None:
            continue
        curve = pooled.risk_coverage()
        colour, dash = _look(i)
        name = f"{method} ({METRICS.info('aurc').show(aurc.mean)}%)"
        axes.plot(100 * curve.coverage, 100 * curve.risk, color=colour, linestyle=dash, linewidth=1.6, label=name)
        highest = max(highest, float(curve.risk[curve.coverage >= 0.05].max()))
    axes.set(
        xlim=(0, 100),
        ylim=(0, 105 * highest),
        xlabel="coverage %, most confident first",
        ylabel="errors among the kept, %",
    )
    _legend_beside(figure, axes, right=0.69)
    return figure


def _overview(summary: Summary, column: Column) -> Figure:
    figure, axes = _single()
    where = {}
    for method in summary.methods:
        accuracy, ece = (summary.cell(column.name, method, name) for name in ("accuracy", "ece"))
        if accuracy and ece:
            where[method] = (100 * accuracy.mean, 100 * ece.mean)
    for i, (method, (x, y)) in enumerate(where.items()):
        colour, _ = _look(summary.methods.index(method))
        if (base := base_of(method, list(where))) is not None:
            axes.plot([where[base][0], x], [where[base][1], y], color=colour, linewidth=1.0, alpha=0.55, zorder=1)
        marker = "osD^v"[i // len(COLOURS) % 5]
        axes.scatter(
            [x], [y], s=46, color=colour, edgecolor="white", linewidth=0.8, zorder=2, label=method, marker=marker
        )
    axes.margins(x=0.12)
    axes.set(
        ylim=(0, 1.12 * max(y for _, y in where.values()) if where else 1),
        xlabel="accuracy %",
        ylabel="ECE %, lower is better",
    )
    _legend_beside(figure, axes, right=0.77)
    return figure


def _legend_beside(figure: Figure, axes: Axes, right: float) -> None:
    """Beside the axes, where twenty methods have room without covering a curve."""
    figure.subplots_adjust(right=right)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02), fontsize=8)


def _grid(summary: Summary, column: Column, tall: float) -> tuple[Figure, list[tuple[Any, str, Scored]]]:
    """A figure with one cell for each method that has records; `tall` is a panel's height over its width."""
    from matplotlib.figure import Figure

    shown = [(m, pooled) for m in summary.methods if (pooled := summary.pooled(column.name, m)) is not None]
    across = min(len(shown), 3 if len(shown) <= 6 else 4)
    down = math.ceil(len(shown) / across)
    figure = Figure(figsize=(max(4.6, across * _PANEL + 0.7), down * (_PANEL * tall + 0.3) + 0.8))
    figure.subplots_adjust(right=1 - 0.2 / figure.get_figwidth())
    grid = figure.add_gridspec(down, across, wspace=0.24, hspace=0.36 / tall)
    return figure, [(grid[i // across, i % across], method, pooled) for i, (method, pooled) in enumerate(shown)]


def _single() -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.2, 4.2))
    axes = figure.add_subplot()
    axes.grid(axis="y", color=LINE, linewidth=0.8)
    figure.subplots_adjust(right=1 - 0.2 / figure.get_figwidth())
    return figure, axes


def _axes(axes: Axes, title: str = "", note: str = "") -> None:
    axes.set_xlim(0, 1)
    axes.set_xticks(*_TICKS)
    if title:
        axes.set_title(title, pad=4)
        axes.text(1.0, 1.025, note, transform=axes.transAxes, ha="right", va="bottom", color=SOFT, fontsize=8)


def _look(index: int) -> tuple[str, Any]:
    return COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]


def _draw(
    kind: str,
    title: str,
    caption: str,
    draw: Callable[[Summary, Column], Figure],
    summary: Summary,
    column: Column,
) -> tuple[str, str, str, Figure]:
    """Title on top and caption at the foot, so that a file that travels alone says what it is."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        figure = draw(summary, column)
        width, height = figure.get_size_inches()
        lines = textwrap.wrap(caption, int(width * 18.5))
        foot = _FOOT * len(lines) + 0.2
        total = height + foot
        figure.set_size_inches(width, total)
        figure.subplots_adjust(left=0.62 / width, top=1 - _HEAD / total, bottom=(foot + 0.4) / total)
        figure.text(0.12 / width, 1 - 0.14 / total, title, va="top", fontsize=11.5, fontweight="bold")
        figure.text(
            0.12 / width, 0.1 / total, "\n".join(lines), va="bottom", fontsize=6.8, color=SOFT, linespacing=1.35
        )
    return f"{_slug(column.name)}-{kind}", title, caption, figure


def _slug(name: str) -> str:
    """A dataset's name as part of a file name."""
    return "".join(ch if ch.isalnum() or ch in "-_." else "-" for ch in name).strip("-.") or "data"
