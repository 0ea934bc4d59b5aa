"""Every experiment at once: the plan over an empty, a partial and a complete data folder, and a page from runs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from support.layouts import FOLDERS, SPLITS, write_aircraft, write_split, write_synsets
from support.models import tiny
from support.paper_run import write_pets
from typer.testing import CliRunner

import cots
from cots import bench
from cots.cli import app
from cots.data import PROTOCOLS
from cots.methods import parse_method
from cots.paper import EXPERIMENTS, PaperPlan, _all, plan_all, runs_in

ROOT = Path(__file__).parents[2]

# All but figure:loss; tests/paper/test_figures.py draws every figure.
UNDRAWN = ("figure:reliability", "figure:cor", "figure:alpha-sweep", "figure:scatter")


def cli(*words, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output + (str(result.exception) if code else "")


def test_an_empty_folder_lists_all_that_is_missing(tmp_path):
    output = cli("paper", "run", "all", "--data", tmp_path, "--dry-run")
    assert output.startswith(f"missing datasets: {', '.join(PROTOCOLS)}\n")
    assert output.endswith("nothing to run\n")
    assert output.count("skipped ") == len(EXPERIMENTS)
    assert "no dataset to run on. Add some" in cli("paper", "run", "all", "--data", tmp_path, "--available", code=1)
    with pytest.raises(cots.InputError, match=r"lacks 15 of 15 datasets: imagenet, dtd, .*--available"):
        plan_all(tmp_path, tmp_path / "out")
    with pytest.raises(cots.InputError, match="lacks imagenet-a, imagenet-v2, imagenet-r, imagenet-sketch"):
        CliRunner().invoke(
            app, ["paper", "run", "table:imagenet-variants", "--data", str(tmp_path)], catch_exceptions=False,
            standalone_mode=False,
        )  # fmt: skip


def test_a_complete_folder(tmp_path):
    for name in SPLITS:
        write_split(tmp_path, name, classes=1, per_class=1)
    for name in FOLDERS:
        write_synsets(tmp_path, name, classes=1)
    write_aircraft(tmp_path)
    output = cli("paper", "run", "all", "--data", tmp_path, "--dry-run", "--context", "coop.pth")
    assert "missing" not in output
    assert "will show" not in output, "everything"
    assert "skipped" not in output
    assert "33 of 33 experiments" in output
    assert "135 encodings of (model, dataset, seed), each once" in output  # three models, fifteen datasets, three seeds
    assert "table:timing encodes again" in output
    plan = plan_all(tmp_path, tmp_path / "out", context="coop.pth")
    # One run of the main model serves every table and figure that needs no setting of its own.
    main = plan.runs["ViT-B-16-openai"]
    assert main.datasets == tuple(PROTOCOLS)
    served = [name for name, runs in plan.folders.items() if "ViT-B-16-openai" in runs.values()]
    assert {"table:fine-grained", "table:brier-imagenet-variants", "table:zero", "figure:cor"} <= set(served)
    assert plan.folders["table:backbones"] == {"ViT-B-16-openai": "ViT-B-16-openai", "RN50-openai": "RN50-openai"}
    timing = plan.runs[plan.folders["table:timing"]["ViT-B-16-openai"]]
    assert (timing.batch_size, timing.datasets) == (1, ("dtd", "imagenet-a"))
    # Every cell of every table has a run with its method, dataset, model and prompt.
    for name, runs in plan.folders.items():
        for variant in EXPERIMENTS[name].variants:
            config = plan.runs[runs[variant.name]]
            assert set(EXPERIMENTS[name].datasets) <= set(config.datasets)
            assert {str(parse_method(variant.written(method, 64))) for method in variant.methods} <= set(config.methods)
            assert config.model == variant.model
    assert timing.cache is None, "it must not time a read from the cache"
    caches = {str(config.cache) for config in plan.runs.values() if config is not timing}
    assert caches == {str(tmp_path / "out" / "cache")}
    assert "on one H200 with 16 cores in float32; --precision bfloat16 is several times faster" in output
    faster = cli("paper", "run", "all", "--data", tmp_path, "--dry-run", "--precision", "bfloat16")
    assert "in bfloat16. Other cards: in proportion to their bfloat16 matrix products (H200: 766 TFLOP/s)" in faster
    images = sum(p.test_size for p in PROTOCOLS.values())
    assert plan.gigabytes == pytest.approx(images * 3 * 64 * 2 * (512 + 1024 + 768) / 1e9)


@pytest.mark.parametrize(("model", "skips"), [("mini", True), ("RN50/openai", True), ("ViT-B-32/openai", False)])
def test_a_model_without_attention_skips_what_adapts_it(model, skips, tmp_path):
    plan = plan_all(write_pets(tmp_path), tmp_path / "out", model, partial=True)
    assert (plan.skipped.get("table:ttl-tps") == "needs a vision transformer (--model)") is skips
    methods = [method for config in plan.runs.values() for method in config.methods]
    assert ("ttl+cots" not in methods) is skips
    assert "tpt+cots" in methods
    assert "table:timing" not in plan.text().replace("skipped table:timing", ""), "it is not run"


def test_gpu_hours_follow_from_the_measured_times(tmp_path):
    """One run of two methods on Pets: 3,669 images of 37 classes under one seed, one of the methods on pixels."""
    measured = json.loads((ROOT / "benchmarks/results/h200.json").read_text())
    encode = 1000 / measured["files"]["augmix, views by gpu: images/s"]
    assert _all.ENCODE["bfloat16"] == pytest.approx(encode, rel=0.02)
    assert pytest.approx(measured["text"]["1000"]["tpt+cots"] / 1000, rel=0.05) == _all.PER_CLASS
    assert _all.ENCODE["float32"] == pytest.approx(measured["operations"]["plain"] / 67e9, rel=0.02)
    assert max(measured["matmul"].values()) == pytest.approx(1e12 * _all.RATES["bfloat16"], rel=0.01)
    config = bench.RunConfig(datasets="pets", methods="tpt,tpt+cots,ttl", out=tmp_path, precision="bfloat16")
    plan = PaperPlan(
        out=tmp_path,
        runs={"one": config},
        folders={},
        skipped={},
        missing=(),
        sizes={"pets": PROTOCOLS["pets"].test_size},
    )
    hours = 3669 * (5.2 + 3 * 5.2 + 37 * 0.00093) / 3.6e6
    assert plan.gpu_hours == pytest.approx(hours)
    timed = replace(plan, runs={"one": config.replace(batch_size=1, shard_size=None)})
    assert timed.gpu_hours == pytest.approx(hours + 3669 * 5.2 / 3.6e6)


def test_a_partial_folder_runs_resumes_and_ends_with_one_page(tmp_path, monkeypatch):
    data, out = write_pets(tmp_path / "data"), tmp_path / "out"
    options = {"partial": True, "seeds": (0,), "limit": 4, "views": 10, "batch_size": 4}
    plan = plan_all(data, out, tiny("vit"), **options)
    assert plan.missing == tuple(name for name in PROTOCOLS if name != "pets")
    assert plan.skipped["table:imagenet-variants"].startswith("no dataset of it (imagenet-a")
    assert "--context" in plan.skipped["table:coop"]
    assert plan.skipped["figure:sensitivity"] == "needs 33 views (--views)"
    assert plan.skipped["table:std-fine-grained"] == "needs at least two seeds (--seeds)"
    assert "table:std-fine-grained" in plan_all(data, out, tiny("vit"), **{**options, "seeds": (0, 1)}).folders
    alone = plan_all(data, out, tiny("vit"), **{**options, "views": 1})
    assert "table:fine-grained" in alone.folders, "one view is enough for it"
    assert plan.encodings == {("tiny-vit", "pets", 0)}
    assert set(plan.folders["figure:loss"].values()) == {"tiny-vit"} == set(plan.runs), "one run serves all"
    losses = ("tpt+cots(loss=l1)", "tpt+cots(loss=huber)", "tpt+cots(loss=kl)")
    assert {*losses, "tpt+cots(views=weak)", "tpt+ecots(alpha=0)"} < set(plan.runs["tiny-vit"].methods)
    assert "less than 0.1 GPU-hours" in plan.text()
    assert "table:plug-and-play will show pets (the paper prints 10 of these 30 values)" in plan.text()
    assert plan.gigabytes == pytest.approx(4 * 10 * 512 * 2 / 1e9), "ten views of four samples"
    small = ("zeroshot", "tpt", "tpt+sals", "tpt+cots", "tpt+ecots", "tda", "soc", "otpt", "atpt", "ctpt", "penalty")
    runs = {"tiny-vit": plan.runs["tiny-vit"].replace(methods=small + losses)}
    shown = {name: made for name, made in plan.folders.items() if name not in UNDRAWN}
    plan = replace(plan, runs=runs, folders={**shown, "figure:steps": {"steps-1": "steps"}})
    encoded = Counter()
    fill = bench._features.FeatureCache.fill

    def counting(self, blocks, *rest):
        encoded.update((str(self.folder), block) for block in blocks)
        return fill(self, blocks, *rest)

    monkeypatch.setattr(bench._features.FeatureCache, "fill", counting)
    failed, page = plan.run(lambda config: bench.run(config) and 0)
    assert failed == 0
    assert list(encoded.values()) == [1], "the one (model, dataset, seed) is encoded once for all runs"
    text = page.read_text()
    for part in ("table:fine-grained", "figure:loss", "top-label Brier score", "<svg", "Not run"):
        assert part in text
    judged = text.partition("the L2 loss obtains the lowest ECE")[2].splitlines()
    assert judged[1] == "  paper: no values to compare"
    assert judged[2].endswith("of 3 comparisons"), "on fine-grained sets, of the one run"
    assert {Path(run.folder).name for run in runs_in(out)} == set(runs)
    averages = text.partition('<section id="table-plug-and-play">')[2].partition("</section>")[0]
    assert '<th scope="row">pets</th><td>soc</td>' in averages, "a table of averages shows the one set at hand"
    assert text.count("not run yet") == 1, "the run of figure:steps was left out here"
    before = page.read_bytes()
    assert plan.run(lambda config: bench.run(config) and 0) == (0, page)
    assert page.read_bytes() == before
    assert list(encoded.values()) == [1]
