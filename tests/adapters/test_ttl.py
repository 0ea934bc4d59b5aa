"""TTL against a second implementation, in every precision."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support import naive_adapt as naive
from support.models import CLASSES, TOLERANCE, random_pixels, tiny, tiny_task

import cots


@pytest.mark.parametrize(("dtype", "steps"), [(torch.float64, 3), (torch.float32, 1)], ids=["f64", "f32"])
@pytest.mark.parametrize("kind", ["vit", "siglip"])
def test_ttl_matches_the_naive_reference(kind, steps, dtype):
    from cots.adapters.ttl import _draw, _Tower

    task = tiny_task(kind, dtype)
    pixels = random_pixels(task.backbone)[:, :3].to(dtype)
    adapted = cots.adapt("ttl", pixels, task, steps=steps, rank=4, lora_alpha=8.0)
    A = _draw(_Tower(task.backbone, 3), rank=4, seed=0)
    for b in range(len(pixels)):
        zero_shot, logits = naive.ttl(pixels[b], task.backbone, task.text_features, A, steps=steps)
        torch.testing.assert_close(adapted.zero_shot_logits[b], zero_shot, rtol=0, atol=1e-3)
        torch.testing.assert_close(adapted.logits[b], logits, rtol=0, atol=TOLERANCE[dtype])
    assert (adapted.logits - adapted.zero_shot_logits).abs().max() > 0.05


def test_ttl_leaves_the_model_untouched():
    task = tiny_task("siglip")
    before = task.backbone.weights_hash
    pixels = torch.randn(2, 3, 160, 160, generator=torch.Generator().manual_seed(2))
    untouched = cots.adapt("ttl", pixels, task, lr=0.0)
    torch.testing.assert_close(untouched.logits, untouched.zero_shot_logits, rtol=0, atol=1e-3)
    moved = cots.adapt("ttl", pixels, task)
    assert (moved.logits - moved.zero_shot_logits).abs().max() > 0.01
    backbone = dataclasses.replace(task.backbone)
    assert backbone.weights_hash == before


def test_ttl_xavier_scale_and_one_draw_per_run():
    from cots.adapters.ttl import _draw, _Tower

    tower = _Tower(tiny("vit"), 3)
    A = _draw(tower, rank=16, seed=0)
    assert A.shape == (3, 2, 16, 32)
    assert float(A.std()) == pytest.approx((2 / (16 + 32)) ** 0.5, rel=0.05)
    assert torch.equal(A, _draw(tower, rank=16, seed=0))
    assert not torch.equal(A, _draw(tower, rank=16, seed=1))


@pytest.mark.parametrize(("kind", "precision"), [("vit", "bfloat16"), ("siglip", "float16")])
def test_ttl_in_half_precision(kind, precision):
    full, half = tiny_task(kind), cots.Task(dataclasses.replace(tiny(kind), precision=precision), CLASSES)
    pixels = random_pixels(full.backbone)[:1, :3]
    # Without a step the logits before and after are one thing: no rounding may pass for adaptation.
    still = cots.adapt("ttl", pixels, half, lr=0.0)
    torch.testing.assert_close(still.logits, still.zero_shot_logits, rtol=0, atol=1e-5)
    ours, expected = (cots.adapt("ttl", pixels, task) for task in (half, full))
    change = (expected.logits - expected.zero_shot_logits).abs().max()
    assert ours.logits.dtype == ours.zero_shot_logits.dtype == torch.float32
    for name in ("zero_shot_logits", "logits"):
        assert (getattr(ours, name) - getattr(expected, name)).abs().max() < 0.2 * change


def test_ttl_needs_a_vision_transformer():
    task = tiny_task("resnet")
    with pytest.raises(cots.InputError, match=r"vision transformer; the image tower of tiny-resnet has none"):
        cots.adapt("ttl", torch.randn(2, 3, 64, 64), task)
    with pytest.raises(cots.InputError, match="blocks must be a whole number from 1 to 4"):
        cots.adapt("ttl", torch.randn(2, 3, 32, 32), tiny_task("vit"), blocks=5)
