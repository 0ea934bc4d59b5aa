"""Backbone: image features, and models that are refused."""

from __future__ import annotations

import copy
import dataclasses
from types import SimpleNamespace

import open_clip
import pytest
import torch
from support.models import PREPROCESS, tiny

import cots


@pytest.mark.parametrize("kind", ["vit", "resnet", "siglip"])
def test_image_features_are_normalised_and_independent_of_the_batch(kind):
    backbone = tiny(kind)
    height, width = backbone.image_size
    pixels = torch.randn(2, 3, 3, height, width, generator=torch.Generator().manual_seed(0))
    features = backbone.encode_images(pixels)
    assert features.shape == (2, 3, 12)
    torch.testing.assert_close(features.norm(dim=-1), torch.ones(2, 3))
    raw = backbone.model.encode_image(pixels.flatten(0, 1))
    torch.testing.assert_close(features.flatten(0, 1), torch.nn.functional.normalize(raw, dim=-1))
    torch.testing.assert_close(backbone.encode_images(pixels, batch_size=1), features, rtol=0, atol=1e-6)
    low = dataclasses.replace(backbone, precision="bfloat16").encode_images(pixels)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, features, rtol=0, atol=0.1)
    assert not torch.equal(low, features)


def test_bad_pixels_and_precision_are_named():
    backbone = tiny("vit")
    with pytest.raises(cots.InputError, match=r"shape \(..., 3, 32, 32\) .* for tiny-vit, not \(1, 3, 64, 64\)"):
        backbone.encode_images(torch.zeros(1, 3, 64, 64))
    with pytest.raises(cots.InputError, match=r"at least one image for tiny-vit, not \(0, 3, 32, 32\)"):
        backbone.encode_images(torch.zeros(0, 3, 32, 32))
    with pytest.raises(cots.InputError, match=r"Unknown precision 'int8'.*bfloat16, float16, float32"):
        dataclasses.replace(backbone, precision="int8")


def test_a_model_without_logit_scale_is_refused():
    class Images(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

    backbone = cots.Backbone(
        name="images", model=Images(), tokenizer=open_clip.SimpleTokenizer(), preprocess=PREPROCESS
    )
    with pytest.raises(cots.InputError, match="images has no `logit_scale`"):
        _ = backbone.logit_scale


@pytest.mark.parametrize(
    ("traits", "problem"),
    [({"contrastive": False}, "generative"), ({"contrastive": True, "image_input": "naflex"}, "fixed size"), ({}, "")],
)
def test_what_open_clip_says_about_a_model(traits, problem):
    """`model.traits` of open_clip from version 4 on."""
    model = tiny("vit").model
    with_traits = copy.copy(model)
    with_traits.traits = SimpleNamespace(**traits)
    given = {"model": with_traits, "tokenizer": open_clip.SimpleTokenizer(), "preprocess": PREPROCESS}
    if not problem:
        cots.Backbone(name="mine", **given)
        return
    with pytest.raises(cots.InputError, match=f"mine .*{problem}"):
        cots.Backbone(name="mine", **given)
