"""The files around the graph: configuration, licence, and code whose pixels are those of cots."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.images import grain
from support.models import CLASSES, tiny

import cots
from cots.export._folder import facts_of, metadata_of, preprocessor_config, write_folder
from cots.export._readme import classify_code

SETTINGS = {
    "square": cots.ViewSettings(size=32),
    "bilinear": cots.ViewSettings(size=32, interpolation="bilinear", mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.1)),
    "oblong": cots.ViewSettings(size=(24, 40), interpolation="bilinear"),
    "squash": cots.ViewSettings(size=(40, 24), resize_mode="squash"),
    "longest": cots.ViewSettings(size=(32, 48), resize_mode="longest", fill_color=99),
}
SIZES = [(50, 81), (81, 50), (32, 32), (20, 333), (45, 34)]


@pytest.fixture
def pixels_of(monkeypatch, tmp_path):
    """The pixels that the code of the README passes to the graph."""

    def run(code, image):
        seen = []

        def answer(names, inputs):
            seen.append(inputs["pixel_values"])
            return [np.zeros((1, 2)), np.array([[0.2, 0.8]]), np.array([0.9]), None]

        made = types.SimpleNamespace(run=answer)
        stub = types.SimpleNamespace(InferenceSession=lambda file: made)
        monkeypatch.setitem(sys.modules, "onnxruntime", stub)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "labels.txt").write_text("cat\ndog\n")
        image.save(tmp_path / "photo.jpg", quality=95)
        exec(code, {})
        return seen[0], cots.read_image(tmp_path / "photo.jpg")

    return run


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", SETTINGS)
def test_the_code_has_the_pixels_of_cots(name, size, pixels_of, capsys):
    settings = replace(SETTINGS[name], n=1)
    code = classify_code(settings)
    found, image = pixels_of(code, grain(*size))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, cots.make_views(image, settings, 0).numpy())
    assert capsys.readouterr().out == "dog: confidence 80.0%, in the list 90.0%\n"
    assert len(code.splitlines()) <= 18
    assert max(map(len, code.splitlines())) <= 120


def test_the_processor_follows_the_preprocessing():
    square = preprocessor_config(SETTINGS["bilinear"])
    assert square["size"] == {"shortest_edge": 32}
    assert square["crop_size"] == {"height": 32, "width": 32}
    assert (square["resample"], square["image_mean"], square["image_std"]) == (2, [0.5, 0.4, 0.3], [0.2, 0.3, 0.1])
    squash = preprocessor_config(SETTINGS["squash"])
    assert (squash["size"], squash["resample"]) == ({"height": 40, "width": 24}, 3)
    assert "crop_size" not in squash
    assert preprocessor_config(SETTINGS["longest"]) is None
    assert preprocessor_config(SETTINGS["oblong"]) is None


def facts(**changes):
    classifier = cots.Classifier(tiny("vit"), CLASSES, "zeroshot")
    made = facts_of(classifier, exact=True, temperature=1.0, fitted="", distance="")
    return replace(made, **changes)


def test_metadata_are_texts_and_complete():
    texts = metadata_of(facts(), tuple(CLASSES), SETTINGS["squash"])
    assert all(isinstance(value, str) for value in texts.values())
    assert json.loads(texts["names"]) == {str(k): name for k, name in enumerate(CLASSES)}
    assert (texts["task"], json.loads(texts["imgsz"]), texts["interpolation"]) == ("classify", [40, 24], "bicubic")
    keys = {"cots_version", "model", "template", "logit_scale", "temperature", "in_list_threshold", "mean", "std"}
    assert keys | {"licence", "sha256"} <= set(texts)
    assert float(texts["logit_scale"]) == tiny("vit").logit_scale
    assert texts["sha256"] == tiny("vit").weights_hash
    assert "policy" not in texts


@pytest.mark.parametrize(
    ("model", "expected"),
    [("ViT-B-16/openai", "Their licence: MIT"), ("tiny-vit", "does not know their licence"), ("mini", "Apache-2.0")],
)
def test_the_licence_of_the_weights_travels_with_them(model, expected, tmp_path, monkeypatch):
    backbone = replace(tiny("vit"), name=model)
    classifier = cots.Classifier(backbone, CLASSES, "zeroshot")
    made = facts_of(classifier, exact=True, temperature=1.0, fitted="", distance="")
    write_folder(tmp_path, made, tuple(CLASSES), SETTINGS["longest"], ())
    text = (tmp_path / "LICENSE-weights.txt").read_text()
    assert expected in text
    assert backbone.weights_hash in text
    assert ("EfficientNet-Lite0" in text and "Apache License" in text) is (model == "mini")
    assert not (tmp_path / "preprocessor_config.json").exists()
    assert torch.is_tensor(classifier.task.text_features)
