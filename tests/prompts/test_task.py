"""Task: alpha, learnt contexts, the Jacobian in use, and the caller's torch modes."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from support import naive_adapt as naive
from support.compiler import without_compiler
from support.models import CLASSES, random_pixels, tiny, tiny_task

import cots
from cots.adapters import ADAPTERS


def test_alpha_is_the_mean_off_diagonal_cosine():
    task = tiny_task("vit", torch.float64)
    T = task.text_features
    pairs = [float(T[i] @ T[j]) for i in range(5) for j in range(5) if i != j]
    assert task.alpha == pytest.approx(sum(pairs) / 20, abs=1e-12)
    assert tiny_task("vit", classes=("cat",)).alpha == 1.0
    assert tiny_task("vit", classes=("cat", "cat")).alpha == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("kind", ["vit", "siglip"])
@pytest.mark.parametrize("form", ["tensor", "pth", "safetensors"])
@without_compiler()
def test_coop_checkpoints_replace_the_context_everywhere(kind, form, tmp_path):
    backbone = tiny(kind, torch.float64)
    ctx = 0.1 * torch.randn(6, 16, generator=torch.Generator().manual_seed(3))
    source = ctx
    if form == "pth":
        source = tmp_path / "model.pth.tar-50"
        torch.save({"state_dict": {"ctx": ctx, "token_prefix": torch.zeros(1)}, "epoch": 50}, source)
    elif form == "safetensors":
        source = tmp_path / "ctx.safetensors"
        save_file({"ctx": ctx}, source)
    task = cots.Task(backbone, CLASSES, context=source)
    ids = naive.prompt_ids(backbone, CLASSES, "X X X X X X {}.")
    T = naive.text_features(backbone, ids, ctx.double())
    torch.testing.assert_close(task.text_features, T, rtol=0, atol=1e-12)
    assert task.alpha == pytest.approx(float((T @ T.T).sum() - 5) / 20, abs=1e-10)
    views = torch.nn.functional.normalize(torch.randn(1, 20, 12, dtype=torch.float64), dim=-1)
    adapted = cots.adapt("tpt", views, task)
    context = torch.nn.Parameter(ctx.double().clone())
    optimiser = torch.optim.AdamW([context], lr=5e-3)
    zero_shot = backbone.logit_scale * views[0] @ T.T
    z = backbone.logit_scale * views[0, naive.select(zero_shot, 0.1)] @ naive.text_features(backbone, ids, context).T
    naive.mean_entropy(z).backward()
    optimiser.step()
    expected = backbone.logit_scale * views[0] @ naive.text_features(backbone, ids, context.detach()).T
    torch.testing.assert_close(adapted.logits[0], expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", ["vit", "siglip"])
@pytest.mark.parametrize("mode", [torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_the_callers_torch_modes_do_not_affect_a_task(kind, mode):
    known = tiny_task(kind)
    task = cots.Task(known.backbone, CLASSES)
    cotangent = torch.randn(4, *known.text_features.shape, generator=torch.Generator().manual_seed(1))
    with mode():
        within = task.pull_back(cotangent * 1)
    for found in (within, task.pull_back(cotangent)):
        torch.testing.assert_close(found, known.pull_back(cotangent), rtol=0, atol=1e-5)


def test_a_classifier_announces_how_many_samples_a_list_has(monkeypatch):
    told = []
    monkeypatch.setattr(cots.Task, "expect", lambda self, samples=None: told.append(samples))
    classifier = cots.Classifier(tiny("vit"), CLASSES, "zeroshot", views=2)
    classifier(["missing.jpg"] * 3)
    list(classifier.stream(iter(["missing.jpg"])))
    assert told == [3]


def test_several_templates_are_the_normalised_mean_of_normalised_features():
    templates = ["a photo of a {}.", "a drawing of the {}.", "{}"]
    task = cots.Task(tiny("vit"), CLASSES, templates)
    total = 0.0
    for template in templates:
        features = cots.Task(tiny("vit"), CLASSES, template).text_features.double()
        total = total + features / features.norm(dim=1, keepdim=True)
    torch.testing.assert_close(task.text_features.double(), total / total.norm(dim=1, keepdim=True), atol=1e-6, rtol=0)
    assert task.template == tuple(templates)
    assert task.alpha == pytest.approx(float(cots.mean_similarity(task.text_features)))
    called = cots.Task(tiny("vit"), CLASSES, [lambda c: f"a photo of a {c}.", lambda c: f"a drawing of the {c}.", "{}"])
    assert torch.equal(called.text_features, task.text_features)
    assert cots.Task(tiny("vit"), CLASSES, ["{} here"]).template == "{} here"


def test_methods_that_tune_a_context_refuse_several_templates():
    task = cots.Task(tiny("vit"), CLASSES, ["a photo of a {}.", "a {}.", "the {}"])
    features = torch.nn.functional.normalize(torch.randn(1, 6, 12, generator=torch.Generator().manual_seed(0)), dim=-1)
    for name in ADAPTERS:
        if not ADAPTERS.info(name).one_template:
            inputs = random_pixels(task.backbone)[:1] if ADAPTERS.info(name).takes == "pixels" else features
            settings = {"length": 1} if "length" in ADAPTERS.settings(name) else {}
            assert cots.adapt(name, inputs, task, **settings).logits.shape[-1] == len(CLASSES)
        else:
            with pytest.raises(cots.InputError, match="that takes several: zeroshot, tps, sts, mta, ttl, tda"):
                cots.adapt(name, features, task)
    with pytest.raises(cots.InputError, match="the task has 3 templates; use one"):
        task.features_under(task.initial_context[None])


def test_templates_that_cannot_be():
    with pytest.raises(cots.InputError, match="template is empty"):
        cots.Task(tiny("vit"), CLASSES, [])
    with pytest.raises(cots.InputError, match="A context replaces the words of one template, not of 2"):
        cots.Task(tiny("vit"), CLASSES, ["a {}", "the {}"], context=torch.zeros(4, 16))
    with pytest.raises(cots.InputError, match=r"'a sketch of' has no effect. Omit template, or write '{}, a pet\.'"):
        cots.Classifier(tiny("vit"), CLASSES, template="a sketch of {}, a pet.", context=torch.zeros(4, 16))
    assert cots.Classifier(tiny("vit"), CLASSES, template="a sketch of {}.", views=2)(torch.zeros(3, 8, 8)).label
    with_end = cots.Task(tiny("vit"), CLASSES, "{}, a pet.", context=torch.zeros(4, 16))
    assert not torch.equal(
        with_end.text_features, cots.Task(tiny("vit"), CLASSES, context=torch.zeros(4, 16)).text_features
    )
