"""The frozen network against a computation by hand, for every kind of model and of text."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from support.models import CLASSES, KINDS, THREE, random_pixels, tiny

import cots
from cots import novelty
from cots.export import OUTPUTS, FrozenClassifier, exact_temperature

SENTENCES = {}
for place, name in enumerate(CLASSES):
    spoken = name.replace("_", " ")
    SENTENCES[name] = [f"{spoken} at night", f"a drawing of {spoken}, signed"][: 1 + place % 2]
TEXTS = {
    "one template": {},
    "templates": {"template": THREE},
    "descriptions": {"template": THREE[:2], "descriptions": SENTENCES},
}


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def texts_by_hand(backbone, template=("a photo of a {}.",), descriptions=None):
    """Each text alone through the model, normalised; their mean, normalised again."""
    rows = []
    for name in CLASSES:
        texts = [one.format(name.replace("_", " ")) for one in template] + (descriptions or {}).get(name, [])
        with torch.no_grad():
            features = backbone.model.encode_text(backbone.tokenize(texts)).double().numpy()
        rows.append(unit(unit(features).mean(0)))
    return np.stack(rows)


@pytest.mark.parametrize("texts", TEXTS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_outputs_by_hand(kind, texts):
    backbone, temperature = tiny(kind), 1.7
    task = cots.Task(backbone, CLASSES, **TEXTS[texts])
    pixels = random_pixels(backbone)[:, 0]
    outputs = FrozenClassifier(task, temperature)(pixels)
    logits, probabilities, in_list, features = (value.double().numpy() for value in outputs)
    with torch.no_grad():
        expected = unit(backbone.model.encode_image(pixels).double().numpy())
    np.testing.assert_allclose(features, expected, atol=1e-6)
    cosines = expected @ texts_by_hand(backbone, **TEXTS[texts]).T
    scale = math.exp(float(backbone.model.logit_scale))
    np.testing.assert_allclose(logits, scale * cosines / temperature, atol=2e-5)
    powers = np.exp(scale * cosines / temperature)
    np.testing.assert_allclose(probabilities, powers / powers.sum(1, keepdims=True), atol=1e-6)
    words = expected @ novelty.background(task).double().numpy().T
    z = (cosines.max(1) - words.mean(1)) / words.std(1, ddof=1)
    np.testing.assert_allclose(in_list, norm.cdf(z) ** 5, atol=1e-5)
    assert len(outputs) == len(OUTPUTS)


@pytest.mark.parametrize("kind", KINDS)
def test_it_has_the_image_tower_alone_and_leaves_the_model_as_it_was(kind):
    backbone = tiny(kind)
    before = backbone.weights_hash
    network = FrozenClassifier(cots.Task(backbone, CLASSES), 1.0)
    expected = {f"tower.visual.{name}" for name in backbone.model.visual.state_dict()}
    assert set(network.state_dict()) == expected | {"text", "words"}
    for parameter in network.parameters():
        parameter.zero_()
    vars(backbone).pop("weights_hash")
    assert backbone.weights_hash == before


def test_a_model_without_a_part_for_images_is_kept_whole():
    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.logit_scale = torch.nn.Parameter(torch.tensor(1.0))
            self.inside = tiny("vit").model

        def encode_image(self, pixels):
            return self.inside.encode_image(pixels)

    backbone = tiny("vit")
    task = cots.Task(backbone, CLASSES)
    expected = FrozenClassifier(task, 1.0)(random_pixels(backbone)[:, 0])
    task.backbone = cots.Backbone(
        name="whole", model=Whole(), tokenizer=backbone.tokenizer, preprocess=backbone.preprocess
    )
    torch.testing.assert_close(FrozenClassifier(task, 1.0)(random_pixels(backbone)[:, 0])[3], expected[3])


@pytest.mark.parametrize(
    ("method", "settings", "temperature"),
    [
        ("zeroshot", {}, 1.0),
        ("zeroshot+ts", {}, 1.16),
        ("zeroshot+ts", {"temperature": 2}, 2.0),
        ("zeroshot+ts(temperature=0.8)", {}, 0.8),
        ("zeroshot+pseudocal(temperature=3.0)", {}, 3.0),
        ("zeroshot+cots", {}, None),
        ("tpt", {}, None),
        ("tpt+ts", {}, None),
        ("mta", {}, None),
        ("tda", {}, None),
    ],
)
def test_methods_with_one_temperature_are_exact(method, settings, temperature):
    classifier = cots.Classifier(tiny("vit"), CLASSES, method, views=4, calibrator_settings=settings)
    assert exact_temperature(classifier) == temperature
