"""Runs and classifiers with the device's renderer: the same records, and the manifest says which renderer it was."""

from __future__ import annotations

import copy
import dataclasses
import json

import numpy as np
import pytest
import torch
from PIL import Image
from support.models import CLASSES, tiny
from support.runs import config, figures, photos

import cots
from cots import bench
from cots.bench._features import cache_key

METHODS = ("tpt+cots", "ttl")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos", each=3, broken=("car/1.png",))


@pytest.fixture(scope="module")
def by_pil(dataset, tmp_path_factory) -> bench.Run:
    return bench.run(config(dataset, tmp_path_factory.mktemp("runs") / "pil", methods=METHODS))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("shared", [True, False])
def test_records_are_those_of_pil(dataset, by_pil, tmp_path, monkeypatch, workers, shared):
    if not shared:
        monkeypatch.setattr("cots.bench._loader.ViewSource._fits_shared_memory", lambda *args: False)
    run = bench.run(config(dataset, tmp_path / "torch", methods=METHODS, renderer="gpu", workers=workers))
    assert figures(run) == figures(by_pil)
    assert list(run.records("photos", "tpt+cots", 0).errors) == ["car/1.png"]


def test_the_renderer_is_in_the_manifest_and_cannot_change(dataset, by_pil, tmp_path):
    assert by_pil.manifest["renderer"] == "pil"
    run = bench.run(config(dataset, tmp_path / "x", methods=["tpt"], renderer="gpu"))
    assert run.manifest["renderer"] == "gpu"
    with pytest.raises(cots.InputError, match='renderer: "gpu", now "pil"'):
        bench.run(config(dataset, tmp_path / "x", methods=["tpt"]))


def test_a_folder_from_before_there_was_a_choice_was_rendered_by_pil(dataset, tmp_path):
    run = bench.run(config(dataset, tmp_path / "x", methods=["zeroshot"]))
    manifest = {key: value for key, value in run.manifest.items() if key != "renderer"}
    (tmp_path / "x" / "manifest.json").write_text(json.dumps(manifest))
    assert bench.run(config(dataset, tmp_path / "x", methods=["zeroshot", "tpt"])).complete
    with pytest.raises(cots.InputError, match='renderer: "pil", now "gpu"'):
        bench.run(config(dataset, tmp_path / "x", methods=["tpt"], renderer="gpu"))


def test_features_of_two_renderers_do_not_share_a_cache(dataset):
    backbone = tiny("vit")
    settings = cots.ViewSettings.from_preprocess(backbone.preprocess)
    keys = [cache_key(dataset, settings, backbone, None, "cpu", renderer) for renderer in ("pil", "gpu")]
    assert keys[0] != keys[1]
    assert cache_key(dataset, settings, backbone, None, "cpu") == keys[0]


def test_an_unknown_renderer(dataset, tmp_path):
    with pytest.raises(cots.InputError, match="Unknown renderer 'torch'"):
        config(dataset, tmp_path, renderer="torch")


def test_a_disk_that_went_away_is_no_list_of_broken_images(tmp_path):
    data = photos(tmp_path / "photos", each=2)
    planned = bench.plan(config(data, tmp_path / "x", methods=["tpt"], renderer="gpu"))
    for sample in data.samples:
        (tmp_path / "photos" / sample.id).unlink()
    with pytest.raises(cots.CotsError, match="Nor can the first 6 images"):
        planned.run()


# ---------------------------------------------------------------------------------------------------- classifier


def noise(seed: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (9, 11, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((55, 45), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("method", ["tpt+cots", "ttl", "tda"])
def test_predictions_are_those_of_pil(method):
    images = [noise(0), noise(1), b"no image", noise(2), noise(3), noise(4), noise(5)]
    found = []
    for renderer in ("pil", "gpu"):
        classifier = cots.Classifier(tiny("vit"), CLASSES, method, views=6, batch_size=2, renderer=renderer)
        assert classifier.renderer == renderer
        found.append([dataclasses.asdict(p) for p in classifier(images)])
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one.pop("probabilities"), other.pop("probabilities"), equal_nan=True)
        assert str(one) == str(other)
    assert [p["error"] is None for p in found[0]] == [True, True, False, True, True, True, True]


def test_one_image_and_a_bad_one():
    classifier = cots.Classifier(tiny("vit"), CLASSES, "tpt+cots", views=6, renderer="gpu")
    assert classifier(noise(0)).label == classifier([noise(0)])[0].label
    with pytest.raises(cots.InputError, match="cannot be read from a int"):
        classifier(3)
    assert classifier([]) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_on_a_gpu_renders_there(dataset, tmp_path, workers):
    runs = {}
    for renderer in ("auto", "pil"):
        backbone = dataclasses.replace(tiny("vit"), model=copy.deepcopy(tiny("vit").model).cuda())
        options = {"model": backbone, "methods": METHODS, "workers": workers, "renderer": renderer}
        runs[renderer] = bench.run(config(dataset, tmp_path / renderer, **options))
    assert runs["auto"].manifest["renderer"] == "gpu"
    for method in METHODS:
        one, other = (runs[r].records("photos", method, 0) for r in ("auto", "pil"))
        np.testing.assert_allclose(one.probabilities, other.probabilities, atol=1e-3)
        assert list(one.errors) == list(other.errors) == ["car/1.png"]
