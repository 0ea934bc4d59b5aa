"""The written-out gradients of causal text towers against autograd in float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from open_clip.model import CLIP, CustomTextCLIP
from support import naive_adapt as naive
from support.models import CLASSES, tiny, tiny_task
from torch import Tensor, nn

import cots
from cots.fast import backward
from cots.fast.backward import Backward, jacobian
from cots.fast.text_tower import FastText
from cots.serve._tasks import task_bytes

VISION = {"image_size": 32, "layers": 1, "width": 16, "patch_size": 16, "head_width": 8}
SHORT = [f"{a} {b}" for a in ("red", "old", "small") for b in "abcdefgh"]
TEXT = {"context_length": 30, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 3}


def task_of(model: nn.Module, classes: list[str] | None = None) -> cots.Task:
    """A task in float64 whose every weight matters: biases and scales start at values that hide mistakes."""
    generator = torch.Generator().manual_seed(0)
    model = model.double()
    for name, parameter in model.named_parameters():
        if "visual" not in name:
            centre = 1.0 if name.endswith(("ln_1.weight", "ln_2.weight", "ln_final.weight")) else 0.0
            nn.init.normal_(parameter, mean=centre, std=0.2, generator=generator)
    return cots.Task(dataclasses.replace(tiny("vit", torch.float64), model=model), classes or CLASSES)


def clip(**changes) -> CLIP:
    quick = changes.pop("quick", False)
    return CLIP(12, VISION, TEXT | changes, quick_gelu=quick)


def custom(**changes) -> CustomTextCLIP:
    return CustomTextCLIP(12, VISION, TEXT | {"pool_type": "eos", "eos_id": 49407} | changes)


TOWERS = {
    "exact gelu": clip,
    "quick gelu": lambda: clip(quick=True),
    "one block": lambda: clip(layers=1),
    "tanh gelu": lambda: custom(act_kwargs={"approximate": "tanh"}),
    "layer scale": lambda: custom(ls_init_value=0.5),
    "linear projection": lambda: custom(proj_bias=True),
}
LISTS = {
    "several lengths": CLASSES,
    "one length": ["cat", "car", "tree"],
    "one class": ["golden retriever"],
    "one long": [*SHORT[:6], "old " * 18, *SHORT[6:12]],
}


def by_autograd(task: cots.Task, cotangent: Tensor) -> Tensor:
    context = task.initial_context.expand(len(cotangent), -1, -1).clone().requires_grad_()
    return torch.autograd.grad((task.features_under(context) * cotangent).sum(), context)[0]


def cotangents(task: cots.Task, samples: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, *task.text_features.shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("tower", "classes"),
    [*((tower, "several lengths") for tower in TOWERS), *(("layer scale", classes) for classes in list(LISTS)[1:])],
)
def test_gradients_are_those_of_autograd(tower, classes):
    task = task_of(TOWERS[tower](), LISTS[classes])
    assert isinstance(task.tower, FastText)
    cotangent = cotangents(task)
    expected = by_autograd(task, cotangent)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(task.pull_back(cotangent), expected, rtol=0, atol=1e-11 * float(expected.abs().max()))


@pytest.mark.parametrize("tower", TOWERS)
def test_the_jacobian_holds_the_gradient_of_every_feature(tower):
    task = task_of(TOWERS[tower]())
    found = jacobian(task.tower, task.initial_context)
    cotangent = cotangents(task)
    pulled = torch.einsum("bkd,kdmw->bmw", cotangent, found)
    torch.testing.assert_close(pulled, by_autograd(task, cotangent), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kept", [0, 2**31])
@pytest.mark.parametrize("rows", [1, 200, 4096])
def test_pieces_do_not_change_gradients(rows, kept, monkeypatch):
    """A few classes at a time, a few gradients at a time, kept or made again: all the same."""
    whole = tiny_task("vit", torch.float64)
    cotangent = cotangents(whole, samples=9)
    expected = by_autograd(whole, cotangent)
    made: list[int] = []
    init = Backward.__init__
    monkeypatch.setattr(Backward, "__init__", lambda self, *a: made.append(len(a[3].lengths_K)) or init(self, *a))
    monkeypatch.setattr(backward, "_ROWS", {"cpu": rows})
    monkeypatch.setattr(backward, "_KEPT_BYTES", kept)
    task = cots.Task(whole.backbone, CLASSES)
    for _ in range(2):
        torch.testing.assert_close(task.pull_back(cotangent), expected, rtol=0, atol=1e-10)
    pieces = {1: [1, 1, 1, 1, 1], 200: [4, 1], 4096: [5]}[rows]
    assert made == pieces * (1 if kept else 2)


def test_a_gradient_does_not_depend_on_those_beside_it():
    task = tiny_task("vit", torch.float64)
    cotangent = cotangents(task, samples=70)
    together = task.pull_back(cotangent)
    alone = torch.cat([task.pull_back(c[None]) for c in cotangent])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-13)
    order = torch.randperm(70, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(task.pull_back(cotangent[order]), together[order], rtol=0, atol=1e-13)


@pytest.mark.parametrize("classes", [SHORT, [*SHORT[:12], "old " * 20, *SHORT[12:]]], ids=["similar", "one long"])
def test_kept_activations_take_the_predicted_memory(classes, monkeypatch):
    """Also with one long name among short ones: these are not padded to its length."""
    monkeypatch.setattr(backward, "_ROWS", {"cpu": 8 * 60})
    task = task_of(clip(width=64, layers=4), classes)
    tower, weights = task.tower, {p.untyped_storage().data_ptr() for p in task.backbone.model.parameters()}
    assert isinstance(tower, FastText)
    before = task_bytes(task, weights)
    task.pull_back(cotangents(task))
    assert 0.8 < (task_bytes(task, weights) - before) / (tower.tokens_per_sample * tower.bytes_per_token) < 1.3


def test_jacobian_against_the_full_length_reference():
    task = tiny_task("vit", torch.float64)
    assert isinstance(task.tower, FastText)
    ids = naive.prompt_ids(task.backbone, CLASSES)
    expected = torch.autograd.functional.jacobian(
        lambda context: naive.text_features(task.backbone, ids, context), task.initial_context
    )
    ours = jacobian(task.tower, task.initial_context)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


def test_a_smaller_card_holds_less_of_a_jacobian(monkeypatch):
    task = tiny_task("vit", torch.float64)
    pieces = []
    init = Backward.__init__
    monkeypatch.setattr(Backward, "__init__", lambda self, *a: pieces.append(len(a[1])) or init(self, *a))
    whole = jacobian(task.tower, task.initial_context)
    assert max(pieces) > 1
    pieces.clear()
    monkeypatch.setattr(backward, "scale_to_memory", lambda limit, device: 1)
    torch.testing.assert_close(jacobian(task.tower, task.initial_context), whole, rtol=0, atol=1e-13)
    assert max(pieces) == 1


@pytest.mark.parametrize(
    ("kind", "dtype", "tolerance"),
    [("vit", torch.float64, 1e-10), ("siglip", torch.float64, 1e-10), ("resnet", torch.float32, 1e-4)],
)
def test_pull_back_is_the_gradient_at_the_initial_context(kind, dtype, tolerance):
    task = tiny_task(kind, dtype)
    cotangent = torch.randn(4, len(CLASSES), 12, generator=torch.Generator().manual_seed(1)).to(dtype)
    pulled = task.pull_back(cotangent)
    ids = naive.prompt_ids(task.backbone, CLASSES)
    context = naive.initial_context(task.backbone).requires_grad_()
    features = naive.text_features(task.backbone, ids, context)
    for b in range(4):
        expected = torch.autograd.grad((features * cotangent[b]).sum(), context, retain_graph=True)[0]
        torch.testing.assert_close(pulled[b], expected, rtol=0, atol=tolerance * float(expected.abs().max()))
