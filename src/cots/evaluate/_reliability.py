"""Reliability diagrams as SVG: accuracy against confidence, with the counts underneath."""

from __future__ import annotations

import html

import numpy as np

from ..metrics import BinnedScore

SIZE, STRIP, MARGIN, GAP = 220, 48, 34, 14  # of the plot, the histogram, the axis labels and the space between


def reliability_svg(score: BinnedScore, title: str, note: str = "") -> str:
    """A reliability diagram for `cots.metrics.ece(...)`: bars of accuracy, the gap to the diagonal, counts below.

    Empty bins carry a short tick at the base, so that "no photos" and "none right" look different. Colours come from
    the page (CSS classes acc, over, under, axis, count), with fallbacks for a file of its own.
    """
    width, height = SIZE + 2 * MARGIN, SIZE + STRIP + GAP + 2 * MARGIN + 16
    parts = [
        f'<svg class="reliability" role="img" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">',
        f"<title>{html.escape(_spoken(score, title))}</title>",
        f'<text class="name" x="{MARGIN}" y="18">{html.escape(title)}</text>',
        f'<text class="note" x="{MARGIN + SIZE}" y="18" text-anchor="end">ECE {100 * score.value:.1f}%</text>',
        f'<g transform="translate({MARGIN},{MARGIN - 4})">',
        *_bars(score),
        f'<path class="diagonal" d="M0 {SIZE} L{SIZE} 0"/>',
        f'<rect class="frame" width="{SIZE}" height="{SIZE}"/>',
        *_axis(),
        f'<g transform="translate(0,{SIZE + GAP})">',
        *_counts(score),
        "</g></g>",
    ]
    if note:
        parts.append(f'<text class="note" x="{MARGIN}" y="{height - 4}">{html.escape(note)}</text>')
    return "\n".join([*parts, "</svg>"])


def _spoken(score: BinnedScore, title: str) -> str:
    """What a screen reader says instead of the picture."""
    filled = score.counts > 0
    gap = float(np.average(score.gap[filled], weights=score.counts[filled]))
    lean = "over-confident" if gap > 0 else "under-confident"
    return (
        f"Reliability of {title}: expected calibration error {100 * score.value:.1f}%, on average "
        f"{100 * abs(gap):.1f} points {lean}, {score.n} photos in {len(score.counts)} bins."
    )


def _bars(score: BinnedScore) -> list[str]:
    parts = []
    for low, high, count, confidence, accuracy in _bins(score):
        x, width = SIZE * low, SIZE * (high - low)
        if count == 0:
            parts.append(f'<path class="empty" d="M{x + width / 2:.1f} {SIZE} v-5"/>')
            continue
        top, bottom = max(accuracy, confidence), min(accuracy, confidence)
        parts.append(_rect("acc", x, SIZE * (1 - bottom), width, SIZE * bottom))
        lean = "over" if confidence > accuracy else "under"
        parts.append(_rect(lean, x, SIZE * (1 - top), width, SIZE * (top - bottom)))
    return parts


def _counts(score: BinnedScore) -> list[str]:
    most = max(1, int(score.counts.max()))
    parts = []
    for low, high, count, _, _ in _bins(score):
        tall = STRIP * count / most
        parts.append(_rect("count", SIZE * low, STRIP - tall, SIZE * (high - low), tall))
    parts.append(f'<path class="axis" d="M0 {STRIP} h{SIZE}"/>')
    parts.append(f'<text class="tick" x="{-6}" y="8" text-anchor="end">{most}</text>')
    parts.append(f'<text class="tick" x="{SIZE / 2}" y="{STRIP + 14}" text-anchor="middle">confidence</text>')
    return parts


def _axis() -> list[str]:
    parts = []
    for percent in (0, 50, 100):
        place = SIZE * percent / 100
        parts.append(f'<text class="tick" x="-6" y="{SIZE - place + 4:.0f}" text-anchor="end">{percent}</text>')
        parts.append(f'<text class="tick" x="{place:.0f}" y="{SIZE + 11}" text-anchor="middle">{percent}</text>')
    return parts


def _bins(score: BinnedScore):
    return zip(score.edges[:-1], score.edges[1:], score.counts, score.mean_confidence, score.accuracy, strict=True)


def _rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{kind}" x="{x + 0.5:.2f}" y="{y:.2f}" width="{width - 1:.2f}" height="{height:.2f}"/>'
