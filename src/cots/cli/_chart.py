"""A reliability diagram in characters, for the terminal and for pipes."""

from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from ..evaluate import Scored

BINS, WIDTH = 10, 25
RIGHT, OVER, UNDER, DIAGONAL = "█", "░", "▒", "│"
_STYLES = {RIGHT: "blue", OVER: "red", UNDER: "yellow", DIAGONAL: "bold"}


def reliability_chart(methods: "dict[str, Scored]") -> Text:
    """One bar per bin of confidence and method: how many were right, and the gap to the confidence.

    The marks of perfect calibration, one per bar, form the diagonal.
    """
    found = {title: _bars(scored) for title, scored in methods.items()}
    heads = (f"{title}, share right".ljust(WIDTH + 7) for title in found)
    chart = Text(f"confidence  {'  '.join(heads)}".rstrip(), "bold")
    for i in range(BINS):
        chart.append(f"\n{100 * i // BINS:>3}–{100 * (i + 1) // BINS:>3}%    ")
        for j, bars in enumerate(found.values()):
            bar, note = bars[i]
            chart.append("  " if j else "")
            for cell in bar:
                chart.append(cell, _STYLES.get(cell))
            chart.append(f"{note:>7}")
    chart.append("\n")
    for cell, word in ((RIGHT, "right"), (OVER, "over-confident by"), (UNDER, "under-confident by")):
        chart.append(cell, _STYLES[cell]).append(f" {word}   ")
    return chart.append(f"{DIAGONAL} perfect calibration")


def _bars(scored: "Scored") -> list[tuple[str, str]]:
    """The bar of each bin and the number right of it; nothing where a bin is empty."""
    from ..metrics import ece

    score, found = ece(scored.confidence, scored.correct, BINS), []
    for count, right, claimed in zip(score.counts, score.accuracy, score.mean_confidence, strict=True):
        if not count:
            found.append((" " * WIDTH, ""))
            continue
        filled, mark = round(WIDTH * right), min(WIDTH - 1, round(WIDTH * claimed))
        cells = [RIGHT] * filled + [" "] * (WIDTH - filled)
        low, high = min(filled, mark), max(filled, mark)
        cells[low:high] = [OVER if claimed > right else UNDER] * (high - low)
        cells[mark] = DIAGONAL
        found.append(("".join(cells), f"{100 * right:.0f}%"))
    return found
