"""The panels of the figures: each function takes measured runs and returns a matplotlib Figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import metrics
from .._errors import InputError
from ..data import find_protocol
from ._experiments import Variant
from ._scores import RunScores, std_over_seeds
from ._tables import FINE_GRAINED, MEMBERS, METRIC_TITLES, VARIANTS, load_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ADAPTER_TITLES = {
    "zeroshot": "zero-shot",
    "ctpt": "C-TPT",
    "otpt": "O-TPT",
    "atpt": "A-TPT",
    "soc": "SoC",
    "penalty": "Penalty",
}
CALIBRATOR_TITLES = {"sals": "SaLS", "cor": "CoR", "cots": "CoTS", "ecots": "E-CoTS", "ensemble": "ensemble"}
GROUP_TITLES = {FINE_GRAINED: "fine-grained", VARIANTS: "ImageNet variants"}
VIEW_TITLES = {"weak": "weak view", "all_strong": "all strong", "top": "top 6", "top_strong": "top 6 strong"}
LOSS_TITLES = {"l1": "L1", "l2": "L2", "huber": "Huber", "kl": "KL"}
# Colours that stay apart for colour-blind readers; blue and orange are kept for CoTS and E-CoTS.
COLOURS = {"tpt+cots": "#0072B2", "tpt+ecots": "#D55E00", "tpt": "#444444", "zeroshot": "#999999", "tpt+cor": "#009E73"}
COLOURS |= {"tpt+sals": "#CC79A7", "ctpt": "#56B4E9", "otpt": "#E69F00", "atpt": "#8C6D31", "soc": "#7B5EA7"}
COLOURS |= {"penalty": "#B8A600"}
MARKERS = {"tpt+cots": "o", "tpt+ecots": "D", "tpt": "s", "zeroshot": "X", "tpt+sals": "v", "ctpt": "<", "otpt": ">"}
MARKERS |= {"atpt": "P", "soc": "h", "penalty": "^"}

HALO = {"linewidth": 2.5, "foreground": "white"}

Panels = list[tuple[str, tuple[str, ...], str]]  # title, data sets, the average they stand for


def method_title(method: str) -> str:
    """A method as a reader knows it.

    >>> method_title("tpt+ecots"), method_title("otpt")
    ('TPT + E-CoTS', 'O-TPT')
    """
    adapter, _, calibrator = method.partition("+")
    title = ADAPTER_TITLES.get(adapter, adapter.upper())
    return f"{title} + {CALIBRATOR_TITLES.get(calibrator, calibrator)}" if calibrator else title


def panels(measured: RunScores) -> Panels:
    """One panel for each average of which the run has sets; the title says when some are missing."""
    found = []
    for group, members in MEMBERS.items():
        here = measured.members(group)
        if here:
            part = "" if len(here) == len(members) else f", {len(here)} of {len(members)} sets"
            found.append((GROUP_TITLES[group] + part, here, group))
    if not found:
        raise InputError("The run has none of the paper's data sets, so its figures cannot be drawn.")
    return found


def scatter(runs: Mapping[str, RunScores], variants: Sequence[Variant]) -> Figure:
    """Average accuracy against average ECE; hollow marks are the paper's, over the same sets."""
    (measured,) = runs.values()
    figure, axes = _grid(1, len(panels(measured)), width=3.6, height=3.2)
    for axis, (title, datasets, group) in zip(axes[0], panels(measured), strict=True):
        for method in _present(variants[0].methods, measured):
            x, y = (measured.mean(metric, method, datasets) for metric in ("ece", "accuracy"))
            if not (x and y):
                continue
            look = {"color": _colour(method), "marker": MARKERS.get(method, "o"), "linestyle": "none", "markersize": 7}
            bars = {"xerr": std_over_seeds(x), "yerr": std_over_seeds(y), "elinewidth": 0.8}
            axis.errorbar(np.mean(x), np.mean(y), label=method_title(method), **look, **bars)
            theirs = [_paper_mean(metric, method, datasets, group) for metric in ("ece", "accuracy")]
            if None not in theirs:
                axis.plot(*theirs, **look, fillstyle="none", alpha=0.55)  # pyright: ignore[reportArgumentType]
        axis.set(title=title, xlabel="ECE (%), lower is better", ylabel="accuracy (%)")
    axes[0][0].plot([], [], "o", color="#444444", fillstyle="none", markersize=7, label="hollow: the paper")
    _legend(figure, axes[0], "outside right center", 1)
    return figure


def bars(runs: Mapping[str, RunScores], variants: Sequence[Variant]) -> Figure:
    """Average ECE, one bar for each method of each variant; the variants' own method is named by their value."""
    first = next(iter(runs.values()))
    figure, axes = _grid(1, len(panels(first)), width=3.8, height=3.0)
    for axis, (title, datasets, _) in zip(axes[0], panels(first), strict=True):
        entries = [
            (_bar_title(variant, method), method, runs[variant.name].mean("ece", method, datasets))
            for variant in variants
            for method in variant.methods
            if variant.name in runs
        ]
        # What is compared with comes first, the paper's choice last.
        entries.sort(key=lambda entry: entry[1] == "tpt+cots" and len(variants) > 1)
        entries = [entry for entry in entries if entry[2]]
        for place, (_, method, values) in enumerate(entries):
            height, error = float(np.mean(values)), std_over_seeds(values) or 0.0
            axis.bar(place, height, color=_colour(method), width=0.72)
            axis.errorbar(place, height, yerr=error, color="#222222", elinewidth=0.9)
            top = (place, height + error)
            axis.annotate(f"{height:.2f}", top, (0, 3), textcoords="offset points", ha="center", size=8)
        axis.set_xticks(range(len(entries)), [name for name, _, _ in entries], rotation=35, ha="right")
        axis.margins(y=0.15)
        axis.set_ylim(bottom=0)
        axis.grid(axis="x", visible=False)
        axis.set(title=title, ylabel="ECE (%)")
    return figure


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A setting along x, a row for each metric, a column for each average or, with `by_set`, each data set.

    A dashed line across is a choice that has no place on the axis; a dotted one upright is the paper's default.
    """

    name: str
    metrics: tuple[str, ...] = ("ece",)
    default: float | None = None
    by_set: bool = False

    def __call__(self, runs: Mapping[str, RunScores], variants: Sequence[Variant]) -> Figure:
        first = next(iter(runs.values()))
        columns = [(title, sets) for title, sets, _ in panels(first)]
        if self.by_set:
            columns = [(find_protocol(name).title, (name,)) for name in first.entries]
        figure, axes = _grid(len(self.metrics), len(columns), width=3.6, height=2.4, sharex=True)
        for row, metric in zip(axes, self.metrics, strict=True):
            for axis, (title, datasets) in zip(row, columns, strict=True):
                for method in _present(variants[0].methods, first):
                    _curve(axis, method, list(_points(runs, variants, metric, method, datasets)))
                if self.default is not None:
                    axis.axvline(self.default, color="#888888", linewidth=0.9, linestyle=":")
                axis.set_ylabel(METRIC_TITLES[metric])
                if row is axes[0]:
                    axis.set_title(title)
                if row is axes[-1]:
                    axis.set_xlabel(self.name)
        _legend(figure, axes[0], "outside lower center", 4)
        return figure


def similarity(runs: Mapping[str, RunScores], variants: Sequence[Variant]) -> Figure:
    """Accuracy of the weak view over that of the selected strong views, against alpha, one point a data set."""
    from matplotlib.patheffects import withStroke

    (measured,) = runs.values()
    weak, strong = variants[0].methods
    figure, axes = _grid(1, 1, width=5.2, height=3.6)
    axis = axes[0][0]
    for name, entry in measured.entries.items():
        top, bottom = measured.values("accuracy", weak, name), measured.values("accuracy", strong, name)
        if not top or not bottom or min(bottom) == 0 or entry.get("alpha") is None:
            continue
        ratios = np.divide(top, bottom)
        colour = "#D55E00" if name in MEMBERS[VARIANTS] else "#0072B2"
        axis.errorbar(
            entry["alpha"], ratios.mean(), yerr=std_over_seeds(ratios.tolist()), fmt="o", color=colour, zorder=4
        )
        text = {"textcoords": "offset points", "size": 8, "color": colour, "path_effects": [withStroke(**HALO)]}
        axis.annotate(find_protocol(name).title, (entry["alpha"], float(ratios.mean())), (5, 3), **text)
    axis.axhline(1, color="#888888", linewidth=0.8, linestyle=":")
    axis.margins(x=0.16, y=0.1)
    axis.set(xlabel="alpha: mean similarity of the class texts", ylabel="accuracy, weak / strong views")
    return figure


def reliability(runs: Mapping[str, RunScores], variants: Sequence[Variant]) -> Figure:
    """A row for each method, a column for each data set: accuracy in each bin of confidence, gap to the diagonal."""
    (measured,) = runs.values()
    methods = _present(variants[0].methods, measured)
    figure, axes = _grid(len(methods), len(measured.entries), width=2.2, height=2.1, sharex=True, sharey=True)
    for row, method in zip(axes, methods, strict=True):
        for axis, name in zip(row, measured.entries, strict=True):
            _bins(axis, metrics.ece(*measured.pooled(method, name)))
            axis.set_title(f"{method_title(method)}: {find_protocol(name).title}", size=8)
    figure.supxlabel("confidence", size=9)
    figure.supylabel("accuracy", size=9)
    return figure


def _bins(axis: Axes, score: metrics.BinnedScore) -> None:
    left, width = score.edges[:-1], np.diff(score.edges)
    filled = score.counts > 0
    place = {"align": "edge", "edgecolor": "white", "linewidth": 0.4}
    axis.bar(left[filled], score.accuracy[filled], width[filled], color="#0072B2", **place)
    low = np.minimum(score.accuracy, score.mean_confidence)[filled]
    colours = np.where(score.gap[filled] > 0, "#D55E00", "#009E73")
    axis.bar(left[filled], np.abs(score.gap[filled]), width[filled], low, color=colours, alpha=0.45, **place)
    centres = (left + width / 2)[~filled]
    # A tick at the base, so that an empty bin and a bin with nothing right look different.
    axis.plot(centres, np.full(len(centres), 0.015), "|", color="#999999", markersize=4)
    axis.plot([0, 1], [0, 1], color="#444444", linewidth=0.8, linestyle="--")
    box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1}
    axis.text(0.05, 0.87, f"ECE {100 * score.value:.2f}%", size=8, bbox=box)
    axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")


def _curve(axis: Axes, method: str, points: Sequence[tuple[Any, tuple[float, ...]]]) -> None:
    numbers = [(x, values) for x, values in points if not isinstance(x, str)]
    x, y = [x for x, _ in numbers], [float(np.mean(values)) for _, values in numbers]
    errors = [std_over_seeds(values) or 0.0 for _, values in numbers]
    look = {"color": _colour(method), "marker": MARKERS.get(method, "o"), "markersize": 4}
    axis.errorbar(x, y, yerr=errors, label=method_title(method), linewidth=1.4, elinewidth=0.8, **look)
    for label, values in points:
        if isinstance(label, str):
            line = {"color": "#222222", "linestyle": "--", "linewidth": 1}
            axis.axhline(float(np.mean(values)), label=f"{method_title(method)}, {label}", **line)


def _points(
    runs: Mapping[str, RunScores], variants: Sequence[Variant], metric: str, method: str, datasets: tuple[str, ...]
) -> Iterator[tuple[Any, tuple[float, ...]]]:
    for variant in variants:
        if variant.name in runs:
            values = runs[variant.name].mean(metric, method, datasets)
            if values:
                yield variant.value, values


def _paper_mean(metric: str, method: str, datasets: tuple[str, ...], group: str) -> float | None:
    """The paper's mean over these sets for ViT-B/16, the model of its figures."""
    table = load_table("fine-grained" if group == FINE_GRAINED else "imagenet-variants")
    cells = [c.value for c in table.select(metric=metric, method=method) if c.dataset in datasets]
    return float(np.mean(cells)) if len(cells) == len(datasets) else None


def _bar_title(variant: Variant, method: str) -> str:
    if variant.value is None or method != "tpt+cots":
        return method_title(method)
    value = str(variant.value)
    return f"CoTS, {VIEW_TITLES.get(value) or LOSS_TITLES.get(value) or value}"


def _present(methods: Sequence[str], measured: RunScores) -> list[str]:
    return [method for method in methods if method in measured.run.methods]


def _colour(method: str) -> str:
    return COLOURS.get(method, "#444444")


def _grid(
    rows: int, columns: int, *, width: float, height: float, sharex: bool = False, sharey: bool = False
) -> tuple[Figure, list[list[Axes]]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey)
    return figure, [list(row) for row in grid]


def _legend(figure: Figure, row: Sequence[Axes], place: Any, columns: int) -> None:
    handles, labels = row[0].get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc=place, ncols=columns, frameon=False, fontsize=8)
