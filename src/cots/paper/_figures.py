"""The paper's figures from runs, as SVG, PNG and PDF."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._errors import InputError, unknown_name
from . import _panels as panels
from ._catalog import find_experiment
from ._experiments import Experiment
from ._scores import RunScores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..bench import Run

FORMATS = ("svg", "png", "pdf")
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "svg.hashsalt": "cots",  # the same run gives the same file
}
PLOTS: Mapping[str, Callable[..., Any]] = {
    "figure:scatter": panels.scatter,
    "figure:cor": panels.bars,
    "figure:view-selection": panels.bars,
    "figure:loss": panels.bars,
    "figure:alpha-sweep": panels.Sweep(name="weight of the weak view", metrics=("accuracy", "ece")),
    "figure:similarity": panels.similarity,
    "figure:steps": panels.Sweep(name="steps", metrics=("accuracy", "ece"), default=50, by_set=True),
    "figure:k-sensitivity": panels.Sweep(name="number of strong views", default=6),
    "figure:t0-sensitivity": panels.Sweep(name="starting temperature", default=1.0),
    "figure:reliability": panels.reliability,
}


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A figure, its caption, and the files it was written to."""

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
    """Draw a figure of the paper from a run, or from the runs of all variants (`experiment.open_runs(folder)`).

    out: the folder for `<figure>.svg` and so on; None writes nothing. Variants without a run are left out and named
    in the caption, and so is an average's panel that has only some of its sets.
    """
    chosen = find_experiment(experiment) if isinstance(experiment, str) else experiment
    if chosen.name not in PLOTS:
        raise InputError(f"{chosen.name} is a table; set it beside a run with compare(run, {chosen.table!r}).")
    for name in formats:
        if name not in FORMATS:
            raise unknown_name("format", name, FORMATS)
    measured = {name: RunScores(run) for name, run in _by_variant(chosen, runs).items()}
    variants = [variant for variant in chosen.variants if variant.name in measured]
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure = PLOTS[chosen.name](measured, variants)
        files = [] if out is None else _save(figure, Path(out), chosen.name.partition(":")[2], formats)
    return Drawn(experiment=chosen.name, caption=_caption(chosen, measured), files=tuple(files), figure=figure)


def _by_variant(experiment: Experiment, runs: Run | Mapping[str, Run]) -> Mapping[str, Run]:
    names = [variant.name for variant in experiment.variants]
    if not isinstance(runs, Mapping):
        if len(names) > 1:
            raise InputError(
                f"{experiment.name} is drawn from {len(names)} runs; give a mapping of {', '.join(names[:3])}, ... to "
                f"runs, such as find_experiment({experiment.name!r}).open_runs(folder)."
            )
        return {names[0]: runs}
    for name in runs:
        if name not in names:
            raise unknown_name(f"variant of {experiment.name}:", name, names)
    if not runs:
        raise InputError(f"{experiment.name}: there is no run to draw.")
    return runs


def _save(figure: Figure, out: Path, name: str, formats: Sequence[str]) -> list[Path]:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out} cannot be made a folder for figures ({error}); give another out=.") from None
    # Without a date in the file, drawing again changes nothing.
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    files = []
    for kind in formats:
        file = out / f"{name}.{kind}"
        figure.savefig(file, format=kind, metadata=dates[kind])
        files.append(file)
    return files


def _caption(experiment: Experiment, measured: Mapping[str, RunScores]) -> str:
    runs = [one.run for one in measured.values()]
    models = dict.fromkeys(
        f"{run.manifest['model']['name']} ({run.manifest['model']['weights_hash'][:12]})" for run in runs
    )
    first = next(iter(measured.values()))
    sizes = ", ".join(f"{name} n={entry['n']}" for name, entry in first.entries.items())
    seeds = ", ".join(map(str, runs[0].seeds))
    missing = [variant.name for variant in experiment.variants if variant.name not in measured]
    parts = [
        f"{experiment.title}. {', '.join(models)}; seeds {seeds}, error bars of one standard deviation; {sizes}; "
        "ECE with 20 equal bins (lo, hi]."
    ]
    plot = PLOTS[experiment.name]
    if isinstance(plot, panels.Sweep) and plot.default is not None:
        parts.append(f"Dotted: the paper's choice, {plot.default:g}.")
    if experiment.name == "figure:scatter":
        parts.append("Hollow marks: the paper's figures for ViT-B/16 over the same sets.")
    if experiment.name == "figure:reliability":
        parts.append("Samples of all seeds pooled; orange gaps are over-confident, green under-confident.")
    if missing:
        parts.append(f"Not run: {', '.join(missing)}.")
    return " ".join(parts)
