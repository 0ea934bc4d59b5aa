"""TPS against a second implementation."""

from __future__ import annotations

import pytest
import torch
from support import naive_adapt as naive
from support.models import TOLERANCE, random_views, tiny_task

import cots


@pytest.mark.parametrize(
    ("kind", "steps", "dtype"),
    [("vit", 1, torch.float64), ("resnet", 3, torch.float32), ("siglip", 3, torch.float64)],
)
def test_tps_matches_the_naive_reference(kind, steps, dtype):
    task = tiny_task(kind, dtype)
    views = random_views(task)
    adapted = cots.adapt("tps", views, task, steps=steps)
    for b in range(len(views)):
        zero_shot, logits = naive.tps(views[b], task.text_features, task.logit_scale, steps=steps)
        torch.testing.assert_close(adapted.zero_shot_logits[b], zero_shot, rtol=0, atol=1e-4)
        torch.testing.assert_close(adapted.logits[b], logits, rtol=0, atol=TOLERANCE[dtype])


def test_views_are_selected_anew_before_every_step():
    """A large step changes which views are confident; the first selection stays only when asked for."""
    task = tiny_task("vit", torch.float64)
    views = random_views(task)
    settings = {"steps": 3, "lr": 0.5, "rho": 0.3}
    found = {choice: cots.adapt("tps", views, task, reselect=choice, **settings).logits for choice in (True, False)}
    assert not torch.allclose(found[True], found[False])
    for choice, logits in found.items():
        for b in range(len(views)):
            _, expected = naive.tps(views[b], task.text_features, task.logit_scale, reselect=choice, **settings)
            torch.testing.assert_close(logits[b], expected, rtol=0, atol=TOLERANCE[torch.float64])
