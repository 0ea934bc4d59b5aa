"""Charts for the page, as SVG that takes its colours from the page: histograms, risk-coverage, accuracy against ECE."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..metrics import risk_coverage

SERIES = 8  # colours; further methods use them again with another dash
DASHES = ("", "6 3", "2 3", "8 3 2 3")
_WIDE = (390.0, 232.0)  # of the charts that stand alone
_POINTS = 160  # of a curve: more than the screen shows would only make the page heavy


@dataclass(frozen=True)
class Frame:
    """A plot's inner size and the ranges that its axes show."""

    width: float
    height: float
    x: tuple[float, float] = (0.0, 1.0)
    y: tuple[float, float] = (0.0, 1.0)

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return self.width * across, self.height * (1.0 - up)


def colour(index: int) -> str:
    """The colour of the method number `index`, as a style that the classes line, dot and link read."""
    return f"--c:var(--s{index % SERIES})"


def dot(index: int) -> str:
    """Classes of the method's dot: a ring where its colour is used for the second time."""
    return "dot ring" if index // SERIES % 2 else "dot"


def series(index: int) -> str:
    """Colour and dash of the method number `index`, as attributes."""
    dash = DASHES[(index // SERIES) % len(DASHES)]
    return f'style="{colour(index)}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def histogram_svg(confidence: np.ndarray, correct: np.ndarray, title: str, bins: int = 20) -> str:
    """Confidences of the right answers (up) and the wrong ones (down); lines at the mean confidence and the accuracy.

    Each side has a scale of its own: on one scale the few errors of a good model could not be seen.
    """
    frame = Frame(width=240, height=150)
    edges, right, wrong = confidence_counts(confidence, correct, bins)
    mean, accuracy = float(confidence.mean(dtype=np.float64)), float(correct.mean())
    spoken = (
        f"Confidences of {title}: mean {100 * mean:.1f}%, accuracy {100 * accuracy:.1f}%, {len(confidence):,} records, "
        f"{int(right[-1]):,} right and {int(wrong[-1]):,} wrong ones in the highest bin."
    )
    parts = []
    up, down = 0.62 * frame.height, 0.34 * frame.height
    for low, high, good, bad in zip(edges[:-1], edges[1:], right, wrong, strict=True):
        x, width = frame.width * low, frame.width * (high - low)
        rise, fall = up * good / max(1, right.max()), down * bad / max(1, wrong.max())
        parts.append(_rect("acc", x, up - rise, width, rise))
        parts.append(_rect("over", x, up + 1, width, fall))
    parts.append(f'<path class="axis" d="M0 {up + 0.5:g} H{frame.width:g}"/>')
    for value, kind in ((mean, "mean"), (accuracy, "mean dashed")):
        parts.append(f'<path class="{kind}" d="M{frame.width * value:.1f} 0 V{frame.height:g}"/>')
    parts.append(f'<text class="tick" x="-5" y="9" text-anchor="end">{right.max()}</text>')
    parts.append(f'<text class="tick" x="-5" y="{up + down + 1:g}" text-anchor="end">{wrong.max()}</text>')
    parts += _ticks(frame, (0.0, 0.5, 1.0), (), percent=True)
    gap = f"gap {100 * (mean - accuracy):+.1f}".replace("-", "\N{MINUS SIGN}")
    heading = (
        f'<text class="name" x="34" y="16">{html.escape(title)}</text>'
        f'<text class="note" x="274" y="16" text-anchor="end">{gap}</text>'
    )
    return _svg(spoken, 288, 214, [heading, *_inside(frame, parts, 34, 28), _x_label("confidence", 34, 240, 208)])


def confidence_counts(
    confidence: np.ndarray, correct: np.ndarray, bins: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Edges, right and wrong samples of equal-width bins (lo, hi], compared in float64."""
    edges = np.arange(bins + 1) / bins
    place = np.searchsorted(edges[1:], confidence.astype(np.float64), side="left")
    right, wrong = (np.bincount(place[correct == good], minlength=bins) for good in (True, False))
    return edges, right, wrong


def risk_svg(curves: Sequence[tuple[str, int, np.ndarray, np.ndarray]], title: str) -> str:
    """Risk against coverage, one line for each of `curves`: method, its number, confidence, correctness."""
    found = [(name, index, risk_coverage(confidence, correct)) for name, index, confidence, correct in curves]
    # The start of a curve is a handful of samples; it must not decide the scale.
    shown = [float(curve.risk[curve.coverage >= 0.05].max()) for _, _, curve in found]
    step = _step(max(0.02, *shown), 5)
    frame = Frame(*_WIDE, y=(0.0, step * math.ceil(max(0.02, *shown) / step - 1e-9)))
    parts = []
    for name, index, curve in found:
        keep = np.unique(
            np.searchsorted(curve.coverage, np.linspace(0.0, 1.0, _POINTS)).clip(max=len(curve.coverage) - 1)
        )
        points = (
            frame.at(float(c), min(float(r), frame.y[1]))
            for c, r in zip(curve.coverage[keep], curve.risk[keep], strict=True)
        )
        path = " ".join(f"{x:.1f} {y:.1f}" for x, y in points)
        parts.append(
            f'<polyline class="line" {series(index)} points="{path}"><title>{html.escape(name)}</title></polyline>'
        )
    ys = np.arange(0.0, frame.y[1] + step / 2, step)
    spoken = f"Risk against coverage on {title}, area under the curve: " + ", ".join(
        f"{name} {100 * float(curve):.2f}%" for name, _, curve in found
    )
    labels = _wide_labels("coverage %, most confident first", "errors among the kept, %")
    ticks = _ticks(frame, (0.0, 0.25, 0.5, 0.75, 1.0), ys, percent=True)
    return _wide(spoken, frame, [*ticks, *parts], labels)


def scatter_svg(points: Sequence[tuple[str, int, float, float, str | None]], title: str) -> str:
    """Accuracy across, ECE up, one dot for each of `points`: method, its number, accuracy, ECE, base or None."""
    xs, ys = [100 * p[2] for p in points], [100 * p[3] for p in points]
    spread = max(max(xs) - min(xs), 1.0)
    step_x, step_y = _step(1.6 * spread, 5), _step(1.1 * max(ys), 5)
    low = step_x * math.floor((min(xs) - 0.15 * spread) / step_x)
    high = step_x * math.ceil((max(xs) + 0.3 * spread) / step_x)
    frame = Frame(*_WIDE, x=(low, high), y=(0.0, step_y * math.ceil(1.08 * max(ys) / step_y)))
    where = {name: frame.at(100 * accuracy, 100 * ece) for name, _, accuracy, ece, _ in points}
    lines, dots, labels = [], [], []
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in where.values()]
    for name, index, accuracy, ece, base in points:
        x, y = where[name]
        if base in where:
            lines.append(
                f'<path class="link" {series(index)} d="M{where[base][0]:.1f} {where[base][1]:.1f} L{x:.1f} {y:.1f}"/>'
            )
        words = html.escape(f"{name}: accuracy {100 * accuracy:.2f}%, ECE {100 * ece:.2f}%")
        at = f'cx="{x:.1f}" cy="{y:.1f}"'
        dots.append(f'<circle class="{dot(index)}" style="{colour(index)}" {at} r="5"><title>{words}</title></circle>')
        labels.append(_label(name, x, y, taken, frame))
    grid = _ticks(frame, np.arange(low, high + step_x / 2, step_x), np.arange(0.0, frame.y[1] + step_y / 2, step_y))
    spoken = f"Accuracy against calibration error on {title}: " + "; ".join(
        f"{name} accuracy {100 * accuracy:.1f}%, ECE {100 * ece:.1f}%" for name, _, accuracy, ece, _ in points
    )
    return _wide(spoken, frame, [*grid, *lines, *dots, *labels], _wide_labels("accuracy %", "ECE %, lower is better"))


def _label(name: str, x: float, y: float, taken: list[tuple[float, float, float, float]], frame: Frame) -> str:
    """The name beside its dot, at the first of some places where nothing is yet."""
    width = 6.6 * len(name)
    for dx, dy in ((9, 4), (-9 - width, 4), (9, -8), (9, 16), (-9 - width, -8), (-9 - width, 16), (9, 28), (9, -20)):
        box = (x + dx, y + dy - 10, x + dx + width, y + dy + 3)
        inside = box[0] >= 2 and box[2] <= frame.width - 2 and box[1] >= 0 and box[3] <= frame.height
        if inside and not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken):
            break
    else:
        return ""  # the legend names it
    taken.append(box)
    return f'<text class="label" x="{box[0]:.1f}" y="{y + dy:.1f}">{html.escape(name)}</text>'


def _ticks(
    frame: Frame, xs: Sequence[float] | np.ndarray, ys: Sequence[float] | np.ndarray, percent: bool = False
) -> list[str]:
    """Grid lines and their figures; `percent` shows fractions in per cent."""
    parts = []
    scale = 100.0 if percent else 1.0
    for value in xs:
        x, _ = frame.at(float(value), frame.y[0])
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{frame.height + 14:g}" text-anchor="middle">{scale * value:g}</text>'
        )
    for value in ys:
        _, y = frame.at(frame.x[0], float(value))
        parts.append(f'<path class="grid-line" d="M0 {y:.1f} H{frame.width:g}"/>')
        parts.append(f'<text class="tick" x="-6" y="{y + 4:.1f}" text-anchor="end">{round(scale * value, 6):g}</text>')
    return parts


def _step(span: float, parts: int) -> float:
    """A round step (1, 2, 2.5 or 5 times a power of ten) that cuts `span` into about `parts`."""
    raw = span / parts
    power = 10.0 ** math.floor(math.log10(raw))
    return power * next(m for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= raw * (1 - 1e-9))


def _inside(frame: Frame, parts: Sequence[str], left: float, top: float) -> list[str]:
    border = f'<path class="axis" d="M0 {frame.height:g} H{frame.width:g}"/>'
    return [f'<g transform="translate({left:g},{top:g})">', *parts, border, "</g>"]


def _wide_labels(across: str, up: str) -> list[str]:
    return [_x_label(across, 34, _WIDE[0], _WIDE[1] + 64), f'<text class="note" x="4" y="13">{html.escape(up)}</text>']


def _wide(spoken: str, frame: Frame, parts: Sequence[str], labels: Sequence[str]) -> str:
    return _svg(spoken, frame.width + 54, frame.height + 70, [*_inside(frame, parts, 34, 26), *labels], "wide")


def _x_label(text: str, left: float, width: float, y: float) -> str:
    return f'<text class="note" x="{left + width / 2:g}" y="{y:g}" text-anchor="middle">{html.escape(text)}</text>'


def _rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{kind}" x="{x + 0.5:.1f}" y="{y:.1f}" width="{width - 1:.1f}" height="{height:.1f}"/>'


def _svg(spoken: str, width: float, height: float, parts: Sequence[str], kind: str = "") -> str:
    head = (
        f'<svg class="chart {kind}" role="img" viewBox="0 0 {width:g} {height:g}" xmlns="http://www.w3.org/2000/svg">'
    )
    return "\n".join([head, f"<title>{html.escape(spoken)}</title>", *parts, "</svg>"])
