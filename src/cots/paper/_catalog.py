"""Every experiment of the paper. Its source has no numbers for the figures, so the points on their axes are ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from .._errors import unknown_name
from ..data import PROTOCOLS
from ._experiments import Experiment, Variant
from ._tables import PAPER_TABLES, load_table

VIT = "ViT-B-16/openai"
ADAPTIVE = "adaptive"

_TDA_NOTE = "Streams run in dataset order; the paper does not say how a tuned prompt combines with TDA."
TABLE_NOTES = {
    "coop": "Needs a CoOp checkpoint (ImageNet, 16 shots, 4 context vectors): context=PATH.",
    "timing": "One image at a time; adaptation and calibration only, where the paper times the whole inference.",
    "fine-grained-tda": _TDA_NOTE,
    "imagenet-variants-tda": _TDA_NOTE,
    "zero": "ZERO was published on views without AugMix; here it uses the views of the other methods.",
    "ensemble-only": "Its baseline values differ slightly from the main tables in the paper itself.",
}


def _table(name: str) -> Experiment:
    """One run per backbone, or per prompt where the table compares prompts."""
    table = load_table(name)
    by_prompt = len(table.prompts) > 1
    variants = [
        Variant(
            name=prompt.removesuffix(" {}.").replace(" ", "-") if by_prompt else backbone.replace("/", "-"),
            model=backbone,
            methods=table.methods,
            prompt=prompt if by_prompt or prompt == "coop" else None,
            value=prompt if by_prompt else None,
        )
        for backbone in table.backbones
        for prompt in table.prompts
    ]
    return Experiment(
        name=f"table:{name}",
        title=table.title,
        labels=(table.label,),
        datasets=table.datasets,
        variants=tuple(variants),
        table=name,
        options={"batch_size": 1} if name == "timing" else {},
        note=TABLE_NOTES.get(name, ""),
    )


def _single(*methods: str, **settings: Mapping[str, Any]) -> tuple[Variant, ...]:
    return (Variant(name="ViT-B-16-openai", model=VIT, methods=methods, settings=settings),)


def _sweep(
    setting: str, values: Sequence[Any], *calibrators: str, baselines: Mapping[Any, Sequence[str]] = {}
) -> tuple[Variant, ...]:
    """One run per value of a calibrator's setting; `baselines` run only with the given value."""
    return tuple(
        Variant(
            name=f"{setting}-{value}",
            model=VIT,
            methods=(*baselines.get(value, ()), *(f"tpt+{calibrator}" for calibrator in calibrators)),
            settings={} if value == ADAPTIVE else {calibrator: {setting: value} for calibrator in calibrators},
            value=value,
        )
        for value in values
    )


def _figure(name: str, labels: str, title: str, variants: tuple[Variant, ...], **options: Any) -> Experiment:
    options = {"datasets": tuple(PROTOCOLS), **options}
    return Experiment(name=f"figure:{name}", title=title, labels=tuple(labels.split()), variants=variants, **options)


_FIGURES = (
    _figure("scatter", "fig:scatter", "Average accuracy against average ECE, all methods",
            _single(*load_table("fine-grained").methods)),
    _figure("cor", "fig:replace", "Average ECE of confidence replacement and the calibration methods",
            _single("tpt", "ctpt", "tpt+sals", "tpt+cor", "otpt", "atpt", "soc")),
    _figure("view-selection", "fig:view_num", "CoTS: average ECE by the views that fit the temperature",
            _sweep("views", ("weak", "all_strong", "top", "top_strong"), "cots",
                   baselines={"top_strong": ("tpt", "tpt+cor")})),
    _figure("loss", "fig:loss_function", "CoTS: average ECE by the loss that aligns the confidences",
            _sweep("loss", ("l1", "huber", "kl", "l2"), "cots", baselines={"l2": ("tpt",)}),
            note="The paper compares three losses without naming all of them; cots has four."),
    _figure("alpha-sweep", "fig:alpha_fg_imagenet fig:alpha_imagenet_variants",
            "E-CoTS: accuracy and ECE by the weight of the weak view",
            _sweep("alpha", (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, ADAPTIVE), "ecots")),
    _figure("similarity", "fig:sim_scatter",
            "Accuracy of the weak view relative to the strong views, by the similarity of the class texts",
            _single("tpt", "tpt+ensemble", ensemble={"alpha": 0.0}),
            note="With alpha = 0 the ensemble is the mean of the selected strong views."),
    _figure("steps", "fig:step fig:iter_dtd fig:iter_A",
            "CoTS and E-CoTS: accuracy and ECE by the number of steps that fit the temperature",
            _sweep("steps", (0, 1, 2, 5, 10, 20, 30, 40, 50, 75, 100), "cots", "ecots"),
            datasets=("dtd", "imagenet-a")),
    _figure("k-sensitivity", "fig:hyper_ablation_K_T0", "CoTS: average ECE by the number of strong views",
            _sweep("k", (1, 2, 4, 6, 8, 12, 16, 32), "cots")),
    _figure("t0-sensitivity", "fig:hyper_ablation_K_T0", "CoTS: average ECE by the initial temperature",
            _sweep("t0", (0.5, 0.75, 1.0, 1.25, 1.5, 2.0), "cots")),
    _figure("reliability", "fig:reliability_diagrams_4x4", "Reliability diagrams of five methods on four datasets",
            _single("soc", "otpt", "atpt", "tpt+cots", "tpt+ecots"),
            datasets=("dtd", "flowers", "pets", "imagenet-v2")),
)  # fmt: skip

EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {experiment.name: experiment for experiment in (*map(_table, PAPER_TABLES), *_FIGURES)}
)
"""All experiments by name: `table:...` for the 24 tables, `figure:...` for the 10 figures."""


def find_experiment(name: str) -> Experiment:
    """The experiment with this name, or with this label in the paper's source.

    >>> experiment = find_experiment("figure:steps")
    >>> experiment.datasets, experiment.models, experiment.methods
    (('dtd', 'imagenet-a'), ('ViT-B-16/openai',), ('tpt+cots', 'tpt+ecots'))
    """
    for known, experiment in EXPERIMENTS.items():
        if name == known or name in experiment.labels:
            return experiment
    raise unknown_name("experiment", name, EXPERIMENTS)
