"""DAC against a second implementation, and the adapters it makes sense with."""

from __future__ import annotations

import math

import pytest
import torch
from support.models import random_views, tiny_task

import cots
from cots.adaptation import Pipeline
from cots.adapters import ADAPTERS

TUNERS = ["tpt", "rtpt", "zsnorm", "penalty", "ctpt", "tps", "tda(ctpt)", "dpe"]


def naive(logits, before, after, neighbours=5, threshold=0.05):
    """p of one sample: view 0's logits (K,), text features (K,D) before and after."""
    c = int(logits.argmax())

    def nearest(text):
        return sorted(float((text[c] - t).norm()) for k, t in enumerate(text) if k != c)[:neighbours]

    near, far = nearest(after), nearest(before)
    gamma = math.exp(sum(far) / len(far)) / math.exp(sum(near) / len(near))
    return (logits * (1.0 if near[0] < threshold else gamma)).softmax(0)


@pytest.mark.parametrize("name", TUNERS)
def test_dac_matches_the_naive_reference(name):
    task = tiny_task("vit", torch.float64)
    views = random_views(task, samples=4, views=12)
    adapted = cots.adapt(name, views, task)
    outcome = next(iter(Pipeline(task, [f"{name}+dac"]).run(views).values())).calibrated
    for b, text in enumerate(adapted.tuned_text()):
        expected = naive(adapted.logits[b, 0], task.text_features, text)
        torch.testing.assert_close(outcome.probabilities[b], expected)
    pieces = next(iter(Pipeline(task, [f"{name}+dac"]).run(iter(views.split(3))).values())).calibrated
    torch.testing.assert_close(pieces.probabilities, outcome.probabilities)
    assert bool((outcome.tau != 1).any())
    assert torch.equal(outcome.prediction, adapted.logits[:, 0].argmax(-1))


@pytest.mark.parametrize("name", [name for name in TUNERS if "tda" not in name and name != "dpe"])
def test_the_tuned_text_is_the_one_behind_the_logits(name):
    task = tiny_task("vit", torch.float64)
    views = random_views(task, samples=3, views=12)
    for steps in (0, 1):
        adapted = cots.adapt(name, views, task, steps=steps)
        logits = task.logit_scale * views @ adapted.tuned_text().mT
        torch.testing.assert_close(adapted.logits[:, 1:], logits[:, 1:], rtol=0, atol=1e-9)


def test_text_that_did_not_move_changes_nothing_and_close_classes_are_left_alone():
    logits = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    text = torch.eye(4, 6, dtype=torch.float64)
    same = cots.calibrate(logits, logits, "dac", text_features=text, tuned_features=text.expand(2, -1, -1))
    torch.testing.assert_close(same.probabilities, logits[:, 0].softmax(-1))
    close = torch.nn.functional.normalize(text[:1] + 0.01 * text, dim=-1).expand(2, -1, -1)
    assert cots.calibrate(logits, logits, "dac", text_features=text, tuned_features=close).tau.tolist() == [1.0, 1.0]
    with pytest.raises(cots.InputError, match="pass text_features= and tuned_features="):
        cots.calibrate(logits, logits, "dac")
    with pytest.raises(cots.InputError, match=r"tuned_features \(2, 4, D\)"):
        cots.calibrate(logits, logits, "dac", text_features=text, tuned_features=text)


def directions(generator, *shape):
    return torch.nn.functional.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)


@pytest.mark.parametrize("settings", [{}, {"neighbours": 2}, {"neighbours": 8}, {"neighbours": 99}])
def test_the_published_number_of_neighbours(settings):
    """Nine classes have eight others: the five nearest are not all of them."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(6, 3, 9, generator=generator, dtype=torch.float64)
    text, tuned = directions(generator, 9, 12), directions(generator, 6, 9, 12)
    found = cots.calibrate(logits, logits, "dac", text_features=text, tuned_features=tuned, **settings)
    for b in range(6):
        expected = naive(logits[b, 0], text, tuned[b], settings.get("neighbours", 5))
        torch.testing.assert_close(found.probabilities[b], expected)
    others = [
        cots.calibrate(logits, logits, "dac", text_features=text, tuned_features=tuned, neighbours=n) for n in (4, 6)
    ]
    assert not any(torch.allclose(other.tau, found.tau) for other in others)


@pytest.mark.parametrize(
    ("distance", "settings", "alone"),
    [(0.02, {}, True), (0.049, {}, True), (0.051, {}, False), (0.03, {"threshold": 0.02}, False),
     (0.03, {"threshold": 0.04}, True)],
)  # fmt: skip
def test_the_published_threshold_is_a_distance_of_0_05(distance, settings, alone):
    """Of the predicted class, 0, class 1 has this distance after tuning; the others are far."""
    text = torch.eye(9, 12, dtype=torch.float64)
    angle = 2 * math.asin(distance / 2)
    tuned = text.clone()
    tuned[1] = math.cos(angle) * text[0] + math.sin(angle) * text[1]
    assert float((tuned[1] - tuned[0]).norm()) == pytest.approx(distance)
    logits = torch.zeros(1, 2, 9, dtype=torch.float64)
    logits[..., 0] = 2.0
    found = cots.calibrate(logits, logits, "dac", text_features=text, tuned_features=tuned[None], **settings)
    torch.testing.assert_close(
        found.probabilities[0], naive(logits[0, 0], text, tuned, threshold=settings.get("threshold", 0.05))
    )
    assert (float(found.tau[0]) == 1.0) is alone


def test_adapters_that_leave_the_text_alone_are_refused():
    for info in ADAPTERS.infos():
        if info.tunes_text:
            assert str(cots.parse_method(f"{info.name}+dac")) == f"{info.name}+dac"
        else:
            with pytest.raises(cots.InputError, match="does not tune them"):
                cots.parse_method(f"{info.name}+dac")
