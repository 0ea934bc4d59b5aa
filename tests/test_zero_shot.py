"""The door of transformers' scripts: the same calls, the same shapes of results, the classifier's probabilities."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.models import tiny
from support.serving import photo

import cots

TASK = "zero-shot-image-classification"
LABELS = ["cat", "golden_retriever", "car"]


@pytest.fixture(scope="module")
def classify():
    return cots.pipeline(TASK, tiny("vit"), method="tpt+cots", views=4)


def test_scores_are_the_classifiers_probabilities_best_first(classify):
    found = classify(photo(), candidate_labels=LABELS, hypothesis_template="a picture of a {}.")
    expected = cots.Classifier(tiny("vit"), LABELS, "tpt+cots", views=4, template="a picture of a {}.")(photo())
    assert {one["label"]: one["score"] for one in found} == dict(zip(LABELS, expected.probabilities, strict=True))
    scores = [one["score"] for one in found]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(1, abs=1e-6)


def test_several_photos_and_streams(classify):
    one = classify(photo(1), candidate_labels=LABELS)
    both = classify([photo(0), photo(1)], candidate_labels=LABELS)
    assert [type(part) for part in both] == [list, list]
    assert [part["label"] for part in both[1]] == [part["label"] for part in one]
    np.testing.assert_allclose([p["score"] for p in both[1]], [p["score"] for p in one], atol=2e-6)
    stream = classify(iter([photo(0), photo(1)]), candidate_labels=LABELS)
    assert next(stream) == both[0]
    assert len(classify(photo(), candidate_labels="everyday")) == 16
    assert classify([photo(0), photo(1)], LABELS, batch_size=8, num_workers=2, timeout=5.0) == both
    with pytest.raises(cots.InputError, match="no data"):
        classify([photo(), b""], candidate_labels=LABELS)


def test_the_shapes_are_those_of_transformers(classify):
    """transformers' own `postprocess` on the logits of these probabilities gives the same objects."""
    module = pytest.importorskip("transformers.pipelines.zero_shot_image_classification")
    theirs = object.__new__(module.ZeroShotImageClassificationPipeline)
    theirs.model = SimpleNamespace(config=SimpleNamespace(model_type="clip"))
    found = classify(photo(), candidate_labels=LABELS)
    by_label = {one["label"]: one["score"] for one in found}
    logits = torch.tensor([[by_label[label] for label in LABELS]]).log()
    expected = theirs.postprocess({"candidate_labels": LABELS, "logits": logits})
    assert [list(one) for one in found] == [list(one) for one in expected], "the same keys in the same order"
    assert [one["label"] for one in found] == [one["label"] for one in expected]
    assert [type(one["score"]) for one in found] == [type(one["score"]) for one in expected]
    assert [one["score"] for one in found] == pytest.approx([one["score"] for one in expected], abs=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cots.pipeline("text-generation"), "Unknown task 'text-generation'"),
        (lambda: cots.pipeline(TASK, tiny("vit"), classes=["cat"]), "pass candidate_labels when you call it"),
        (lambda: cots.pipeline(TASK, tiny("vit"))("https://example.org/x.jpg", LABELS), "does not download photos"),
        (lambda: cots.pipeline(TASK, tiny("vit"))(photo(), []), "is empty"),
    ],
)
def test_what_is_wrong_is_named(call, message):
    with pytest.raises(cots.InputError, match=message):
        call()


def test_a_device_can_be_an_index():
    assert cots.pipeline(TASK, device=-1, views=1).model.device.type == "cpu"
