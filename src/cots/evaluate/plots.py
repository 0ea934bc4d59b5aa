"""All diagrams, drawn with matplotlib: reliability, confidence, risk and coverage, accuracy against ECE.

Call the `draw_` functions inside `styled()`. matplotlib is imported on first use, so importing this module is fast.
"""

from __future__ import annotations

import html
import io
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..metrics import METRICS, BinnedScore, RiskCoverage
from ._score import Scored
from ._summary import Column, Summary, base_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("svg", "png", "pdf")
COLOURS = ("#5b6470", "#3b6fb6", "#b8860b", "#1a7f4b", "#c2477f", "#7a4fc0", "#c8541d", "#0f8a96")
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))  # for methods that share a colour
MARKERS = "osD^v"
SOFT, RIGHT = COLOURS[:2]
OVER, UNDER, LINE, INK, COUNT = "#d9534f", "#e0a526", "#d7dce2", "#1b1f24", "#9aa4b1"
STYLE: Any = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 8.5, "axes.edgecolor": LINE,
    "axes.labelcolor": SOFT, "axes.titlesize": 9.5, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "xtick.color": SOFT,
    "ytick.color": SOFT, "text.color": INK, "xtick.bottom": False, "ytick.left": False, "legend.frameon": False,
    # No random ids, no dates: the same figures give the same file.
    "svg.hashsalt": "cots", "pdf.fonttype": 42,
}  # fmt: skip
# CSS variables of the colours on pages, whose style sheets have other values for dark screens.
_VARIABLES = {
    **{colour: f"--s{i}" for i, colour in enumerate(COLOURS)},
    RIGHT: "--acc", OVER: "--over", UNDER: "--under", SOFT: "--soft", LINE: "--line", INK: "--ink", COUNT: "--count",
    "#ffffff": "--card",
}  # fmt: skip
_PANEL = 2.25  # inches: a panel's side
_POINTS = 300  # per curve; more would only make files larger
_TICKS = ([0.0, 0.5, 1.0], ["0", "50", "100"])
_UNWANTED = re.compile(
    r"<style.*?</style>|<metadata>.*?</metadata>|<!--.*?-->|<clipPath.*?</clipPath>| clip-path=\"[^\"]*\""
    r"| transform=\"rotate\(-0 [^\"]*\"|font-family: [^;\"]*;? ?",
    re.S,
)
_SVG = "http://www.w3.org/2000/svg"


@contextmanager
def styled(more: Any = ()) -> Iterator[None]:
    """Context or decorator: draw and save in the common style."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE | dict(more)):
        yield


def new_figure(width: float, height: float, **margins: float) -> Figure:
    """An empty figure; sizes in inches, margins as shares."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    figure.subplots_adjust(**margins)
    return figure


def save_figure(figure: Figure, stem: Path, title: str, caption: str, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a figure in each format, with title and caption in the metadata of the file."""
    about = {
        "svg": {"Title": title, "Description": caption, "Date": None},
        "png": {"Title": title, "Description": caption},
        "pdf": {"Title": title, "Subject": caption, "CreationDate": None},
    }
    written = [stem.with_name(f"{stem.name}.{ending}") for ending in formats]
    with styled():
        for path, ending in zip(written, formats, strict=True):
            figure.savefig(path, dpi=200, facecolor="white", metadata=about[ending])
    return written


def inline_svg(figure: Figure, spoken: str, kind: str = "") -> str:
    """A figure as an SVG element: `spoken` is for screen readers, colours are CSS variables of the page."""
    out = io.StringIO()
    with styled({"svg.fonttype": "none"}):
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    text = out.getvalue()
    # matplotlib's style sheet would apply to the whole page, and its ids would repeat between figures.
    body = _UNWANTED.sub("", text[text.index(">", text.index("<svg")) + 1 :])
    used = set(re.findall(r'href="#(\w+)"', body))
    mine = f"f{zlib.crc32((spoken + body).encode()):x}-"
    body = re.sub(r' id="([\w.-]+)"', lambda match: f' id="{mine}{match[1]}"' if match[1] in used else "", body)
    body = body.replace('xlink:href="#', f'href="#{mine}')
    body = re.sub(r"font: (?:(bold|\d+) )?([\d.]+px) [^;\"]*", _font, body)
    body = re.sub("|".join(_VARIABLES), lambda match: f"var({_VARIABLES[match[0]]})", body)
    body = re.sub(r"(\d\.\d\d)\d+", r"\1", re.sub(r"\s*\n\s*", " ", body))
    width, height = (72 * side for side in figure.get_size_inches())
    head = f'<svg class="chart {kind}" role="img" viewBox="0 0 {width:g} {height:g}" xmlns="{_SVG}">'
    return f"{head}<title>{html.escape(spoken)}</title>{body.strip()}"


def draw_reliability(figure: Figure, cell: Any, score: BinnedScore, title: str, below: str = "") -> None:
    """A reliability diagram with counts below it; `below` is a line of text under the axis."""
    main, strip = (figure.add_subplot(part) for part in cell.subgridspec(2, 1, height_ratios=[4.2, 1], hspace=0.16))
    reliability_bars(main, score)
    _percent_axis(main, title, f"ECE {METRICS.info('ece').show(score.value)}%")
    main.set_yticks(*_TICKS)
    main.set_xticklabels([])
    _bars(strip, score.edges, score.counts, COUNT)
    _percent_axis(strip)
    strip.set(ylim=(0, max(1, score.counts.max())), yticks=[int(score.counts.max())])
    strip.set_xlabel(f"confidence %\n{below}".strip(), labelpad=1)
    if cell.is_first_col():
        main.set_ylabel("accuracy %", labelpad=1)


def reliability_bars(axes: Axes, score: BinnedScore) -> None:
    """Accuracy per confidence bin, with over- and under-confidence as the gap to the diagonal."""
    accuracy, confidence = np.nan_to_num(score.accuracy), np.nan_to_num(score.mean_confidence)
    low, gap = np.minimum(accuracy, confidence), np.abs(accuracy - confidence)
    _bars(axes, score.edges, low, RIGHT)
    _bars(axes, score.edges, np.where(confidence > accuracy, gap, 0.0), OVER, low)
    _bars(axes, score.edges, np.where(confidence < accuracy, gap, 0.0), UNDER, low)
    axes.plot([0, 1], [0, 1], color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)), clip_on=False)
    # A tick at the base distinguishes an empty bin from a bin with no correct sample.
    x = np.repeat((score.edges[:-1] + np.diff(score.edges) / 2)[score.counts == 0], 3)
    axes.plot(x, np.tile([0.0, 0.025, np.nan], len(x) // 3), color=SOFT, linewidth=0.9, clip_on=False)
    axes.set(xlim=(0, 1), ylim=(0, 1))


def draw_confidence(figure: Figure, cell: Any, scored: Scored, title: str) -> None:
    """Samples per confidence bin; each side has its own scale, so that a few errors stay visible."""
    up, down = (figure.add_subplot(part) for part in cell.subgridspec(2, 1, height_ratios=[1.9, 1], hspace=0.0))
    mean, accuracy = scored.mean_confidence, float(scored.correct.mean())
    edges = np.arange(scored.bins + 1) / scored.bins
    for axes, counts, colour in zip((up, down), right_and_wrong(scored), (RIGHT, OVER), strict=True):
        _bars(axes, edges, counts, colour)
        axes.axvline(mean, color=INK, linewidth=1.1, clip_on=False)
        axes.axvline(accuracy, color=INK, linewidth=1.1, linestyle=(0, (3, 2)), clip_on=False)
        _percent_axis(axes)
        axes.set(ylim=(0, 1.05 * max(1, counts.max())), yticks=[int(counts.max())] if counts.max() else [])
    _percent_axis(up, title, f"gap {METRICS.info('confidence_gap').show(mean - accuracy)}")
    up.set_xticklabels([])
    down.invert_yaxis()
    down.spines["bottom"].set_visible(False)
    down.set_xlabel("confidence %", labelpad=1)
    if cell.is_first_col():
        up.set_ylabel("right", labelpad=1)
        down.set_ylabel("wrong", labelpad=1)


def draw_risk(axes: Axes, curves: Mapping[str, RiskCoverage], looks: Sequence[int] | None = None) -> None:
    """Risk-coverage curves by label; `looks` are the numbers that select colour and dash."""
    # The start of a curve is based on a few samples and must not set the scale.
    top = 1.05 * max(0.02, *(float(curve.risk[curve.coverage >= 0.05].max()) for curve in curves.values()))
    for look, (label, curve) in zip(looks or range(len(curves)), curves.items(), strict=True):
        risk = 100 * np.minimum(curve.risk, top)
        axes.plot(100 * curve.coverage, risk, **look_of(look), linewidth=1.6, label=label, clip_on=False)
    axes.set(xlim=(0, 100), ylim=(0, 100 * top))
    axes.set(xlabel="coverage %, most confident first", ylabel="errors among the accepted, %")


def draw_overview(axes: Axes, points: Mapping[str, tuple[float, float]], looks: Sequence[int] | None = None) -> None:
    """Accuracy on the x axis, ECE on the y axis, one dot per method; a line joins a method to its adapter alone."""
    dots = {label: (100 * accuracy, 100 * ece) for label, (accuracy, ece) in points.items()}
    axes.set(xlabel="accuracy %", ylabel="ECE %, lower is better")
    axes.margins(x=0.16)
    for look, (label, (x, y)) in zip(looks or range(len(points)), dots.items(), strict=True):
        colour, marker = look_of(look)["color"], MARKERS[look // len(COLOURS) % len(MARKERS)]
        if (base := base_of(label, list(points))) is not None:
            axes.plot(*zip(dots[base], (x, y), strict=True), color=colour, linewidth=1.0, alpha=0.55, zorder=1)
        dot = {"markersize": 7, "markeredgecolor": "white", "markeredgewidth": 0.8, "zorder": 2, "clip_on": False}
        axes.plot([x], [y], linestyle="none", color=colour, marker=marker, label=label, **dot)
    axes.set_ylim(0, 1.12 * max(y for _, y in dots.values()) or 1)
    _label_dots(axes, dots)


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Accuracy and mean confidence of a method in per cent, with their intervals."""

    accuracy: float
    accuracy_interval: Sequence[float]
    confidence: float
    confidence_interval: Sequence[float]


def draw_gain(axes: Axes, gains: Mapping[str, Gain], title: str) -> None:
    """Accuracy and mean confidence of each method, the gap between them, and the first method's accuracy as a line."""
    first = next(iter(gains.values()))
    axes.axhline(first.accuracy, color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)))
    ends = []
    for x, gain in enumerate(gains.values()):
        colour = OVER if gain.confidence > gain.accuracy else UNDER
        axes.plot([x, x], [gain.accuracy, gain.confidence], color=colour, linewidth=7, solid_capstyle="butt")
        axes.plot([x - 0.13] * 2, gain.accuracy_interval, color=RIGHT, linewidth=1.6)
        axes.plot([x - 0.13], [gain.accuracy], color=RIGHT, marker="s", markersize=6)
        axes.plot([x + 0.13] * 2, gain.confidence_interval, color=INK, linewidth=1.6)
        axes.plot([x + 0.13], [gain.confidence], color=INK, marker="o", markersize=5.5)
        ends += [*gain.accuracy_interval, *gain.confidence_interval]
    low, high = min(ends), max(ends)
    for x, gain in enumerate(gains.values()):
        gap = f"{gain.confidence - gain.accuracy:+.1f}"
        axes.text(x, high + 0.06 * (high - low), gap, ha="center", va="bottom", color=INK, fontweight="bold")
    axes.set(xlim=(-0.5, len(gains) - 0.5), ylim=(low - 0.05 * (high - low), high + 0.2 * (high - low)))
    axes.set_xticks(range(len(gains)), list(gains))
    axes.set_ylabel("%", labelpad=1)
    axes.set_title(title, pad=4)
    axes.text(1.0, 1.025, "gap in points", transform=axes.transAxes, ha="right", va="bottom", color=SOFT, fontsize=8)


def look_of(index: int) -> dict[str, Any]:
    """Colour and dash of method number `index`."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index // len(COLOURS) % len(DASHES)]}


def _bars(axes: Axes, edges: np.ndarray, heights: np.ndarray, colour: str, bottom: Any = 0.0) -> None:
    """All bars of one colour as a single path, to keep files small."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    left, right, low, high = edges[:-1], edges[1:], np.broadcast_to(bottom, heights.shape), bottom + heights
    corners = np.stack([left, low, left, high, right, high, right, low], axis=1).reshape(-1, 4, 2)[heights > 0]
    if len(corners):
        look = {"facecolor": colour, "edgecolor": "white", "linewidth": 0.5, "clip_on": False}
        axes.add_patch(PathPatch(Outline.make_compound_path_from_polys(corners), **look))


def _percent_axis(axes: Axes, title: str = "", note: str = "") -> None:
    axes.set_xlim(0, 1)
    axes.set_xticks(*_TICKS)
    if title:
        axes.set_title(title, pad=4)
        axes.text(1.0, 1.025, note, transform=axes.transAxes, ha="right", va="bottom", color=SOFT, fontsize=8)


def _label_dots(axes: Axes, dots: Mapping[str, tuple[float, float]]) -> None:
    """Write each name next to its dot, at the first free position; the legend names the others."""
    from matplotlib.transforms import Bbox

    points = 72 / axes.figure.dpi  # pyright: ignore[reportAttributeAccessIssue]
    where = {name: points * axes.transData.transform(dot) for name, dot in dots.items()}
    frame = Bbox.from_extents(*(points * np.asarray(axes.bbox.extents)))
    taken = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for x, y in where.values()]
    for name, (x, y) in where.items():
        width = 5.2 * len(name)
        left = -7 - width
        for dx, dy in ((7, -3), (left, -3), (7, 6), (7, -12), (left, 6), (left, -12), (7, -21), (7, 15)):
            box = Bbox.from_bounds(x + dx, y + dy, width, 9)
            inside = frame.fully_contains(*box.min) and frame.fully_contains(*box.max)
            if inside and not box.count_overlaps(taken):
                taken.append(box)
                axes.annotate(name, dots[name], (dx, dy), textcoords="offset points", fontsize=8)
                break


def right_and_wrong(scored: Scored) -> tuple[np.ndarray, np.ndarray]:
    """Right and wrong samples per bin."""
    bars = scored.reliability()
    right = np.rint(np.nan_to_num(bars.accuracy) * bars.counts).astype(int)
    return right, bars.counts - right


def _font(match: re.Match[str]) -> str:
    weight, size = match.groups()
    return f"font-size: {size}{f'; font-weight: {weight}' if weight else ''}"


@styled()
def single_panel(height: float, draw: Callable[..., None], *given: Any) -> Figure:
    """A small figure for a page."""
    figure = new_figure(3.4, height, left=0.15, right=0.965, top=1 - 0.3 / height, bottom=0.52 / height)
    draw(figure, figure.add_gridspec(1, 1)[0], *given)
    return figure


@styled()
def panel_grid(draw: Callable[..., None], shown: Mapping[str, Any], tall: float) -> Figure:
    """One panel per method, from its data; `tall` is the height of a panel relative to its width."""
    across = {1: 1, 2: 2, 3: 3, 4: 2, 5: 3, 6: 3}.get(len(shown), 4)
    down = math.ceil(len(shown) / across)
    width = max(4.6, across * _PANEL + 0.7)
    figure = new_figure(width, down * (_PANEL * tall + 0.3) + 0.8, right=1 - 0.2 / width)
    grid = figure.add_gridspec(down, across, wspace=0.24, hspace=0.36 / tall)
    for i, (method, data) in enumerate(shown.items()):
        draw(figure, grid[i], data, method)
    return figure


def risk_figure(summary: Summary, column: Column, legend: bool = True) -> Figure:
    """The risk-coverage curves of all methods on a dataset, seeds pooled."""
    curves = {}
    for _, method in summary.shown(column):
        area = METRICS.info("aurc").show(summary.cells[column.name, method, "aurc"].mean)
        curves[f"{method} ({area}%)"] = summary.pooled(column.name, method).risk_coverage(_POINTS)
    return _with_legend(draw_risk, curves, summary.shown(column), 0.69 if legend else None)


def overview_figure(summary: Summary, column: Column, legend: bool = True) -> Figure:
    """Accuracy against ECE of all methods on a column."""
    points = {}
    for _, method in summary.shown(column):
        accuracy, ece = summary.cells[column.name, method, "accuracy"], summary.cells[column.name, method, "ece"]
        points[method] = accuracy.mean, ece.mean
    return _with_legend(draw_overview, points, summary.shown(column), 0.77 if legend else None)


@styled()
def _with_legend(
    draw: Callable[..., None], shown: Mapping[str, Any], methods: Sequence[tuple[int, str]], right: float | None
) -> Figure:
    """One pair of axes with the legend next to them, so that many methods do not cover a curve."""
    figure = new_figure(6.2, 4.2 if right else 3.6, left=0.09, right=right or 0.97, bottom=0.12, top=0.97)
    axes = figure.add_subplot()
    axes.grid(axis="y", color=LINE, linewidth=0.8)
    draw(axes, shown, [look for look, _ in methods])
    if right:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02), fontsize=8)
    return figure
