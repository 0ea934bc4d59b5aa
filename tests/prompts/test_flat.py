"""FPP's context against a second implementation, and what its loss implies."""

from __future__ import annotations

import pytest
import torch
from support.models import CLASSES, mini, tiny
from support.naive_flat import flat_context

import cots
from cots.prompts import flatness

NAMES = ["dog", "cat", "horse", "car", "bird", "tree"]


@pytest.mark.parametrize(("kind", "start", "weight"), [("vit", "random", None), ("siglip", "words", 2.0)])
def test_the_context_matches_the_naive_reference(kind, start, weight):
    backbone = tiny(kind, torch.float64)
    found = cots.pretrain_context(backbone, CLASSES, steps=3, seed=4, noise="published", start=start, weight=weight)
    deviations = 0.005**0.5, 0.02**0.5
    expected = flat_context(backbone, CLASSES, 3, weight or 1 + 15 / len(CLASSES), deviations, 4, start)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)


def test_noise_in_units_of_the_token_table_and_the_default_weight():
    backbone = tiny("vit", torch.float64)
    rms = float(backbone.model.token_embedding.weight.square().mean().sqrt())
    found = cots.pretrain_context(backbone, CLASSES, steps=2, noise=(3.0, 1.5))
    expected = flat_context(backbone, CLASSES, 2, 1 + 15 / len(CLASSES), (3.0 * rms, 1.5 * rms))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)


def test_from_the_words_without_the_flat_term_only_weight_decay_moves_the_context():
    backbone = tiny("vit", torch.float64)
    words = cots.Task(backbone, CLASSES).initial_context
    found = cots.pretrain_context(backbone, CLASSES, steps=1, start="words", weight=0.0)
    # The gradient is zero up to rounding, which AdamW's eps turns into steps of 1e-10.
    torch.testing.assert_close(found, words * (1 - 0.01 * 0.01), rtol=0, atol=1e-7)


def test_without_noise_the_copies_are_the_features():
    task = cots.Task(tiny("vit", torch.float64), CLASSES)
    assert flatness(task, (0.0, 0.0)) == pytest.approx(1.0, abs=1e-12)
    still = cots.pretrain_context(task.backbone, CLASSES, steps=1, noise=(0.0, 0.0), start="words", weight=5.0)
    torch.testing.assert_close(still, task.initial_context * (1 - 1e-4), rtol=0, atol=1e-7)


def test_the_context_is_flatter_than_the_words_and_reproducible(tmp_path):
    context = cots.pretrain_context(mini(), NAMES, steps=25, start="words", noise=(2.0, 2.0))
    assert torch.equal(context, cots.pretrain_context(mini(), NAMES, steps=25, start="words", noise=(2.0, 2.0)))
    other = cots.pretrain_context(mini(), NAMES, steps=25, start="words", noise=(2.0, 2.0), seed=1)
    assert not torch.allclose(context, other)
    before, after = (flatness(cots.Task(mini(), NAMES, context=one), (2.0, 2.0)) for one in (None, context))
    assert after > before + 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": "publshed"}, r"Unknown noise 'publshed'. Did you mean 'published'\?"),
        ({"noise": (1.0,)}, "noise must have two values, for the context and elsewhere, not 1"),
        ({"noise": (1.0, -1.0)}, "noise must be a positive number"),
        ({"start": "zeros"}, "Unknown start 'zeros'"),
        ({"template": "{}"}, r"has no word before \{\}, so there is no context to learn"),
        ({"steps": -1}, "steps must be a whole number >= 0"),
    ],
)
def test_errors_say_what_to_do(options, message):
    with pytest.raises(cots.InputError, match=message):
        cots.pretrain_context(tiny("vit"), CLASSES, **options)
