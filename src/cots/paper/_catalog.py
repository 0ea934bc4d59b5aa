"""Every experiment of the paper. Its source holds no numbers of the figures, so the points on their axes are ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._errors import InputError, unknown_name
from ._experiments import Experiment, Variant, frozen
from ._tables import FINE_GRAINED, MEMBERS, PAPER_TABLES, VARIANTS, Table, load_table

VIT = "ViT-B-16/openai"
ALL_SETS = (*MEMBERS[FINE_GRAINED], *MEMBERS[VARIANTS])
MAIN_METHODS = load_table("fine-grained").methods
ADAPTIVE = "adaptive"
ALPHAS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
STEPS = (0, 1, 2, 5, 10, 20, 30, 40, 50, 75, 100)
VIEW_COUNTS = (1, 2, 4, 6, 8, 12, 16, 32)
START_TEMPERATURES = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
POOLS = ("weak", "all_strong", "top", "top_strong")
LOSSES = ("l1", "huber", "kl", "l2")

TABLE_NOTES = {
    "coop": "Needs a CoOp checkpoint (ImageNet, 16 shots, 4 context vectors): context=PATH.",
    "timing": "One image at a time; adaptation and calibration alone, where the paper times the whole inference.",
    "fine-grained-tda": "The order of the stream is the data set's; how a tuned prompt goes with TDA is ours.",
    "imagenet-variants-tda": "The order of the stream is the data set's; how a tuned prompt goes with TDA is ours.",
    "zero": "ZERO was published on views without AugMix; here it sees those of the other methods.",
    "ensemble-only": "Its base figures differ slightly from the main tables in the paper itself.",
}
TABLE_OPTIONS: Mapping[str, Mapping[str, Any]] = {"timing": {"batch_size": 1}}


def _of_table(table: Table) -> Experiment:
    several_prompts = len(table.prompts) > 1
    variants = [
        Variant(
            name=prompt.removesuffix(" {}.").replace(" ", "-") if several_prompts else backbone.replace("/", "-"),
            model=backbone,
            methods=tuple(table.methods),
            prompt=prompt if several_prompts or prompt == "coop" else None,
            value=prompt if several_prompts else None,
        )
        for backbone in table.backbones
        for prompt in table.prompts
    ]
    return Experiment(
        name=f"table:{table.id}",
        title=table.title,
        labels=(table.label,),
        datasets=table.datasets,
        variants=tuple(variants),
        table=table.id,
        options=TABLE_OPTIONS.get(table.id, {}),
        note=TABLE_NOTES.get(table.id, ""),
    )


def _sweep(
    parts: Sequence[str], setting: str, values: Sequence[Any], also: Mapping[Any, Sequence[str]] = {}
) -> tuple[Variant, ...]:
    """One variant for each value of a calibrator's setting; `also`: further methods at one of the values."""
    methods = tuple(f"tpt+{part}" for part in parts)
    return tuple(
        Variant(
            name=f"{setting}-{value}",
            model=VIT,
            methods=(*also.get(value, ()), *methods),
            settings={} if value == ADAPTIVE else {part: {setting: value} for part in parts},
            value=value,
        )
        for value in values
    )


def _figure(name: str, title: str, labels: Sequence[str], variants: Sequence[Variant], **more: Any) -> Experiment:
    datasets = more.pop("datasets", ALL_SETS)
    return Experiment(
        name=f"figure:{name}", title=title, labels=tuple(labels), variants=tuple(variants), datasets=datasets, **more
    )


def _single(*methods: str, **settings: Mapping[str, Any]) -> tuple[Variant]:
    return (Variant(name=VIT.replace("/", "-"), model=VIT, methods=methods, settings=settings),)


_FIGURES = (
    _figure("scatter", "Average accuracy against average ECE, all methods", ["fig:scatter"], _single(*MAIN_METHODS)),
    _figure(
        "cor",
        "Average ECE of confidence replacement beside the calibration methods",
        ["fig:replace"],
        _single("tpt", "ctpt", "tpt+sals", "tpt+cor", "otpt", "atpt", "soc"),
    ),
    _figure(
        "view-selection",
        "CoTS: average ECE by the views that fit the temperature",
        ["fig:view_num"],
        _sweep(["cots"], "views", POOLS, {"top_strong": ("tpt", "tpt+cor")}),
    ),
    _figure(
        "loss",
        "CoTS: average ECE by the loss that aligns the confidences",
        ["fig:loss_function"],
        _sweep(["cots"], "loss", LOSSES, {"l2": ("tpt",)}),
        note="The paper compares three losses without naming all of them; cots has four.",
    ),
    _figure(
        "alpha-sweep",
        "E-CoTS: accuracy and ECE by the weight of the weak view",
        ["fig:alpha_fg_imagenet", "fig:alpha_imagenet_variants"],
        _sweep(["ecots"], "alpha", (*ALPHAS, ADAPTIVE)),
    ),
    _figure(
        "similarity",
        "Accuracy of the weak view over that of the strong views, by the similarity of the class texts",
        ["fig:sim_scatter"],
        _single("tpt", "tpt+ensemble", ensemble={"alpha": 0.0}),
        note="With alpha = 0 the ensemble is the mean of the selected strong views.",
    ),
    _figure(
        "steps",
        "CoTS and E-CoTS: accuracy and ECE by the steps that fit the temperature",
        ["fig:step", "fig:iter_dtd", "fig:iter_A"],
        _sweep(["cots", "ecots"], "steps", STEPS),
        datasets=("dtd", "imagenet-a"),
    ),
    _figure(
        "k-sensitivity",
        "CoTS: average ECE by the number of strong views",
        ["fig:hyper_ablation_K_T0"],
        _sweep(["cots"], "k", VIEW_COUNTS),
    ),
    _figure(
        "t0-sensitivity",
        "CoTS: average ECE by the temperature that the search starts from",
        ["fig:hyper_ablation_K_T0"],
        _sweep(["cots"], "t0", START_TEMPERATURES),
    ),
    _figure(
        "reliability",
        "Reliability diagrams of five methods on four sets",
        ["fig:reliability_diagrams_4x4"],
        _single("soc", "otpt", "atpt", "tpt+cots", "tpt+ecots"),
        datasets=("dtd", "flowers", "pets", "imagenet-v2"),
    ),
)

EXPERIMENTS: Mapping[str, Experiment] = frozen([*(_of_table(load_table(name)) for name in PAPER_TABLES), *_FIGURES])
"""All experiments by name: `table:...` for the 24 tables, `figure:...` for the figures."""


def find_experiment(name: str) -> Experiment:
    """The experiment of this name, or of this label in the paper's source.

    >>> find_experiment("figure:steps").datasets
    ('dtd', 'imagenet-a')
    """
    for known, experiment in EXPERIMENTS.items():
        if name == known or name in experiment.labels:
            return experiment
    # A bare name is most likely a table or a figure without its prefix.
    guesses = [known for known in EXPERIMENTS if known.partition(":")[2] == name]
    if guesses:
        raise InputError(f"Unknown experiment {name!r}. Did you mean {guesses[0]!r}?")
    raise unknown_name("experiment", name, EXPERIMENTS)
