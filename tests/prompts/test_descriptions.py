"""Sentences about classes: averaged with the templates, read from a mapping or a file, refused by tuners."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from support.models import CLASSES, mini, random_views, tiny
from support.naive_flat import features as encode
from support.runs import config, photos
from support.serving import photo
from typer.testing import CliRunner

import cots
from cots import bench
from cots.accelerate import LIMITS
from cots.cli import app
from cots.prompts import Task

SENTENCES = {
    "Tabby_Cat": ["A tabby cat has stripes.", "Cats purr."],
    "golden retriever": ["A large friendly dog."],
    "car": ["It has four wheels.", "A car drives on a road.", "Cars have windows."],
    "snow-covered mountain peak": ["White rock above clouds."],
    "tree": ["It has leaves and a trunk."],
    "a class of another task": ["Ignored."],
}


@pytest.mark.parametrize("kind", ["vit", "siglip"])
@pytest.mark.parametrize("templates", [["a photo of a {}."], ["a photo of a {}.", "art of {}"]])
def test_the_features_are_the_normalised_mean_over_templates_and_sentences(kind, templates, monkeypatch):
    monkeypatch.setitem(LIMITS, "prompts", 3)  # sentences in chunks
    backbone = tiny(kind, torch.float64)
    task = Task(backbone, CLASSES, templates if len(templates) > 1 else templates[0], descriptions=SENTENCES)
    own = {name.replace("_", " ").lower(): sentences for name, sentences in SENTENCES.items()}
    none = torch.zeros(0, backbone.context_length and task.initial_context.shape[1], dtype=torch.float64)
    for name, found in zip(CLASSES, task.text_features, strict=True):
        name = name.replace("_", " ")
        texts = [*(template.format(name) for template in templates), *own[name]]
        ids = backbone.tokenizer(texts, context_length=backbone.context_length)
        mean = encode(backbone, ids, none).mean(0)
        torch.testing.assert_close(found, mean / mean.norm(), rtol=0, atol=1e-10)


def test_a_file_gives_the_same_and_methods_of_features_take_them(tmp_path):
    file = tmp_path / "names.json"
    file.write_text(json.dumps(SENTENCES))
    task, same = (Task(tiny("vit"), CLASSES, descriptions=source) for source in (SENTENCES, str(file)))
    assert torch.equal(task.text_features, same.text_features)
    assert not torch.allclose(task.text_features, Task(tiny("vit"), CLASSES).text_features)
    views = random_views(task)
    for method in ("zeroshot", "tps", "sts", "tda", "dpe", "ecalp"):
        assert cots.adapt(method, views, task).logits.shape == (*views.shape[:2], len(CLASSES))
    message = "tpt tunes the words of one template, but the task has 1 template and descriptions"
    with pytest.raises(cots.InputError, match=message):
        cots.adapt("tpt", views, task)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"car": ["x"]}, r"descriptions: no sentences for 4 classes: .* Add them"),
        ({**SENTENCES, "car": []}, "descriptions: 'car' needs a list of at least one sentence"),
        ({**SENTENCES, "car": "It has wheels."}, "descriptions: 'car' needs a list of at least one sentence"),
        ({**SENTENCES, "car": ["wheels", 4]}, "descriptions: '4' of 'car' is not a sentence. Write 1 to 1000 char"),
        ("none.json", "descriptions none.json cannot be read .* Check the path"),
    ],
)
def test_what_is_wrong_is_named(given, message):
    with pytest.raises(cots.InputError, match=message):
        cots.Classifier(tiny("vit"), CLASSES, "zeroshot", descriptions=given)


@pytest.mark.parametrize(
    ("text", "message"), [("[1]", "must be a JSON object such as"), ("{", r"is not valid JSON \(Expecting")]
)
def test_files_that_are_no_descriptions_are_refused(text, message, tmp_path):
    file = tmp_path / "names.json"
    file.write_text(text)
    with pytest.raises(cots.InputError, match=message):
        Task(tiny("vit"), CLASSES, descriptions=file)


def test_a_context_excludes_them():
    context = cots.Task(tiny("vit"), CLASSES).initial_context
    with pytest.raises(cots.InputError, match=r"so it excludes descriptions\. Omit one of them"):
        Task(tiny("vit"), CLASSES, context=context, descriptions=SENTENCES)


def test_they_decide_whether_a_policy_applies():
    plain, described = (
        cots.Classifier(tiny("vit"), CLASSES, "zeroshot", descriptions=given).setup for given in (None, SENTENCES)
    )
    assert plain.descriptions == ""
    assert len(described.descriptions) == 64


def test_sentences_with_words_the_model_was_not_trained_on_cause_one_warning():
    with pytest.warns(cots.UntrainedWordWarning, match="was not trained on: .*xylophagous") as caught:
        task = Task(mini(), ["cat", "dog"], descriptions={"cat": ["A xylophagous cat."], "dog": ["A dog."]})
    assert task.text_features.shape == (2, 256)
    assert len(caught) == 1


def test_predict_takes_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr("cots.classifier.load", lambda name, **options: tiny("vit"))
    (tmp_path / "a.jpg").write_bytes(photo(0, kind="JPEG"))
    (tmp_path / "names.json").write_text(json.dumps({"cat": ["Purrs."], "dog": ["Barks."]}))
    words = ["predict", str(tmp_path / "a.jpg"), "--classes", "cat,dog", "--method", "zeroshot", "--json"]
    found = []
    for more in ([], ["--descriptions", str(tmp_path / "names.json")]):
        result = CliRunner().invoke(app, [*words, *more])
        assert result.exit_code == 0, result.output
        found.append(json.loads(result.stdout.splitlines()[0])["confidence"])
    assert found[0] != found[1]


def test_a_run_records_them_and_refuses_others(tmp_path):
    dataset, out = photos(tmp_path / "photos", 1), tmp_path / "run"
    file = tmp_path / "names.json"
    sentences = {name: [f"A {name} outside."] for name in dataset.classes}
    file.write_text(json.dumps(sentences))
    finished = bench.run(config(dataset, out, methods=["zeroshot"], views=2, descriptions=file))
    found = finished.records("photos", "zeroshot", 0).confidence
    with_them, without = [], []
    for given, values in ((sentences, with_them), (None, without)):
        classifier = cots.Classifier(tiny("vit"), dataset.classes, "zeroshot", descriptions=given, views=2)
        values += [classifier(sample.source).confidence for sample in dataset.samples]
    np.testing.assert_allclose(found, with_them, rtol=0, atol=3e-4)  # features are stored in half precision
    assert not np.allclose(found, without, rtol=0, atol=3e-3)
    with pytest.raises(cots.InputError, match="descriptions of photos"):
        bench.run(config(dataset, out, methods=["zeroshot"], views=2))
    with pytest.raises(cots.InputError, match="tunes the words of one template, but the task has 1 template and desc"):
        bench.run(config(dataset, tmp_path / "other", methods=["tpt"], views=2, descriptions=file))
