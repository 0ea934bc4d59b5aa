"""The paper's figures, drawn from runs and saved as SVG, PNG and PDF."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._errors import InputError, check_one_of
from ..bench import seeds_text
from ..data import find_protocol
from ..evaluate import deviation
from ..evaluate.plots import FORMATS, LINE, reliability_bars, save_figure, styled
from ..evaluate.text import EQUAL_WIDTH, source_text
from ..methods import method_title
from ._experiments import Experiment, Variant, find_experiment
from ._tables import FINE_GRAINED, MEMBERS, METRIC_TITLES, VARIANTS, RunScores, load_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..bench import Run

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

VariantScores = Mapping[str, RunScores]
Variants = Sequence[Variant]


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A figure, its caption, and the files it was saved to."""

    experiment: str
    caption: str
    files: tuple[Path, ...]
    figure: Figure

    def text(self) -> str:
        return "\n".join([f"{self.experiment}: {self.caption}", *map(str, self.files)])


def draw(
    experiment: str | Experiment,
    runs: Run | Mapping[str, Run],
    out: str | Path | None = None,
    formats: Sequence[str] = FORMATS,
) -> Drawn:
    """Draw a figure of the paper from a run, or from one run per variant (`experiment.open_runs(folder)`).

    out: the folder for `<figure>.svg` and so on; None saves nothing. The caption names missing variants, and the title
    of a panel says if an average lacks some of its datasets.
    """
    chosen = find_experiment(experiment) if isinstance(experiment, str) else experiment
    if chosen.name not in PLOTS:
        raise InputError(f"{chosen.name} is a table; compare a run with it: compare(run, {chosen.table!r}).")
    for name in formats:
        check_one_of("format", name, FORMATS)
    scores, opened = {}, {}
    for name, run in _by_variant(chosen, runs).items():
        scores[name] = opened.setdefault(id(run), RunScores(run))
    plot, legend = PLOTS[chosen.name]
    caption = _caption(chosen, scores, legend)
    with styled({"axes.grid": True, "grid.color": LINE, "grid.linewidth": 0.6}):
        figure = plot(scores, [variant for variant in chosen.variants if variant.name in scores])
    files = []
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
        files = save_figure(figure, Path(out) / chosen.name.partition(":")[2], chosen.title, caption, formats)
    return Drawn(experiment=chosen.name, caption=caption, files=tuple(files), figure=figure)


def _by_variant(experiment: Experiment, runs: Run | Mapping[str, Run]) -> Mapping[str, Run]:
    names = [variant.name for variant in experiment.variants]
    if not isinstance(runs, Mapping):
        runs = {names[0]: runs} if len(names) == 1 else {}
    if not runs or not set(runs) <= set(names):
        raise InputError(
            f"{experiment.name} needs one run for each of {', '.join(names)}. Pass a mapping of these names to "
            f"runs, such as find_experiment({experiment.name!r}).open_runs(folder)."
        )
    return runs


def _caption(experiment: Experiment, scores: VariantScores, legend: str) -> str:
    first, *_ = scores.values()
    sizes = [f"{name} n = {entry.n:,}" for name, entry in first.entries.items()]
    named = []
    for one in scores.values():
        named.append((one.run.manifest.model.name, one.run.manifest.model.weights_hash))
    parts = [f"{experiment.title}.", source_text(sizes, f"20 {EQUAL_WIDTH}", seeds_text(first.run.seeds), named)]
    if len(first.run.seeds) > 1:
        parts.append("Error bars: one standard deviation over seeds.")
    if legend:
        parts.append(legend)
    if missing := [variant.name for variant in experiment.variants if variant.name not in scores]:
        parts.append(f"Not run: {', '.join(missing)}.")
    return " ".join(parts)


def _error_bars(values: Sequence[float]) -> list[list[float]]:
    """One standard deviation below and above the mean, clipped to 0-100%."""
    mean, spread = float(np.mean(values)), deviation(values) or 0.0
    return [[min(spread, max(mean, 0.0))], [min(spread, max(100.0 - mean, 0.0))]]


def _averages(scores: RunScores) -> dict[str, tuple[str, ...]]:
    """The run's datasets of each average; a single dataset has its own title."""
    datasets = {}
    for average, members in MEMBERS.items():
        here = scores.members(average)
        title = AVERAGE_TITLES[average]
        if len(here) < len(members):
            title += f", {len(here)} of {len(members)} datasets"
        if len(here) == 1:
            title = find_protocol(*here).title
        if here:
            datasets[title] = here
    if not datasets:
        raise InputError("The run has none of the paper's datasets, so the paper's figures cannot be drawn from it.")
    return datasets


def _grid(
    rows: int, columns: Mapping[str, tuple[str, ...]], *, width: float, height: float, **shared: Any
) -> tuple[Figure, list[list[tuple[Axes, Any]]]]:
    """A figure, and by row and column an axis with its datasets."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * len(columns), height * rows), layout="constrained")
    axes = figure.subplots(rows, len(columns), squeeze=False, **shared)
    for axis, title in zip(axes[0], columns, strict=True):
        axis.set_title(title)
    return figure, [list(zip(row, columns.values(), strict=True)) for row in axes]


def _points(runs: VariantScores, variants: Variants, metric: str, method: str, datasets: Sequence[str]) -> list[tuple]:
    """(value of the variant, mean over seeds, error bar), without missing ones."""
    points = []
    for variant in variants:
        scores = runs[variant.name]
        values = scores.mean(metric, variant.name_in(scores.run, method), datasets)
        if values:
            points.append((variant.value, float(np.mean(values)), _error_bars(values)))
    return points


def _curve(axis: Axes, points: Sequence[tuple], **look: Any) -> None:
    if points:
        x, y, bars = zip(*points, strict=True)
        axis.errorbar(x, y, yerr=np.concatenate(bars, axis=1), markersize=4, linewidth=1.4, **look)


def _scatter(runs: VariantScores, variants: Variants) -> Figure:
    """Average accuracy against average ECE; hollow markers are the paper's, over the same datasets."""
    (scores,) = runs.values()
    figure, (row,) = _grid(1, _averages(scores), width=3.6, height=3.2)
    for axis, datasets in row:
        for method in variants[0].methods:
            ece, accuracy = scores.mean("ece", method, datasets), scores.mean("accuracy", method, datasets)
            if ece:
                look = {**LOOKS.get(method, OTHER), "linestyle": "none", "markersize": 7}
                spread = {"xerr": _error_bars(ece), "yerr": _error_bars(accuracy), "elinewidth": 0.8}
                axis.errorbar(np.mean(ece), np.mean(accuracy), label=method_title(method), **look, **spread)
                printed = _printed_mean("ece", method, datasets), _printed_mean("accuracy", method, datasets)
                axis.plot(*printed, **look, fillstyle="none", alpha=0.55)
        axis.set(xlabel="ECE (%), lower is better", ylabel="accuracy (%)")
    row[0][0].plot([], [], "o", color="#444444", fillstyle="none", markersize=7, label="hollow: the paper")
    figure.legend(*row[0][0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return figure


def _printed_mean(metric: str, method: str, datasets: Sequence[str]) -> float:
    """The paper's mean over these datasets for ViT-B/16, the model of its figures; NaN where it lacks one."""
    values = []
    for table in (load_table("fine-grained"), load_table("imagenet-variants")):
        for cell in table.select(metric=metric, method=method):
            if cell.dataset in datasets:
                values.append(cell.value)
    return float(np.mean(values)) if len(values) == len(datasets) else np.nan


def _bars(runs: VariantScores, variants: Variants) -> Figure:
    """Average ECE, one bar per method and variant: the baselines first, then the method that is varied."""
    first, *_ = runs.values()
    bars = [(v.value is not None and method == "tpt+cots", v, method) for v in variants for method in v.methods]
    figure, (row,) = _grid(1, _averages(first), width=3.8, height=3.0)
    for axis, datasets in row:
        names = []
        for varied, variant, method in sorted(bars, key=lambda bar: bar[0]):
            for _, height, error in _points(runs, [variant], "ece", method, datasets):
                x, colour = len(names), LOOKS.get(method, OTHER)["color"]
                axis.bar(x, height, yerr=error, color=colour, width=0.72, ecolor="#222222")
                above = {"textcoords": "offset points", "ha": "center", "size": 8}
                axis.annotate(f"{height:.2f}", (x, height + error[1][0]), (0, 3), **above)
                names.append(f"CoTS, {VALUE_TITLES[str(variant.value)]}" if varied else method_title(method))
        axis.set_xticks(range(len(names)), names, rotation=35, ha="right")
        axis.margins(y=0.15)
        axis.grid(axis="x", visible=False)
        axis.set(ylabel="ECE (%)")
    return figure


def _sweep(runs: VariantScores, variants: Variants, setting: str, default: float | None = None) -> Figure:
    """A setting on the x axis, accuracy above ECE; dotted: the paper's default, dashed: a non-numeric choice."""
    first, *_ = runs.values()
    figure, rows = _grid(2, _averages(first), width=3.6, height=2.4, sharex=True)
    for row, metric in zip(rows, ("accuracy", "ece"), strict=True):
        for axis, datasets in row:
            for method in variants[0].methods:
                points, title = _points(runs, variants, metric, method, datasets), method_title(method)
                numeric, named = [], []
                for point in points:
                    (named if isinstance(point[0], str) else numeric).append(point)
                _curve(axis, numeric, label=title, elinewidth=0.8, **LOOKS.get(method, OTHER))
                for value, y, _ in named:
                    axis.axhline(y, label=f"{title}, {value}", color="#222222", ls="--", lw=1)
            if default is not None:
                axis.axvline(default, **GUIDE)
            axis.set(ylabel=METRIC_TITLES[metric], xlabel=setting if row is rows[-1] else "")
    figure.legend(*rows[0][0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _sensitivity(runs: VariantScores, variants: Variants) -> Figure:
    """One panel for K and one for T0, with a curve per group of datasets; dotted: the paper's choice."""
    first, *_ = runs.values()
    groups = _averages(first).items()
    panels = (("k-", "number of strong views K", 6), ("t0-", "initial temperature $T_0$", 1.0))
    figure, (row,) = _grid(1, {"K": (), "T0": ()}, width=3.4, height=2.6, sharey=True)
    for (axis, _), (prefix, title, default) in zip(row, panels, strict=True):
        for (group, datasets), colour, marker in zip(groups, ("#0072B2", "#D55E00"), "os", strict=False):
            swept = [variant for variant in variants if variant.name.startswith(prefix)]
            points = _points(runs, swept, "ece", "tpt+cots", datasets)
            _curve(axis, points, label=group, color=colour, marker=marker)
        axis.axvline(default, **GUIDE)
        axis.set(xlabel=title, title="")
    row[0][0].set(ylabel=METRIC_TITLES["ece"])
    figure.legend(*row[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    return figure


def _similarity(runs: VariantScores, variants: Variants) -> Figure:
    """Accuracy of the weak view divided by that of the selected strong views, against alpha, one point per dataset."""
    (scores,), (variant,) = runs.values(), variants
    names = [variant.name_in(scores.run, method) for method in variant.methods]
    figure, (((axis, _),),) = _grid(1, {"": ()}, width=5.2, height=3.6)
    infinite = []
    for dataset, entry in scores.entries.items():
        weak, strong = (scores.values("accuracy", name, dataset) for name in names)
        if weak and strong and entry.alpha is not None:
            colour, title = "#D55E00" if dataset in MEMBERS[VARIANTS] else "#0072B2", find_protocol(dataset).title
            beside = {"textcoords": "offset points", "color": colour, "size": 8}
            if min(strong) == 0:  # no ratio, but an alpha
                infinite.append((entry.alpha, title, beside))
                continue
            ratios = np.divide(weak, strong).tolist()
            point = (entry.alpha, float(np.mean(ratios)))
            axis.errorbar(*point, yerr=deviation(ratios), fmt="o", color=colour, zorder=4)
            axis.annotate(title, point, (5, 3), **beside)
    for alpha, title, beside in infinite:
        top = axis.get_xaxis_transform()
        axis.plot([alpha], [0.97], "^", color=beside["color"], transform=top, clip_on=False)
        axis.annotate(f"{title}: strong views never right", (alpha, 0.97), (6, -3), xycoords=top, **beside)
    axis.axhline(1, **GUIDE)
    axis.margins(x=0.16, y=0.1)
    axis.set(xlabel="alpha: mean similarity of the class texts", ylabel="accuracy, weak / strong views")
    return figure


def _reliability(runs: VariantScores, variants: Variants) -> Figure:
    """One row per method, one column per dataset."""
    (scores,) = runs.values()
    methods = [method for method in variants[0].methods if method in scores.run.methods]
    columns = {find_protocol(name).title: (name,) for name in find_experiment("figure:reliability").datasets}
    figure, rows = _grid(len(methods), columns, width=2.2, height=2.1, sharex=True, sharey=True)
    for row, method in zip(rows, methods, strict=True):
        for axis, (dataset,) in row:
            axis.set_title(f"{method_title(method)}: {find_protocol(dataset).title}", size=8)
            axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
            if dataset not in scores.entries:
                axis.text(0.5, 0.5, "not run", ha="center", va="center", color=GUIDE["color"])
                continue
            ece = scores.pooled(method, dataset).reliability()
            reliability_bars(axis, ece)
            box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1}
            axis.text(0.05, 0.87, f"ECE {100 * ece.value:.2f}%", size=8, bbox=box)
    figure.supxlabel("confidence", size=9)
    figure.supylabel("accuracy", size=9)
    return figure


_DEFAULT = "Dotted: the paper's choice."
# The function that draws each figure, and the legend in its caption.
PLOTS: Mapping[str, tuple[Callable[..., Figure], str]] = {
    "figure:scatter": (_scatter, "Hollow markers: the paper's values for ViT-B/16 over the same datasets."),
    "figure:cor": (_bars, ""),
    "figure:view-selection": (_bars, ""),
    "figure:loss": (_bars, ""),
    "figure:alpha-sweep": (partial(_sweep, setting="weight of the weak view"), ""),
    "figure:similarity": (_similarity, ""),
    "figure:steps": (partial(_sweep, setting="steps", default=50), _DEFAULT),
    "figure:sensitivity": (_sensitivity, _DEFAULT),
    "figure:reliability": (_reliability, "Seeds pooled; gaps in red are over-confident, in yellow under-confident."),
}
