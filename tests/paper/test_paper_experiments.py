"""Experiments by name: what they would run, and one of them run from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.models import tiny

import cots
from cots.bench import RunConfig, run
from cots.data import PROTOCOLS
from cots.paper import EXPERIMENTS, PAPER_TABLES, compare, draw, find_experiment, load_table

FIGURES = """scatter cor view-selection loss alpha-sweep similarity steps k-sensitivity t0-sensitivity reliability"""


def configs(name, **options):
    return find_experiment(name).run_configs("data", "out", **options)


def test_every_table_and_figure_has_an_experiment():
    assert list(EXPERIMENTS) == [*(f"table:{t}" for t in PAPER_TABLES), *(f"figure:{f}" for f in FIGURES.split())]
    for name, experiment in EXPERIMENTS.items():
        assert experiment.name == name
        assert set(experiment.datasets) <= set(PROTOCOLS)


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_every_experiment_makes_configs_that_a_run_takes(name):
    context = "coop.pth" if name == "table:coop" else None
    made = configs(name, context=context)
    assert len(made) == len(EXPERIMENTS[name].variants)
    assert len({str(config.out) for config in made}) == len(made)
    for config in made:
        assert isinstance(config, RunConfig)
        assert config.seeds == (0, 1, 2)
        for method in config.parsed:
            for part in (method.adapter, method.calibrator):
                # A sweep's value must reach the method: calibrate refuses a setting that has no effect.
                assert set(config.settings.get(part, {})) <= set(_settings(part))


def _settings(part):
    from cots.adapters import ADAPTERS
    from cots.calibrators import CALIBRATORS

    return (ADAPTERS if part in ADAPTERS else CALIBRATORS).settings(part)


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_a_table_runs_all_its_methods(name):
    experiment, table = EXPERIMENTS[f"table:{name}"], load_table(name)
    assert set(experiment.methods) == set(table.methods)
    assert experiment.models == table.backbones
    assert experiment.datasets == table.datasets


def test_a_plain_table():
    (config,) = configs("table:imagenet-variants", limit=10, seeds=(5,))
    assert (config.model, config.data, config.out) == ("ViT-B-16/openai", "data", Path("out"))
    assert config.datasets == ("imagenet-a", "imagenet-v2", "imagenet-r", "imagenet-sketch")
    assert ",".join(config.methods) == "zeroshot,tpt,ctpt,penalty,tpt+sals,otpt,atpt,soc,tpt+cots,tpt+ecots"
    assert (config.limit, config.seeds, config.settings, config.cache) == (10, (5,), {}, None)


def test_variants_of_tables():
    resnet = configs("table:backbones")[1]
    assert (resnet.model, resnet.out, resnet.cache) == ("RN50/openai", Path("out/RN50-openai"), Path("out/cache"))
    assert [config.template for config in configs("table:prompts")][::6] == [
        "a bad photo of a {}.",
        "a photo of a small {}.",
    ]
    (learnt,) = configs("table:coop", context="coop.pth")
    assert (learnt.context, learnt.template) == ("coop.pth", None)
    (siglip,) = configs("table:fine-grained-siglip")
    assert siglip.model == "ViT-B-16-SigLIP/webli"
    (timing,) = configs("table:timing")
    assert timing.batch_size == 1


def test_sweeps_set_one_setting_each():
    assert [config.settings for config in configs("figure:alpha-sweep")] == [
        *({"ecots": {"alpha": alpha}} for alpha in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        {},
    ]
    steps = configs("figure:steps")
    assert steps[-1].settings == {"cots": {"steps": 100}, "ecots": {"steps": 100}}
    assert {config.datasets for config in steps} == {("dtd", "imagenet-a")}
    assert [config.settings["cots"]["k"] for config in configs("figure:k-sensitivity")] == [1, 2, 4, 6, 8, 12, 16, 32]
    assert 1.0 in [config.settings["cots"]["t0"] for config in configs("figure:t0-sensitivity")]
    assert {c.settings["cots"]["views"] for c in configs("figure:view-selection")} == {
        "weak",
        "all_strong",
        "top",
        "top_strong",
    }
    assert {c.settings["cots"]["loss"] for c in configs("figure:loss")} == {"l1", "l2", "huber", "kl"}
    (similarity,) = configs("figure:similarity")
    assert similarity.settings == {"ensemble": {"alpha": 0.0}}


def test_other_models_sets_methods_and_settings():
    (config,) = configs("table:backbones", model="mini", datasets=["pets"], methods=["tpt+none", "tpt+cots"])
    assert (config.model, config.datasets, config.methods) == ("mini", ("pets",), ("tpt", "tpt+cots"))
    assert config.out == Path("out")
    assert len(configs("figure:alpha-sweep", model="mini")) == 7
    mixed = configs("figure:k-sensitivity", settings={"cots": {"k": 3, "lr": 0.2}})
    assert mixed[0].settings == {"cots": {"k": 1, "lr": 0.2}}
    shared = configs("figure:steps", cache="elsewhere")
    assert {config.cache for config in shared} == {"elsewhere"}


def test_bad_input():
    with pytest.raises(cots.InputError, match="Did you mean 'table:imagenet-variants'"):
        find_experiment("imagenet-variants")
    with pytest.raises(cots.InputError, match="Did you mean 'figure:alpha-sweep'"):
        find_experiment("figure:alfa-sweep")
    assert find_experiment("fig:iter_A").name == "figure:steps"
    with pytest.raises(cots.InputError, match="give its checkpoint as context=PATH"):
        configs("table:coop")
    with pytest.raises(cots.InputError, match="context= has no effect on table:zero"):
        configs("table:zero", context="coop.pth")
    with pytest.raises(cots.InputError, match="no setting limits"):
        configs("table:zero", limits=3)
    with pytest.raises(cots.InputError, match="Unknown calibrator 'cotz'"):
        configs("table:zero", methods=["tpt+cotz"])


def test_text_says_what_would_be_run():
    text = find_experiment("table:fine-grained-tda").text()
    assert "methods   tda, tda(ctpt), tda(penalty), tda+sals, tda(otpt)," in text
    assert "runs      7: alpha-0.0" in find_experiment("figure:alpha-sweep").text()


@pytest.fixture(scope="module")
def pets(tmp_path_factory):
    """A data folder with an OxfordPets of three classes and six images."""
    root = tmp_path_factory.mktemp("data")
    (root / "oxford_pets" / "images").mkdir(parents=True)
    generator = np.random.default_rng(0)
    items = []
    for i in range(6):
        pixels = generator.integers(0, 256, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "oxford_pets" / "images" / f"{i}.png")
        items.append([f"{i}.png", i % 3, ["abyssinian", "beagle", "pug"][i % 3]])
    split = root / "oxford_pets" / "split_zhou_OxfordPets.json"
    split.write_text(json.dumps({"train": items, "val": items, "test": items}))
    return root


def test_a_sweep_from_end_to_end(pets, tmp_path):
    experiment = find_experiment("figure:alpha-sweep")
    options = {"datasets": ("pets",), "seeds": (0, 1), "views": 12, "batch_size": 6}
    with pytest.raises(cots.CotsError, match="cots paper run figure:alpha-sweep"):
        experiment.open_runs(tmp_path)
    made = experiment.run_configs(pets, tmp_path, tiny("vit"), **options)
    for config in (made[0], made[5], made[6]):
        run(config)
    runs = experiment.open_runs(tmp_path)
    assert list(runs) == ["alpha-0.0", "alpha-1.0", "alpha-adaptive"]
    strong, weak, adaptive = (one.records("pets", "tpt+ecots", 0) for one in runs.values())
    alpha = adaptive.alpha
    assert (strong.alpha, weak.alpha) == (0.0, 1.0)
    mixed = alpha * weak.probabilities + (1 - alpha) * strong.probabilities
    np.testing.assert_allclose(adaptive.probabilities, mixed, atol=1e-6)
    # Views are encoded once for all variants: the cache lies beside them, and none has its own.
    assert (tmp_path / "cache").is_dir()
    assert not (tmp_path / "alpha-0.0" / "features").exists()
    drawn = draw(experiment, runs, tmp_path / "figures", formats=("png",))
    assert "Not run: alpha-0.2, alpha-0.4, alpha-0.6, alpha-0.8." in drawn.caption


def test_a_table_from_end_to_end(pets, tmp_path):
    experiment = find_experiment("table:fine-grained")
    options = {"datasets": ("Pets",), "seeds": (0, 1), "views": 12, "batch_size": 6}
    methods = ["zeroshot", "tpt+cots"]
    (config,) = experiment.run_configs(pets, tmp_path / "run", tiny("vit"), methods=methods, **options)
    run(config)
    runs = experiment.open_runs(tmp_path / "run")
    comparison = compare(runs, "table:fine-grained")
    assert {(r.metric, r.dataset, r.method) for r in comparison.rows} == {
        (metric, "pets", method) for metric in ("accuracy", "ece") for method in ("zeroshot", "tpt+cots")
    }
    (one,) = runs.values()
    share = [100 * one.records("pets", "tpt+cots", seed).correct.mean() for seed in (0, 1)]
    (found,) = [r for r in comparison.rows if (r.metric, r.method) == ("accuracy", "tpt+cots")]
    assert found.ours == pytest.approx(np.mean(share))
    assert comparison.notes == (
        "the paper's backbone is ViT-B-16/openai, ours is tiny-vit.",
        "images unlike the paper's: pets 6 instead of 3669.",
        "views unlike the paper's: pets 12 instead of 64.",
    )
    # A run that somebody made otherwise serves a table with several variants as well.
    (again,) = find_experiment("table:backbones").open_runs(tmp_path / "run").values()
    assert again.manifest == one.manifest
    with pytest.raises(cots.CotsError, match="There is no run of figure:loss"):
        find_experiment("figure:loss").open_runs(tmp_path / "run")


def test_other_methods_keep_only_the_settings_that_they_have():
    steps = find_experiment("figure:steps")
    for config in steps.run_configs("data", "out", methods=("tpt", "tpt+cots")):
        assert set(config.settings) <= {"cots", "tpt", "none"}
    with pytest.raises(
        cots.InputError, match=r"figure:alpha-sweep varies the settings of ecots, which none .* tpt\+cots"
    ):
        find_experiment("figure:alpha-sweep").run_configs("data", "out", methods=("tpt", "tpt+cots"))
