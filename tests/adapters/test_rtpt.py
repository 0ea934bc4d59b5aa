"""R-TPT against a second implementation: loss, gradient, weights."""

from __future__ import annotations

import pytest
import torch
from support import naive_adapt
from support import naive_toolbox as naive
from support.models import CLASSES, TOLERANCE, random_views, tiny_task

import cots
from cots.adapters import Batch
from cots.adapters.rtpt import pointwise_entropy


@pytest.mark.parametrize(
    ("kind", "steps", "dtype"),
    [("vit", 2, torch.float64), ("siglip", 1, torch.float64), ("resnet", 1, torch.float32)],
)
def test_rtpt_matches_the_naive_reference(kind, steps, dtype):
    task = tiny_task(kind, dtype)
    views = random_views(task, samples=2)
    adapted = cots.adapt("rtpt", views, task, steps=steps)
    batch = Batch(views, task)
    gradients = batch.gradient(batch.selected(0.1), pointwise_entropy)[1]
    for b in range(len(views)):
        zero_shot, tuned, slopes = naive_adapt.tune("rtpt", views[b], task.backbone, CLASSES, steps=steps)
        torch.testing.assert_close(adapted.zero_shot_logits[b], zero_shot, rtol=0, atol=1e-4)
        torch.testing.assert_close(gradients[b], slopes[0], rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(adapted.logits[b, 1:], tuned[1:], rtol=0, atol=TOLERANCE[dtype])
        answer = (naive.rtpt_weights(views[b])[:, None] * tuned).sum(0)
        torch.testing.assert_close(adapted.logits[b, 0], answer, rtol=0, atol=TOLERANCE[dtype])


def test_without_a_step_it_is_a_weighted_mean_of_zero_shot_logits():
    task = tiny_task("vit", torch.float64)
    views = random_views(task, samples=2, views=6)  # fewer than 20 neighbours
    adapted = cots.adapt("rtpt", views, task, lr=0.0)
    for b in range(len(views)):
        answer = (naive.rtpt_weights(views[b])[:, None] * adapted.zero_shot_logits[b]).sum(0)
        torch.testing.assert_close(adapted.logits[b, 0], answer)
