"""The page and the picture of the demo."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..methods import method_title
from . import plots, text
from ._write import reliability_svg
from .plots import inline_svg, save_figure, single_panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("zeroshot", "tpt", "tpt+cots", "tpt+ecots")
DIAGRAMS = ("tpt", "tpt+cots")  # in the picture
TITLES = {"zeroshot": "zero-shot", "tpt": "TPT", "tpt+cots": "+ CoTS", "tpt+ecots": "+ E-CoTS"}


def demo_page(result: Any, next_command: str, whole: str) -> str:
    """The page of a `cots.demo.DemoResult`: gain and gap, what labels buy, diagrams, tables, photos.

    whole: a sentence on all photos of the known classes.
    """
    gains, diagrams = {}, {}
    for kind in result.kinds:
        gains[kind.name] = _gain_svg(result, kind)
        diagrams[kind.name] = []
        for method in METHODS:
            scored = kind.outcomes[method].scored
            note = f"accuracy {100 * scored.correct.mean():.1f}%, mean confidence {100 * scored.mean_confidence:.1f}%"
            diagrams[kind.name].append(reliability_svg(scored.reliability(), method_title(method), note, kind.name))
    return text.render(
        "demo.html",
        result=result,
        title_of=method_title,
        next_command=next_command,
        whole=whole,
        gains=gains,
        diagrams=diagrams,
        photos=[(b64encode(photo.file.read_bytes()).decode(), photo) for photo in result.shown],
    )


def save_demo_picture(result: Any, stem: Path) -> Path:
    """Write the demo's picture as stem.svg: known classes left, unknown classes right, reliability below."""
    with plots.styled({"font.size": 9, "axes.titlesize": 11}):
        figure = plots.new_figure(9.2, 6.2, left=0.06, right=0.985, top=0.91, bottom=0.085)
        sides = figure.add_gridspec(1, len(result.kinds), wspace=0.15)
        for column, kind in enumerate(result.kinds):
            above, below = sides[0, column].subgridspec(2, 1, height_ratios=[1.25, 1], hspace=0.3)
            title = f"{kind.name.capitalize()}, {len(kind)} photos"
            plots.draw_gain(figure.add_subplot(above), _gains(result, kind), title)
            cells = below.subgridspec(1, len(DIAGRAMS), wspace=0.26)
            for number, method in enumerate(DIAGRAMS):
                score = kind.outcomes[method].scored.reliability()
                plots.draw_reliability(figure, cells[0, number], score, method_title(method))
        for x, colour, mark, word in (
            (0.06, plots.RIGHT, "■", "accuracy"),
            (0.15, plots.INK, "●", "mean confidence"),
            (0.295, plots.OVER, "■", "over-confident"),
            (0.425, plots.UNDER, "■", "under-confident"),
        ):
            figure.text(x, 0.975, f"{mark} {word}", color=colour, va="center")
        note = "lines: 95% intervals; dashed: zero-shot's accuracy, perfect calibration"
        figure.text(0.985, 0.975, note, size=8, ha="right", va="center")
    names = " and ".join(f"{len(kind)} photos of {kind.name}" for kind in result.kinds)
    caption = f"Accuracy and mean confidence of four methods on {names}, and reliability of TPT and TPT + CoTS."
    return save_figure(figure, stem, "What tuning gains, and what the confidence says", caption, ("svg",))[0]


def _gain_svg(result: Any, kind: Any) -> str:
    spoken = f"Accuracy and mean confidence of four methods on {kind.name}; the table below has the figures."
    return inline_svg(_gain_figure(_gains(result, kind), f"{len(kind)} photos"), spoken)


def _gain_figure(gains: dict[str, plots.Gain], title: str) -> Figure:
    return single_panel(2.6, lambda figure, cell: plots.draw_gain(figure.add_subplot(cell), gains, title))


def _gains(result: Any, kind: Any) -> dict[str, plots.Gain]:
    found = {}
    for method in METHODS:
        row = result.row(method, kind.name)
        ends = row["intervals"]
        found[TITLES[method]] = plots.Gain(
            accuracy=row["accuracy"], accuracy_interval=ends["accuracy"],
            confidence=row["mean_confidence"], confidence_interval=ends["mean_confidence"],
        )  # fmt: skip
    return found
