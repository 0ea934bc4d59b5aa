"""The paper's 34 experiments by name, and the runs that each of them makes."""

from __future__ import annotations

from pathlib import Path

import pytest

import cots
from cots.adapters import ADAPTERS
from cots.bench import RunConfig
from cots.calibrators import CALIBRATORS
from cots.data import PROTOCOLS
from cots.paper import EXPERIMENTS, PAPER_TABLES, find_experiment, load_table

FIGURES = "scatter cor view-selection loss alpha-sweep similarity steps k-sensitivity t0-sensitivity reliability"


def configs(name, **options):
    return find_experiment(name).run_configs("data", "out", **options)


def test_every_table_and_figure_has_an_experiment():
    assert list(EXPERIMENTS) == [*(f"table:{t}" for t in PAPER_TABLES), *(f"figure:{f}" for f in FIGURES.split())]
    assert len(EXPERIMENTS) == 34
    for name, experiment in EXPERIMENTS.items():
        assert experiment.name == name
        assert set(experiment.datasets) <= set(PROTOCOLS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_makes_valid_run_configs(name):
    made = configs(name, context="coop.pth" if name == "table:coop" else None)
    assert len({str(config.out) for config in made}) == len(made) == len(EXPERIMENTS[name].variants)
    for config in made:
        assert isinstance(config, RunConfig)
        assert config.seeds == (0, 1, 2)
        for part, settings in config.settings.items():
            registry = ADAPTERS if part in ADAPTERS else CALIBRATORS
            assert set(settings) <= set(registry.settings(part)), "a sweep's value must reach the method"


def test_a_table_runs_all_its_methods():
    for name in PAPER_TABLES:
        experiment, table = EXPERIMENTS[f"table:{name}"], load_table(name)
        assert (experiment.methods, experiment.models, experiment.datasets) == (
            table.methods,
            table.backbones,
            table.datasets,
        )


def test_a_plain_table():
    (config,) = configs("table:imagenet-variants", limit=10, seeds=(5,))
    assert (config.model, config.data, config.out) == ("ViT-B-16/openai", "data", Path("out"))
    assert config.datasets == ("imagenet-a", "imagenet-v2", "imagenet-r", "imagenet-sketch")
    assert ",".join(config.methods) == "zeroshot,tpt,ctpt,penalty,tpt+sals,otpt,atpt,soc,tpt+cots,tpt+ecots"
    assert (config.limit, config.seeds, config.settings, config.cache) == (10, (5,), {}, None)


def test_tables_with_other_models_prompts_and_options():
    resnet = configs("table:backbones")[1]
    assert (resnet.model, resnet.out, resnet.cache) == ("RN50/openai", Path("out/RN50-openai"), Path("out/cache"))
    templates = [config.template for config in configs("table:prompts")]
    assert (len(templates), templates[0], templates[-1]) == (7, "a bad photo of a {}.", "a photo of a small {}.")
    (coop,) = configs("table:coop", context="coop.pth")
    assert (coop.context, coop.template) == ("coop.pth", None)
    assert configs("table:fine-grained-siglip")[0].model == "ViT-B-16-SigLIP/webli"
    assert configs("table:timing")[0].batch_size == 1


def test_a_sweep_varies_one_setting():
    alphas = [config.settings for config in configs("figure:alpha-sweep")]
    assert alphas == [*({"ecots": {"alpha": alpha}} for alpha in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)), {}]
    steps = configs("figure:steps")
    assert steps[-1].settings == {"cots": {"steps": 100}, "ecots": {"steps": 100}}
    assert {config.datasets for config in steps} == {("dtd", "imagenet-a")}
    for name, setting, values in (
        ("k-sensitivity", "k", {1, 2, 4, 6, 8, 12, 16, 32}),
        ("t0-sensitivity", "t0", {0.5, 0.75, 1.0, 1.25, 1.5, 2.0}),
        ("view-selection", "views", {"weak", "all_strong", "top", "top_strong"}),
        ("loss", "loss", {"l1", "l2", "huber", "kl"}),
    ):
        assert {config.settings["cots"][setting] for config in configs(f"figure:{name}")} == values
    assert configs("figure:similarity")[0].settings == {"ensemble": {"alpha": 0.0}}


def test_unknown_experiments_get_a_suggestion():
    assert find_experiment("fig:iter_A").name == "figure:steps"
    with pytest.raises(cots.InputError, match="Did you mean 'table:imagenet-variants'"):
        find_experiment("imagenet-variants")
    with pytest.raises(cots.InputError, match="Did you mean 'figure:alpha-sweep'"):
        find_experiment("figure:alfa-sweep")
