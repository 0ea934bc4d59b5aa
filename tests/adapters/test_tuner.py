"""Context tuners against a second implementation written from the equations."""

from __future__ import annotations

import pytest
import torch
from support import naive_adapt as naive
from support.models import CLASSES, CONTEXT_TUNERS, TOLERANCE, random_views, tiny_task

import cots
from cots._adam import AdamW


@pytest.fixture
def recorded(monkeypatch):
    """The gradients that reach the optimiser."""
    gradients = []
    step = AdamW.step
    monkeypatch.setattr(AdamW, "step", lambda self, value, g: (gradients.append(g.clone()), step(self, value, g))[1])
    return gradients


@pytest.mark.parametrize(
    ("kind", "dtype", "steps"),
    [("vit", torch.float64, 3), ("siglip", torch.float64, 2), ("resnet", torch.float32, 1)],
    ids=["vit-f64", "siglip-f64", "resnet-f32"],
)
@pytest.mark.parametrize("method", CONTEXT_TUNERS)
def test_context_tuners_match_the_naive_reference(method, kind, dtype, steps, recorded):
    task, weight = tiny_task(kind, dtype), CONTEXT_TUNERS[method]
    views = random_views(task, samples=2)
    adapted = cots.adapt(method, views, task, steps=steps)
    assert len(recorded) == steps
    for b in range(len(views)):
        zero_shot, logits, gradients = naive.tune(method, views[b], task.backbone, CLASSES, weight=weight, steps=steps)
        torch.testing.assert_close(adapted.zero_shot_logits[b], zero_shot, rtol=0, atol=1e-4)
        torch.testing.assert_close(adapted.logits[b], logits, rtol=0, atol=TOLERANCE[dtype])
        size = max(float(g.abs().max()) for g in gradients)
        for ours, theirs in zip(recorded, gradients, strict=True):
            tolerance = 1e-9 if dtype == torch.float64 else 1e-3
            torch.testing.assert_close(ours[b], theirs, rtol=0, atol=tolerance * size)
    if method != "zsnorm":
        assert (adapted.logits - adapted.zero_shot_logits).abs().max() > 0.05


FORMS = {  # other readings: the settings of each, and the weight of its naive version
    "soc, paper": ({"form": "paper", "delta": 0.3, "lambda_": 40.0}, (40.0, 0.3)),
    "soc, paper, quadratic": ({"form": "paper", "delta": 1.5, "lambda_": 40.0}, (40.0, 1.5)),
    "dtpt, softmax": ({"form": "softmax", "weight": 200.0}, 200.0),
}


@pytest.mark.parametrize("kind", ["vit", "siglip"])
@pytest.mark.parametrize("form", FORMS)
def test_other_forms_match_the_naive_reference(form, kind, recorded):
    task, (settings, weight) = tiny_task(kind, torch.float64), FORMS[form]
    method, views = form.partition(",")[0], random_views(task, samples=2)
    adapted = cots.adapt(method, views, task, steps=2, **settings)
    for b in range(len(views)):
        naive_form = form.removesuffix(", quadratic")
        _, logits, gradients = naive.tune(naive_form, views[b], task.backbone, CLASSES, weight=weight, steps=2)
        torch.testing.assert_close(adapted.logits[b], logits, rtol=0, atol=1e-8)
        size = max(float(g.abs().max()) for g in gradients)
        for ours, theirs in zip(recorded, gradients, strict=True):
            torch.testing.assert_close(ours[b], theirs, rtol=0, atol=1e-9 * size)
    usual = cots.adapt(method, views, task, steps=2)
    assert (adapted.logits - usual.logits).abs().max() > 0.05, "another form is another method"


def test_the_forms_of_soc_have_their_own_settings():
    task = tiny_task("vit")
    views = random_views(task, samples=1)
    for given, message in (
        ({"form": "paper"}, r"no published values here; pass delta= and lambda_="),
        ({"form": "paper", "delta": 0.3}, "pass delta= and lambda_="),
        ({"form": "paper", "delta": 0.0, "lambda_": 1.0}, "delta"),
        ({"delta": 0.3}, r'delta=0.3 has no effect with form="cots"'),
        ({"lambda_": 0.3}, r'lambda_=0.3 has no effect with form="cots"'),
        ({"form": "huber"}, "form"),
    ):
        with pytest.raises(cots.InputError, match=message):
            cots.adapt("soc", views, task, **given)
    one = cots.Task(task.backbone, ["car"])
    logits = cots.adapt("soc", views, one, form="paper", delta=0.3, lambda_=1.0).logits
    torch.testing.assert_close(logits, cots.adapt("tpt", views, one).logits)
    # The weight that datasets set does not count in the form of the paper.
    given = {"form": "paper", "delta": 0.3, "lambda_": 1.0}
    assert torch.equal(
        cots.adapt("soc", views, task, **given, weight=14.0).logits, cots.adapt("soc", views, task, **given).logits
    )


@pytest.mark.parametrize(("kind", "dtype"), [("vit", torch.float32), ("siglip", torch.float64)])
def test_penalty_leaves_the_weak_view_on_its_own_bounds(kind, dtype):
    """Alone it is selected and lies on both bounds, beyond neither: nothing is added to TPT's step."""
    task = tiny_task(kind, dtype)
    weak = random_views(task, samples=9)[:, :1]
    torch.testing.assert_close(
        cots.adapt("penalty", weak, task, weight=1e3).logits, cots.adapt("tpt", weak, task).logits, rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("kind", ["vit", "siglip"])
def test_settings_reach_the_update(kind):
    task = tiny_task(kind, torch.float64)
    views = random_views(task, samples=1, views=20)
    given_settings = {"weight": 3.0, "steps": 2, "lr": 0.02, "rho": 0.25}
    ours = cots.adapt("ctpt", views, task, **given_settings)
    _, logits, _ = naive.tune("ctpt", views[0], task.backbone, CLASSES, **given_settings)
    torch.testing.assert_close(ours.logits[0], logits, rtol=0, atol=1e-8)


def test_first_step_is_the_published_sign_step():
    optimiser = AdamW(lr=5e-3)
    value, g = torch.randn(50, dtype=torch.float64), torch.randn(50, dtype=torch.float64)
    expected = value * (1 - 5e-5) - 0.005 * g / (g.abs() + 1e-8)
    torch.testing.assert_close(optimiser.step(value, g), expected, rtol=0, atol=1e-14)
