"""The door to acceleration: the library means the same with the guest and without it."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest
import torch
from support.logits import needed
from support.models import CLASSES, EPISODIC, KINDS, NEEDS, random_pixels, random_views, tiny

import cots
from cots import accelerate
from cots.accelerate import LIMITS, Plain, accelerator, using
from cots.adapters import ADAPTERS
from cots.calibrators import CALIBRATORS
from cots.fast import Fast

ONLINE = [info.name for info in ADAPTERS.infos() if info.online and "(" not in info.name]


def tasks(kind: str, method: str = "") -> tuple[cots.Task, cots.Task]:
    """One task made without the guest, and one with it."""
    with using(Plain()):
        plain = cots.Task(tiny(kind, torch.float64), CLASSES, **NEEDS.get(method, {}))
        _ = plain.text_features
    return plain, cots.Task(plain.backbone, CLASSES, **NEEDS.get(method, {}))


@pytest.mark.parametrize("kind", KINDS)
def test_text_features_and_their_gradients_are_the_same(kind):
    plain, fast = tasks(kind)
    torch.testing.assert_close(fast.text_features, plain.text_features, rtol=0, atol=1e-12)
    contexts = plain.initial_context + 0.1 * torch.randn(3, *plain.initial_context.shape, dtype=torch.float64)
    cotangent = torch.randn(3, *plain.text_features.shape, dtype=torch.float64)
    with using(Plain()):
        expected = plain.tuned_features(contexts), plain.pull_back(cotangent)
    found = fast.tuned_features(contexts), fast.pull_back(cotangent)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("method", [*EPISODIC, *ONLINE])
def test_adapters_give_the_same_logits(method):
    plain, fast = tasks("vit", method)
    views = random_views(plain)
    settings = {"length": len(views)} if "length" in ADAPTERS.settings(method) else {}
    with using(Plain()):
        expected = cots.adapt(method, views, plain, **settings).logits
    found = cots.adapt(method, views, fast, **settings).logits
    scale = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8 * max(1.0, scale))


@pytest.mark.parametrize("method", list(CALIBRATORS))
def test_calibrators_give_the_same_probabilities(method):
    generator = torch.Generator().manual_seed(0)
    zero_shot = 5 * torch.randn(4, 20, 7, generator=generator, dtype=torch.float64)
    adapted = 1.5 * zero_shot + 0.2 * torch.randn(4, 20, 7, generator=generator, dtype=torch.float64)
    run = functools.partial(cots.calibrate, adapted, zero_shot, method, alpha=0.7, **needed(method, 4, 7))
    with using(Plain()):
        expected = run()
    torch.testing.assert_close(run().probabilities, expected.probabilities, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_images_have_the_same_features(kind):
    pixels = random_pixels(tiny(kind, torch.float64)).double()
    with using(Plain()):
        expected = _copy(tiny(kind, torch.float64)).encode_images(pixels)
    torch.testing.assert_close(_copy(tiny(kind, torch.float64)).encode_images(pixels), expected, rtol=0, atol=1e-10)


def _copy(backbone: cots.Backbone) -> cots.Backbone:
    """The same model without what its backbone has prepared."""
    return cots.Backbone(
        name=backbone.name, model=backbone.model, tokenizer=backbone.tokenizer, preprocess=backbone.preprocess
    )


def test_every_amount_of_work_has_a_limit():
    for chosen in (Plain(), Fast()):
        assert all(chosen.batch_limit(what, torch.device("cpu")) >= 1 for what in LIMITS)


def test_the_default_of_compiled_is_the_function():
    def double(x):
        return (2 * x,)

    assert Plain().compiled(double) is double
    assert Fast().compiled(double)(torch.ones(2))[0].tolist() == [2.0, 2.0]


def test_another_accelerator_serves_for_a_while():
    before = accelerator()
    with using(Plain()) as plain:
        assert accelerator() is plain
    assert accelerator() is before


@pytest.mark.parametrize("value", ["0", "1"])
def test_the_environment_turns_the_guest_off(value, monkeypatch):
    """In a process of its own: nothing of the guest is imported."""
    monkeypatch.setenv("COTS_FAST", value)
    code = (
        "import sys, torch, cots\n"
        "task = cots.Task(cots.load('mini', device='cpu'), ['cat', 'dog'])\n"
        "cots.adapt('tpt', task.text_features[:1].expand(4, -1), task)\n"
        "print(any(name.startswith('cots.fast') for name in sys.modules))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(value == "1")


def test_only_the_door_names_the_guest():
    assert accelerate._guest.__module__ == "cots.accelerate"
