"""MTA against a second implementation."""

from __future__ import annotations

import pytest
import torch
from support import naive_toolbox as naive
from support.models import TOLERANCE, random_views, tiny_task

import cots


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
def test_mta_matches_the_naive_reference(dtype):
    task = tiny_task("vit", dtype)
    views = random_views(task, views=16)
    adapted = cots.adapt("mta", views, task)
    for b in range(len(views)):
        zero_shot, mode, weights, length = naive.mta(views[b], task.text_features, task.logit_scale)
        torch.testing.assert_close(adapted.zero_shot_logits[b], zero_shot, rtol=0, atol=1e-4)
        torch.testing.assert_close(adapted.logits[b, 0], mode, rtol=0, atol=TOLERANCE[dtype])
        torch.testing.assert_close(adapted.logits[b, 1:], zero_shot[1:] / length, rtol=0, atol=TOLERANCE[dtype])
        mean = sum(w * z for w, z in zip(weights, zero_shot / length, strict=True))
        torch.testing.assert_close(mean, mode, rtol=0, atol=TOLERANCE[dtype])


def test_the_order_of_strong_views_does_not_matter():
    task = tiny_task("vit", torch.float64)
    views = random_views(task, views=12)
    order = [0, *reversed(range(1, 12))]
    shuffled = cots.adapt("mta", views[:, order], task).logits
    torch.testing.assert_close(shuffled, cots.adapt("mta", views, task).logits[:, order], rtol=0, atol=1e-9)


def test_a_wide_spread_is_plain_mean_shift_and_cots_undoes_the_sharpening():
    task = tiny_task("vit", torch.float64)
    views = random_views(task, samples=4, views=16)
    adapted = cots.adapt("mta", views, task)
    result = cots.calibrate(adapted.logits, adapted.zero_shot_logits, "cots", solver="exact")
    factor = (adapted.logits[:, 1] / adapted.zero_shot_logits[:, 1]).mean(1)  # 1 / |u|
    assert bool((factor > 1).all())
    torch.testing.assert_close(result.tau, factor, rtol=1e-4, atol=0)
    uniform = cots.adapt("mta", views, task, spread=1e9).logits
    assert not torch.allclose(uniform, adapted.logits)


def test_one_view_is_zero_shot():
    task = tiny_task("vit")
    adapted = cots.adapt("mta", random_views(task, views=1), task)
    assert torch.equal(adapted.logits, adapted.zero_shot_logits)
