"""TDA, alone and over tuned prompts, against a second implementation; its state."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support import naive_adapt as naive
from support.damage import flip
from support.models import CLASSES, random_views, tiny, tiny_task

import cots


@pytest.mark.parametrize(
    ("kind", "dtype", "tolerance"),
    [("vit", torch.float64, 1e-9), ("siglip", torch.float64, 1e-9), ("resnet", torch.float32, 1e-3)],
)
def test_tda_matches_the_naive_reference(kind, dtype, tolerance):
    task = tiny_task(kind, dtype)
    # Nearly uniform predictions and confident ones, so that both caches fill and overflow.
    stream = torch.cat([random_views(task, samples=20, views=3, seed=s) for s in range(3)])
    weaker = dataclasses.replace(task.backbone)
    scale = 80.0 if kind == "siglip" else 8.0  # its random text features lie close together
    weaker.__dict__["logit_scale"] = scale
    soft = cots.Task(weaker, CLASSES)
    adapted = cots.adapt("tda", stream, soft)
    expected = naive.tda(stream, soft.text_features, scale)
    assert bool(adapted.state.negative_entropy.isfinite().any())
    assert bool(adapted.state.positive_entropy.isfinite().all(dim=1).any())
    for b, (zero_shot, logits) in enumerate(expected):
        torch.testing.assert_close(adapted.zero_shot_logits[b], zero_shot)
        torch.testing.assert_close(adapted.logits[b], logits, rtol=0, atol=tolerance)


@pytest.mark.parametrize("tuner", ["ctpt", "otpt", "atpt", "soc", "penalty"])
def test_tda_over_a_tuned_prompt_matches_the_naive_reference(tuner):
    weaker = dataclasses.replace(tiny("vit", torch.float64))
    weaker.__dict__["logit_scale"] = float(weaker.model.logit_scale.exp())
    task = cots.Task(weaker, CLASSES)
    stream = torch.cat([random_views(task, samples=4, views=20, seed=s) for s in range(3)])
    # Not where the weak view is selected: there a hinge has two gradients.
    kept = [0 not in naive.select(task.logit_scale * views @ task.text_features.T, 0.1) for views in stream]
    stream, weight = stream[kept], 4.0
    assert len(stream) > 8
    adapted = cots.adapt(f"tda({tuner})", stream, task, weight=weight, positive=(1.0, 3.0))
    tuned = [naive.tune(tuner, views, task.backbone, CLASSES, weight=weight)[1] for views in stream]
    expected = naive.tda(stream, task.text_features, task.logit_scale, positive=(1.0, 3.0), tuned=tuned)
    for b, (zero_shot, logits) in enumerate(expected):
        torch.testing.assert_close(adapted.zero_shot_logits[b], zero_shot)
        torch.testing.assert_close(adapted.logits[b], logits, rtol=0, atol=1e-7)
        assert not torch.allclose(logits, tuned[b])
    first = cots.adapt(f"tda({tuner})", stream[:5], task, weight=weight, positive=(1.0, 3.0))
    second = cots.adapt(f"tda({tuner})", stream[5:], task, weight=weight, positive=(1.0, 3.0), state=first.state)
    torch.testing.assert_close(torch.cat([first.logits, second.logits]), adapted.logits, rtol=0, atol=1e-12)


def test_tda_state_is_explicit_and_survives_a_file(tmp_path):
    task = tiny_task("vit")
    stream = random_views(task, samples=12, views=4)
    whole = cots.adapt("tda", stream, task)
    first = cots.adapt("tda", stream[:5], task)
    kept = first.state.positive_entropy.clone()
    first.state.save(tmp_path / "state.safetensors")
    state = cots.TDAState.load(tmp_path / "state.safetensors")
    flip(tmp_path / "state.safetensors")
    with pytest.raises(cots.InputError, match=r"state.safetensors is damaged \(its checksum does not match\)"):
        cots.TDAState.load(tmp_path / "state.safetensors")
    second = cots.adapt("tda", stream[5:], task, state=state)
    assert torch.equal(torch.cat([first.logits, second.logits]), whole.logits)
    assert torch.equal(first.state.positive_entropy, kept), "the given state must not change"
    for field in dataclasses.fields(state):
        assert torch.equal(getattr(second.state, field.name), getattr(whole.state, field.name))
    backwards = cots.adapt("tda", stream.flip(0), task)
    assert not torch.allclose(backwards.logits.flip(0), whole.logits), "the order of the stream is part of the protocol"


def test_tda_can_cache_the_confident_views():
    task = tiny_task("vit", torch.float64)
    views = random_views(task, samples=1, views=20)
    adapted = cots.adapt("tda", views, task, cache_from="confident")
    chosen = naive.select(adapted.zero_shot_logits[0], 0.1)
    k = int(adapted.zero_shot_logits[0, chosen].mean(dim=0).argmax())
    torch.testing.assert_close(adapted.state.positive_features[k, 0], views[0, chosen].mean(dim=0))


def test_tda_rejects_a_foreign_state(tmp_path):
    task, other = tiny_task("vit"), cots.Task(tiny("vit"), ["a", "b"])
    with pytest.raises(cots.InputError, match=r"for 2 classes .* this task has 5"):
        cots.adapt("tda", random_views(task), task, state=cots.TDAState.empty(other))
    (tmp_path / "x").write_bytes(b"nonsense")
    with pytest.raises(cots.InputError, match=r"is not a state written by TDAState"):
        cots.TDAState.load(tmp_path / "x")
