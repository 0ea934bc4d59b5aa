"""TPS against a second implementation."""

from __future__ import annotations

import pytest
import torch
from support import naive_adapt as naive
from support.models import KINDS, TOLERANCE, random_views, tiny_task

import cots


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_tps_matches_the_naive_reference(kind, steps, dtype):
    task = tiny_task(kind, dtype)
    views = random_views(task)
    adapted = cots.adapt("tps", views, task, steps=steps)
    for b in range(len(views)):
        zero_shot, logits = naive.tps(views[b], task.text_features, task.logit_scale, steps=steps)
        torch.testing.assert_close(adapted.zero_shot_logits[b], zero_shot, rtol=0, atol=1e-4)
        torch.testing.assert_close(adapted.logits[b], logits, rtol=0, atol=TOLERANCE[dtype])
