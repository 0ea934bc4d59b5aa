"""The accelerated text tower: groups of similar length, half precision, the Jacobian."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from support.models import CLASSES, random_views, tiny

import cots
from cots.fast.blocks import FusedBlocks
from cots.fast.text_tower import FastText

SHORT = [f"{a} {b}" for a in ("red", "old", "small") for b in "abcdefgh"]


def test_one_long_name_does_not_pad_the_others():
    """Features are those of each class alone, in order, and the forward pass computes few more cells than tokens."""
    classes = [*SHORT[:12], "old " * 20, *SHORT[12:]]
    task = cots.Task(tiny("vit", torch.float64), classes)
    tower = task.tower
    assert isinstance(tower, FastText)
    assert tower.whole.cells > 4 * tower.whole.tokens
    assert sum(packed.cells for _, packed in tower._groups) < 1.5 * tower.whole.tokens
    contexts = task.initial_context + 0.1 * torch.randn(3, *task.initial_context.shape, dtype=torch.float64)
    expected = torch.cat([cots.Task(task.backbone, [name]).features_under(contexts) for name in classes], dim=1)
    for found in (task.features_under(contexts), task.tuned_features(contexts)):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_ordinary_lists_take_one_forward_pass():
    assert cots.Task(tiny("vit"), CLASSES).tower._groups == []


def test_tuned_text_in_float16_agrees():
    task = cots.Task(tiny("vit"), CLASSES)
    tower = task.tower
    assert isinstance(tower, FastText)
    half = FusedBlocks(tower.tower.transformer.resblocks, tower.tower.ln_final, torch.float16)
    contexts = task.initial_context + 0.005 * torch.randn(3, 4, 16).sign()
    ours = tower.forward(contexts, tower.suffix_SW, tower.whole, half)
    assert ours.dtype == torch.float32
    assert 0 < (ours - task.features_under(contexts)).norm(dim=-1).max() < 5e-3


@pytest.mark.parametrize("method", ["tpt", "ctpt", "soc", "penalty"])
def test_adapting_with_the_jacobian_changes_nothing(method):
    plain, linear = cots.Task(tiny("vit", torch.float64), CLASSES), cots.Task(tiny("vit", torch.float64), CLASSES)
    linear.tower.linear = True  # as on a GPU, after enough samples
    views = random_views(plain)
    torch.testing.assert_close(
        cots.adapt(method, views, linear).logits, cots.adapt(method, views, plain).logits, rtol=0, atol=1e-9
    )


def test_a_cpu_never_computes_the_jacobian():
    task = cots.Task(tiny("vit"), CLASSES)
    task.expect(10**6)
    assert isinstance(task.tower, FastText)
    assert not task.tower.linear


@pytest.mark.parametrize("linear", [False, True])
def test_a_dropped_task_leaves_memory_at_once(linear):
    """Without a garbage collection: a server drops many tasks with large activations."""
    task = cots.Task(tiny("vit"), CLASSES)
    task.tower.linear = linear  # pyright: ignore
    cots.adapt("ctpt", random_views(task), task)
    held = weakref.ref(task.tower)
    gc.disable()
    try:
        del task
        assert held() is None
    finally:
        gc.enable()
