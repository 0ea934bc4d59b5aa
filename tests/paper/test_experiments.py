"""The paper's 33 experiments: the runs of each, with other models and options, and two run end to end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.models import tiny
from support.paper_run import write_pets

import cots
from cots.bench import RunConfig, run
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
    assert len({str(config.out) for config in made}) == len(made) == len(EXPERIMENTS[name].groups())
    for config in made:
        assert isinstance(config, RunConfig)
        assert config.seeds == (0, 1, 2)
        assert config.settings == {}, "the settings of a sweep are in the names of its methods"


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
    """All values are methods of one run, and the paper's own value is the plain method."""
    for name, methods in {
        "alpha-sweep": "tpt+ecots(alpha=0),tpt+ecots(alpha=0.2),tpt+ecots(alpha=0.4),tpt+ecots(alpha=0.6),"
        "tpt+ecots(alpha=0.8),tpt+ecots(alpha=1),tpt+ecots",
        "view-selection": "tpt+cots(views=weak),tpt+cots(views=all_strong),tpt+cots(views=top),tpt,tpt+cor,tpt+cots",
        "loss": "tpt+cots(loss=l1),tpt+cots(loss=huber),tpt+cots(loss=kl),tpt,tpt+cots",
        "sensitivity": "tpt+cots(k=1),tpt+cots(k=2),tpt+cots(k=4),tpt+cots,tpt+cots(k=8),tpt+cots(k=12),tpt+cots(k=16),"
        "tpt+cots(k=32),tpt+cots(t0=0.5),tpt+cots(t0=0.75),tpt+cots(t0=1.25),tpt+cots(t0=1.5),tpt+cots(t0=2)",
        "similarity": "tpt,tpt+ensemble(alpha=0)",
    }.items():
        (config,) = configs(f"figure:{name}")
        assert ",".join(config.methods) == methods
    (steps,) = configs("figure:steps")
    assert steps.datasets == ("dtd", "imagenet-a")
    assert steps.methods[:2] + steps.methods[-2:] == (
        *("tpt+cots(steps=0)", "tpt+ecots(steps=0)"),
        *("tpt+cots(steps=100)", "tpt+ecots(steps=100)"),
    )
    assert {"tpt+cots", "tpt+ecots"} < set(steps.methods)
    assert len(steps.methods) == 22
    (fewer,) = configs("figure:sensitivity", views=40)  # of which CoTS selects 3
    assert "tpt+cots(k=6)" in fewer.methods


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
    assert [config.model for config in configs("figure:alpha-sweep", model="mini")] == ["mini"]
    (mixed,) = configs("figure:sensitivity", settings={"cots": {"k": 3, "lr": 0.2}})
    assert mixed.settings == {"cots": {"k": 3, "lr": 0.2}}
    assert {"tpt+cots(k=1)", "tpt+cots(k=6)", "tpt+cots"} < set(mixed.methods), "k = 6 is no longer the default"
    assert [config.cache for config in configs("table:backbones", cache="elsewhere")] == ["elsewhere"] * 2


def test_other_methods_keep_only_the_settings_that_they_use():
    (config,) = configs("figure:steps", methods=("tpt", "tpt+cots"))
    assert config.methods[:3] == ("tpt", "tpt+cots(steps=0)", "tpt+cots(steps=1)")
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
    assert "7 variants alpha-0.0, alpha-0.2" in find_experiment("figure:alpha-sweep").text()


@pytest.fixture(scope="module")
def pets(tmp_path_factory):
    return write_pets(tmp_path_factory.mktemp("data"))


def test_a_sweep_end_to_end(pets, tmp_path):
    """One run adapts once; its records are those of a run per value, as earlier versions made them."""
    experiment = find_experiment("figure:alpha-sweep")
    with pytest.raises(cots.CotsError, match="has no run of figure:alpha-sweep; create one with: cots paper run"):
        experiment.open_runs(tmp_path)
    options = {"datasets": ("pets",), "seeds": (0,), "views": 10, "batch_size": 6, "cache": tmp_path / "cache"}
    (config,) = experiment.run_configs(pets, tmp_path / "new", tiny("vit"), **options)
    chosen = [config.methods[0], config.methods[5], config.methods[6]]
    run(config.replace(methods=chosen))
    for name, settings in {"alpha-0.0": {"alpha": 0.0}, "alpha-1.0": {"alpha": 1.0}, "alpha-adaptive": {}}.items():
        given = {"methods": ["tpt+ecots"], "settings": {"ecots": settings} if settings else {}}
        run(config.replace(**given, out=tmp_path / "old" / name))
    new, old = experiment.open_runs(tmp_path / "new"), experiment.open_runs(tmp_path / "old")
    assert list(new) == list(old) == ["alpha-0.0", "alpha-1.0", "alpha-adaptive"]
    records = {}
    for variant in experiment.variants:
        if variant.name in new:
            ours, theirs = new[variant.name], old[variant.name]
            records[variant.name] = ours.records("pets", variant.name_in(ours, "tpt+ecots"), 0)
            before = theirs.records("pets", variant.name_in(theirs, "tpt+ecots"), 0)
            for column in ("probabilities", "tau", "confidence", "views"):
                np.testing.assert_array_equal(getattr(records[variant.name], column), getattr(before, column))
    strong, weak, adaptive = records.values()
    assert (strong.alpha, weak.alpha) == (0.0, 1.0)
    mixed = adaptive.alpha * weak.probabilities + (1 - adaptive.alpha) * strong.probabilities
    np.testing.assert_allclose(adaptive.probabilities, mixed, atol=1e-6)
    for runs in (new, old):
        drawn = draw(experiment, runs)
        assert "Not run: alpha-0.2, alpha-0.4, alpha-0.6, alpha-0.8." in drawn.caption
        assert drawn.figure.axes[0].lines[0].get_xdata().tolist() == [0.0, 1.0]


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
    assert list(find_experiment("figure:loss").open_runs(tmp_path)) == ["loss-l2"]
    with pytest.raises(cots.CotsError, match="has no run of figure:similarity"):
        find_experiment("figure:similarity").open_runs(tmp_path)


def test_panels_are_found_by_their_label():
    for label in ("fig:soc_dtd", "fig:otpt_flower102", "fig:atpt_pets", "fig:cots_v", "fig:reliability_diagrams_4x4"):
        assert find_experiment(label).name == "figure:reliability"
    assert find_experiment("fig:iter_A").name == "figure:steps"
    assert find_experiment("figure:reliability").text().splitlines()[0].endswith("(fig:reliability_diagrams_4x4)")
