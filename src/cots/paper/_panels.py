"""What the paper's figures share: colours, panels, averages and error bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._errors import InputError
from ..data import find_protocol
from ..evaluate import deviation
from ._scores import RunScores
from ._tables import FINE_GRAINED, MEMBERS, VARIANTS, load_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AVERAGE_TITLES = {FINE_GRAINED: "fine-grained", VARIANTS: "ImageNet variants"}
VALUE_TITLES = {"weak": "weak view", "all_strong": "all strong", "top": "top 6", "top_strong": "top 6 strong"}
VALUE_TITLES |= {"l1": "L1", "l2": "L2", "huber": "Huber", "kl": "KL"}
# Colour-blind safe colours, in the order of the paper's main table; CoTS blue, E-CoTS orange.
_PALETTE = "999999 444444 56B4E9 B8A600 CC79A7 E69F00 8C6D31 7B5EA7 0072B2 D55E00 009E73"
_METHODS = (*load_table("fine-grained").methods, "tpt+cor")
LOOKS = {
    method: {"color": f"#{colour}", "marker": marker}
    for method, colour, marker in zip(_METHODS, _PALETTE.split(" "), "Xs<^v>PhoDo", strict=True)
}
OTHER = {"color": "#444444", "marker": "o"}
GUIDE = {"color": "#888888", "linewidth": 0.9, "linestyle": ":"}

Columns = Mapping[str, tuple[str, ...]]  # datasets by title


def error_bars(values: Sequence[float]) -> list[list[float]]:
    """One standard deviation below and above the mean, clipped to 0-100%."""
    mean, spread = float(np.mean(values)), deviation(values) or 0.0
    return [[min(spread, max(mean, 0.0))], [min(spread, max(100.0 - mean, 0.0))]]


def averages(scores: RunScores) -> Columns:
    """The run's datasets of each average; a single dataset has its own title."""
    found = {}
    for average, members in MEMBERS.items():
        here = scores.members(average)
        part = "" if len(here) == len(members) else f", {len(here)} of {len(members)} datasets"
        if here:
            found[find_protocol(*here).title if len(here) == 1 else AVERAGE_TITLES[average] + part] = here
    if not found:
        raise InputError("The run has none of the paper's datasets, so the paper's figures cannot be drawn from it.")
    return found


def grid(
    rows: int, columns: Columns, *, width: float, height: float, **shared: Any
) -> tuple[Figure, list[list[tuple[Axes, Any]]]]:
    """A figure, and by row and column an axis with its datasets."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * len(columns), height * rows), layout="constrained")
    axes = figure.subplots(rows, len(columns), squeeze=False, **shared)
    for axis, title in zip(axes[0], columns, strict=True):
        axis.set_title(title)
    return figure, [list(zip(row, columns.values(), strict=True)) for row in axes]
