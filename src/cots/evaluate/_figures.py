"""The figures of a report: files with title and caption in their metadata, and SVG elements for pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..metrics import METRICS, BinnedScore
from . import _plots as plots
from ._plots import inline_svg, new_figure, save_figure, styled
from ._score import Scored
from ._summary import Column, Summary
from ._words import HISTOGRAM, RELIABILITY, RISK, figure_caption, overview_caption

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PANEL = 2.25  # inches: a panel's side
_POINTS = 300  # per curve; more would only make files larger


def draw_figures(summary: Summary) -> Iterator[tuple[str, str, str, Figure]]:
    """Every figure of a report: (file name without ending, title, caption, matplotlib figure)."""
    for column in summary.columns:
        if column.average or len(summary.datasets) == 1:
            caption = overview_caption(summary, column)
            yield _framed("overview", "Accuracy and ECE", caption, overview_figure, summary, column)
    for column in filter(summary.shown, summary.datasets):
        for kind, words, draw in (
            ("reliability", RELIABILITY, partial(_grid, plots.draw_reliability, Summary.reliability, 1.36)),
            ("confidence", HISTOGRAM, partial(_grid, plots.draw_confidence, Summary.pooled, 1.0)),
            ("risk-coverage", RISK, risk_figure),
        ):
            title = kind.capitalize().replace("-", " and ")
            yield _framed(kind, title, figure_caption(summary, column, words), draw, summary, column)


@styled()
def reliability_svg(score: BinnedScore, title: str, below: str = "", samples: str = "samples") -> str:
    """A reliability diagram as an SVG element of a page; `score` is a result of `cots.metrics.ece`."""
    filled = score.counts > 0
    gap = float(np.average(score.gap[filled], weights=score.counts[filled]))
    spoken = (
        f"Reliability of {title}: expected calibration error {100 * score.value:.1f}%, on average "
        f"{100 * abs(gap):.1f} points {'over' if gap > 0 else 'under'}-confident, {score.n:,} {samples} in "
        f"{len(score.counts)} bins."
    )
    return inline_svg(_panel(4.15, plots.draw_reliability, score, title, below), spoken)


@styled()
def save_reliability(score: BinnedScore, stem: Path, title: str, caption: str) -> Path:
    """Write a reliability diagram as stem.svg."""
    below = f"{score.n:,} photos"
    return save_figure(_panel(4.15, plots.draw_reliability, score, title, below), stem, title, caption, ("svg",))[0]


@styled()
def confidence_svg(scored: Scored, title: str) -> str:
    """A confidence histogram as an SVG element of a page."""
    right, wrong = plots.right_and_wrong(scored)
    spoken = (
        f"Confidences of {title}: mean {100 * scored.mean_confidence:.1f}%, accuracy "
        f"{100 * scored.correct.mean():.1f}%, {len(scored):,} records, {right[-1]:,} right and {wrong[-1]:,} wrong "
        "ones in the highest bin."
    )
    return inline_svg(_panel(2.6, plots.draw_confidence, scored, title), spoken)


@styled()
def risk_svg(summary: Summary, column: Column) -> str:
    """The risk-coverage curves of a dataset as an SVG element, without the legend, which the page has."""
    spoken = f"Risk against coverage of every method on {column.title}; the AURC table has the areas."
    return inline_svg(risk_figure(summary, column, legend=False), spoken, "wide")


@styled()
def overview_svg(summary: Summary, column: Column) -> str:
    """Accuracy against ECE as an SVG element, without the legend, which the page has."""
    spoken = f"Accuracy against calibration error of every method, {column.title}; the tables have the figures."
    return inline_svg(overview_figure(summary, column, legend=False), spoken, "wide")


def risk_figure(summary: Summary, column: Column, legend: bool = True) -> Figure:
    """The risk-coverage curves of all methods on a dataset, seeds pooled."""
    curves = {}
    for _, method in summary.shown(column):
        area = METRICS.info("aurc").show(summary.cells[column.name, method, "aurc"].mean)
        curves[f"{method} ({area}%)"] = summary.pooled(column.name, method).risk_coverage(_POINTS)
    return _single(plots.draw_risk, curves, summary.shown(column), 0.69 if legend else None)


def overview_figure(summary: Summary, column: Column, legend: bool = True) -> Figure:
    """Accuracy against ECE of all methods on a column."""
    points = {
        method: tuple(summary.cells[column.name, method, name].mean for name in ("accuracy", "ece"))
        for _, method in summary.shown(column)
    }
    return _single(plots.draw_overview, points, summary.shown(column), 0.77 if legend else None)


def _grid(draw: Callable[..., None], data: Callable[..., Any], tall: float, summary: Summary, column: Column) -> Figure:
    """One panel per method with records; `tall` is the height of a panel relative to its width."""
    shown = [method for _, method in summary.shown(column)]
    across = min(len(shown), 2 if len(shown) == 4 else 3 if len(shown) <= 6 else 4)
    down = math.ceil(len(shown) / across)
    width = max(4.6, across * _PANEL + 0.7)
    figure = new_figure(width, down * (_PANEL * tall + 0.3) + 0.8, right=1 - 0.2 / width)
    grid = figure.add_gridspec(down, across, wspace=0.24, hspace=0.36 / tall)
    for i, method in enumerate(shown):
        draw(figure, grid[i], data(summary, column.name, method), method)
    return figure


def _single(
    draw: Callable[..., None], shown: Mapping[str, Any], methods: Sequence[tuple[int, str]], right: float | None
) -> Figure:
    """One pair of axes with the legend next to them, so that many methods do not cover a curve."""
    figure = new_figure(6.2, 4.2 if right else 3.6, left=0.09, right=right or 0.97, bottom=0.12, top=0.97)
    axes = figure.add_subplot()
    axes.grid(axis="y", color=plots.LINE, linewidth=0.8)
    draw(axes, shown, [look for look, _ in methods])
    if right:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02), fontsize=8)
    return figure


@styled()
def _framed(
    kind: str, title: str, caption: str, draw: Callable[..., Figure], summary: Summary, column: Column
) -> tuple[str, str, str, Figure]:
    """(name, title, caption, figure) of a figure without title and caption, which the document adds."""
    figure, title = draw(summary, column), f"{title}, {column.title}"
    width, height = figure.get_size_inches()
    figure.subplots_adjust(left=0.62 / width, top=1 - 0.3 / height, bottom=0.5 / height)
    name = "".join(ch if ch.isalnum() or ch in "-_." else "-" for ch in column.name).strip("-.") or "data"
    return f"{name}-{kind}", title, caption, figure


def _panel(height: float, draw: Callable[..., None], *given: Any) -> Figure:
    """A small figure for a page."""
    figure = new_figure(3.4, height, left=0.15, right=0.965, top=1 - 0.3 / height, bottom=0.52 / height)
    draw(figure, figure.add_gridspec(1, 1)[0], *given)
    return figure
