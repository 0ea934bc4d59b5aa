"""The same numbers on a GPU; skipped where there is none."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from models import CLASSES, KINDS, random_views, tiny, tiny_task

import cots

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

EPISODIC = ["zeroshot", "tpt", "ctpt", "otpt", "atpt", "soc", "dtpt", "penalty", "zsnorm", "tps", "tda"]


def on_gpu(kind: str, dtype: torch.dtype) -> cots.Task:
    backbone = tiny(kind, dtype)
    moved = dataclasses.replace(backbone, model=copy.deepcopy(backbone.model).cuda())
    return cots.Task(moved, CLASSES)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", EPISODIC)
def test_adapters_agree_with_the_cpu(method, kind, steps):
    here, there = tiny_task(kind, torch.float64), on_gpu(kind, torch.float64)
    views = random_views(here)
    settings = {} if method in {"zeroshot", "tda"} else {"steps": steps}
    ours = cots.adapt(method, views.cuda(), there, **settings)
    assert ours.logits.is_cuda
    expected = cots.adapt(method, views, here, **settings)
    torch.testing.assert_close(ours.logits.cpu(), expected.logits, rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", ["vit", "siglip"])
def test_ttl_agrees_with_the_cpu(kind):
    here, there = tiny_task(kind, torch.float64), on_gpu(kind, torch.float64)
    pixels = torch.randn(2, 4, 3, *here.backbone.image_size, dtype=torch.float64)
    ours = cots.adapt("ttl", pixels.cuda(), there, steps=2)
    expected = cots.adapt("ttl", pixels, here, steps=2)
    torch.testing.assert_close(ours.logits.cpu(), expected.logits, rtol=0, atol=1e-7)


@pytest.mark.parametrize("method", ["none", "sals", "cor", "cots", "ecots", "ensemble", "zero", "ts"])
@pytest.mark.parametrize("solver", ["adam", "exact"])
def test_calibrators_agree_with_the_cpu(method, solver):
    if solver == "exact" and method not in {"cots", "ecots"}:
        pytest.skip("fits no temperature")
    generator = torch.Generator().manual_seed(0)
    zero_shot = 5 * torch.randn(6, 64, 40, generator=generator, dtype=torch.float64)
    adapted = 1.5 * zero_shot + 0.2 * torch.randn(6, 64, 40, generator=generator, dtype=torch.float64)
    ours = cots.calibrate(adapted.cuda(), zero_shot.cuda(), method=method, alpha=0.7, solver=solver)
    expected = cots.calibrate(adapted, zero_shot, method=method, alpha=0.7, solver=solver)
    assert ours.probabilities.is_cuda
    torch.testing.assert_close(ours.probabilities.cpu(), expected.probabilities, rtol=0, atol=1e-9)
    torch.testing.assert_close(ours.tau.cpu(), expected.tau, rtol=1e-8, atol=0)
    assert torch.equal(ours.views.cpu(), expected.views)


def test_openai_sized_towers_agree_in_float32():
    backbone = cots.load("random:ViT-B-16-quickgelu", device="cuda")
    assert backbone.device.type == "cuda"
    task = cots.Task(backbone, CLASSES)
    full = backbone.model.encode_text(backbone.tokenize([f"a photo of a {n}." for n in task.classes]), normalize=True)
    torch.testing.assert_close(task.text_features, full, rtol=0, atol=1e-5)
    pixels = torch.randn(4, 3, 224, 224)
    low = dataclasses.replace(backbone, precision="bfloat16").encode_images(pixels)
    torch.testing.assert_close(low, backbone.encode_images(pixels), rtol=0, atol=2e-2)
