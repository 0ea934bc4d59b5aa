"""The paper's 33 experiments: the runs of each, with other models and options, and two run end to end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.models import tiny
from support.paper_run import write_pets

import cots
from cots.adapters import ADAPTERS
from cots.bench import RunConfig, run
from cots.calibrators import CALIBRATORS
from cots.data import PROTOCOLS
from cots.paper import EXPERIMENTS, PAPER_TABLES, compare, draw, find_experiment, load_table

FIGURES = "scatter cor view-selection loss alpha-sweep similarity steps sensitivity reliability"


def configs(name, **options):
    return find_experiment(name).run_configs("data", "out", **options)


def test_every_table_and_figure_has_an_experiment():
    assert list(EXPERIMENTS) == [*(f"table:{t}" for t in PAPER_TABLES), *(f"figure:{f}" for f in FIGURES.split())]
    assert len(EXPERIMENTS) == 33
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
        ("sensitivity", "k", {1, 2, 4, 6, 8, 12, 16, 32, None}),
        ("sensitivity", "t0", {0.5, 0.75, 1.0, 1.25, 1.5, 2.0, None}),
        ("view-selection", "views", {"weak", "all_strong", "top", "top_strong"}),
        ("loss", "loss", {"l1", "l2", "huber", "kl"}),
    ):
        assert {config.settings["cots"].get(setting) for config in configs(f"figure:{name}")} == values
    assert configs("figure:similarity")[0].settings == {"ensemble": {"alpha": 0.0}}


def test_unknown_experiments_get_a_suggestion():
    assert find_experiment("fig:iter_A").name == "figure:steps"
    with pytest.raises(cots.InputError, match="Did you mean 'table:imagenet-variants'"):
        find_experiment("imagenet-variants")
    with pytest.raises(cots.InputError, match="Did you mean 'figure:alpha-sweep'"):
        find_experiment("figure:alfa-sweep")


def test_other_models_datasets_methods_and_settings():
    (config,) = configs("table:backbones", model="mini", datasets=["pets"], methods=["tpt+none", "tpt+cots"])
    assert (config.model, config.datasets, config.methods) == ("mini", ("pets",), ("tpt", "tpt+cots"))
    assert config.out == Path("out")
    assert len(configs("figure:alpha-sweep", model="mini")) == 7
    mixed = configs("figure:sensitivity", settings={"cots": {"k": 3, "lr": 0.2}})
    assert mixed[0].settings == {"cots": {"k": 1, "lr": 0.2}}
    assert {config.cache for config in configs("figure:steps", cache="elsewhere")} == {"elsewhere"}


def test_other_methods_keep_only_the_settings_that_they_use():
    assert {tuple(config.settings) for config in configs("figure:steps", methods=("tpt", "tpt+cots"))} == {("cots",)}
    with pytest.raises(cots.InputError, match=r"varies the settings of ecots, which none of the methods .*tpt\+cots"):
        configs("figure:alpha-sweep", methods=("tpt", "tpt+cots"))


def test_bad_input():
    for options, message in (
        ({"name": "table:coop"}, "pass its checkpoint as context=PATH"),
        ({"name": "table:zero", "context": "coop.pth"}, "context= has no effect on table:zero"),
        ({"name": "table:zero", "methods": ["tpt+cotz"]}, "Unknown calibrator 'cotz'"),
        ({"name": "table:prompts", "template": "a {}."}, "template= has no effect on table:prompts"),
    ):
        with pytest.raises(cots.InputError, match=message):
            configs(**options)


def test_text_lists_what_is_run():
    assert "webli is our choice" in find_experiment("table:fine-grained-siglip").text()
    text = find_experiment("table:fine-grained-tda").text()
    assert "methods   tda, tda(ctpt), tda(penalty), tda+sals, tda(otpt)," in text
    assert "7 runs    alpha-0.0, alpha-0.2" in find_experiment("figure:alpha-sweep").text()


@pytest.fixture(scope="module")
def pets(tmp_path_factory):
    return write_pets(tmp_path_factory.mktemp("data"))


def test_a_sweep_end_to_end(pets, tmp_path):
    experiment = find_experiment("figure:alpha-sweep")
    with pytest.raises(cots.CotsError, match="has no run of figure:alpha-sweep; create one with: cots paper run"):
        experiment.open_runs(tmp_path)
    made = experiment.run_configs(pets, tmp_path, tiny("vit"), datasets=("pets",), seeds=(0,), views=10, batch_size=6)
    for config in (made[0], made[5], made[6]):
        run(config)
    runs = experiment.open_runs(tmp_path)
    assert list(runs) == ["alpha-0.0", "alpha-1.0", "alpha-adaptive"]
    strong, weak, adaptive = (one.records("pets", "tpt+ecots", 0) for one in runs.values())
    alpha = adaptive.alpha
    assert (strong.alpha, weak.alpha) == (0.0, 1.0)
    mixed = alpha * weak.probabilities + (1 - alpha) * strong.probabilities
    np.testing.assert_allclose(adaptive.probabilities, mixed, atol=1e-6)
    # All variants share one feature cache.
    assert (tmp_path / "cache").is_dir()
    assert not (tmp_path / "alpha-0.0" / "features").exists()
    assert "Not run: alpha-0.2, alpha-0.4, alpha-0.6, alpha-0.8." in draw(experiment, runs).caption


def test_a_table_end_to_end(pets, tmp_path):
    experiment = find_experiment("table:fine-grained")
    options = {"datasets": ("Pets",), "methods": ["zeroshot", "tpt+cots"], "views": 10, "batch_size": 6}
    (config,) = experiment.run_configs(pets, tmp_path, tiny("vit"), seeds=(0, 1), **options)
    run(config)
    (one,) = experiment.open_runs(tmp_path).values()
    comparison = compare(one, "table:fine-grained")
    assert [(r.metric, r.dataset, r.method) for r in comparison.rows] == [
        (metric, "pets", method) for metric in ("accuracy", "ece") for method in ("zeroshot", "tpt+cots")
    ]
    accuracy = [100 * one.records("pets", "tpt+cots", seed).correct.mean() for seed in (0, 1)]
    assert comparison.rows[1].ours == pytest.approx(np.mean(accuracy))
    assert comparison.notes == (
        "the paper's backbone is ViT-B-16/openai, ours is tiny-vit.",
        "images not as in the paper: pets 6 instead of 3669.",
        "views not as in the paper: pets 10 instead of 64.",
    )
    # Any run serves any table, also one with several variants.
    (again,) = find_experiment("table:backbones").open_runs(tmp_path).values()
    assert again.manifest == one.manifest
    with pytest.raises(cots.CotsError, match="has no run of figure:loss"):
        find_experiment("figure:loss").open_runs(tmp_path)


def test_panels_are_found_by_their_label():
    for label in ("fig:soc_dtd", "fig:otpt_flower102", "fig:atpt_pets", "fig:cots_v", "fig:reliability_diagrams_4x4"):
        assert find_experiment(label).name == "figure:reliability"
    assert find_experiment("fig:iter_A").name == "figure:steps"
    assert find_experiment("figure:reliability").text().splitlines()[0].endswith("(fig:reliability_diagrams_4x4)")
