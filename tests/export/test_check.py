"""The check of exported files finds what can go wrong with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.models import CLASSES, random_pixels, tiny

import cots
from cots.export import OUTPUTS, FrozenClassifier
from cots.export._check import Reference, compare, run_in_batches

TEMPERATURE = 1.4


@pytest.fixture(scope="module")
def task():
    return cots.Task(tiny("vit"), CLASSES)


@pytest.fixture(scope="module")
def reference(task):
    views = random_pixels(tiny("vit"))
    return Reference.of(views.reshape(8, *views.shape[2:])[:7], task, TEMPERATURE)


def runner(network, change=lambda outputs: outputs):
    def run(pixels):
        values = [value.numpy() for value in network(pixels)]
        return change(dict(zip(OUTPUTS, values, strict=True)))

    return run


def test_the_network_agrees_with_cots(task, reference):
    agreement = compare(runner(FrozenClassifier(task, TEMPERATURE)), reference)
    assert agreement.n == 7
    assert max(agreement.logits, agreement.confidence, agreement.in_list) < 1e-5
    assert agreement.holds
    agreement.require("model.onnx")
    assert agreement.line("model.onnx").startswith("model.onnx: as cots on 7 photos in batches of 1 and 5: logits")


def test_the_reference_is_the_classifier(reference):
    """Zero-shot with this temperature, from the same pixels through the classifier's own stream."""
    classifier = cots.Classifier(tiny("vit"), CLASSES, f"zeroshot+ts(temperature={TEMPERATURE})")
    image = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    prediction = classifier(image)
    settings = cots.ViewSettings.from_preprocess(tiny("vit").preprocess, n=1)
    found = Reference.of(cots.make_views(image, settings, 0), classifier.task, TEMPERATURE)
    np.testing.assert_allclose(found.probabilities[0], prediction.probabilities, atol=1e-6)
    assert found.in_list[0] == pytest.approx(prediction.in_list, abs=1e-6)
    assert found.confidence[0] == pytest.approx(prediction.confidence, abs=1e-6)
    assert CLASSES[found.classes[0]].replace("_", " ") == prediction.label.replace("_", " ")


def shuffled(outputs):
    return outputs | {name: outputs[name][:, ::-1] for name in ("logits", "probabilities")}


def not_a_number(outputs):
    return outputs | {"probabilities": np.full_like(outputs["probabilities"], np.nan)}


def off(name, by):
    return lambda outputs: outputs | {name: outputs[name] + np.float32(by)}


@pytest.mark.parametrize(
    "change",
    [shuffled, not_a_number, off("logits", 2e-3), off("probabilities", 2e-4), off("in_list", 2e-3)],
    ids=["classes in another order", "not a number", "logits", "probabilities", "in_list"],
)
def test_other_outputs_are_refused(task, reference, change):
    agreement = compare(runner(FrozenClassifier(task, TEMPERATURE), change), reference)
    assert not agreement.holds
    with pytest.raises(cots.CotsError, match=r"model.onnx differs from cots by .* nothing was exported"):
        agreement.require("model.onnx")


def test_a_temperature_applied_twice_and_other_texts_are_refused(task, reference):
    assert not compare(runner(FrozenClassifier(task, TEMPERATURE**2)), reference).holds
    other = cots.Task(tiny("vit"), CLASSES, "art of {}")
    assert not compare(runner(FrozenClassifier(other, TEMPERATURE)), reference).holds


def test_a_class_may_change_only_within_the_margin(task, reference):
    network = runner(FrozenClassifier(task, TEMPERATURE))
    near = reference.logits.copy()
    best, second = np.argsort(-near[0])[:2]
    near[0, best] = near[0, second] + 5e-4
    probabilities = reference.probabilities

    def swapped(pixels):
        outputs = dict(network(pixels))
        logits = outputs["logits"].copy()
        logits[(np.abs(logits - reference.logits[0]) < 1e-3).all(1)] = near[0][np.arange(len(CLASSES))]
        return outputs | {"logits": logits}

    tied = replace(reference, logits=near, probabilities=probabilities)
    assert compare(swapped, tied).changed == 0
    assert compare(runner(FrozenClassifier(task, TEMPERATURE), shuffled), reference).changed > 0


def test_batches_are_full_and_the_outputs_in_order():
    sizes = []

    def run(pixels):
        sizes.append(len(pixels))
        return {"sum": pixels.sum((1, 2, 3)).numpy()}

    pixels = torch.arange(7.0)[:, None, None, None].expand(7, 3, 2, 2)
    assert run_in_batches(run, pixels, 5)["sum"].tolist() == [12.0 * i for i in range(7)]
    assert sizes == [5, 5]
