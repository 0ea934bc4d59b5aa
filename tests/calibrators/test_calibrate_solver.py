"""The temperature: what both solvers must find where the answer is known, and what `exact` promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from support import naive_calibrate as naive

from cots import calibrate, fit_temperature
from cots._numeric import entropy

LOSSES = ["l2", "l1", "huber", "kl"]


@st.composite
def cases(draw):
    """Logits of one sample, from flat to far beyond saturation, some rounded so that ties and duplicates are common."""
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    shape = (draw(st.integers(1, 6)), draw(st.integers(1, 12)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    pair = []
    for _ in range(2):
        x = torch.randn(shape, generator=g, dtype=torch.float64) * 10 ** draw(st.floats(-2, 4))
        x = x.mul(draw(st.sampled_from([1.0, 1.0, 0.3]))).round() if draw(st.booleans()) else x
        pair.append(x.to(dtype))
    return *pair, draw(st.sampled_from(LOSSES))


def loss_at(tau, adapted, zero_shot, views, loss):
    return float(naive.objective(tau.double(), adapted.double(), zero_shot.double(), views.tolist(), loss))


@given(cases())
@settings(max_examples=60, deadline=None)
def test_exact_is_never_worse_than_adam_or_no_temperature(case):
    adapted, zero_shot, loss = case
    exact = calibrate(adapted, zero_shot, solver="exact", loss=loss, views="all_strong")
    adam = calibrate(adapted, zero_shot, solver="adam", loss=loss, views="all_strong")
    assert torch.equal(exact.views, adam.views)
    assert torch.isfinite(exact.tau)
    assert abs(exact.tau.log()) <= 12.0001
    if adapted.shape[1] == 1:
        assert exact.tau == adam.tau == 1
        return
    found, by_adam, at_one = (
        loss_at(tau, adapted, zero_shot, exact.views, loss) for tau in (exact.tau, adam.tau, torch.ones(()))
    )
    slack = 1e-12 * max(1.0, at_one)
    assert found <= by_adam + slack
    assert found <= at_one + slack


@pytest.mark.parametrize("loss", LOSSES)
def test_exact_against_a_dense_scan(loss):
    taus = torch.linspace(-12, 12, 4801, dtype=torch.float64).exp()
    g = torch.Generator().manual_seed(0)
    for trial in range(8):
        scale = 10 ** (trial % 4 - 1)
        adapted = scale * torch.randn(7, 2 + trial, generator=g, dtype=torch.float64)
        zero_shot = torch.randn(7, 2 + trial, generator=g, dtype=torch.float64) * 10 ** (trial % 3 - 1)
        result = calibrate(adapted, zero_shot, solver="exact", loss=loss, views="all_strong")
        scan = [naive.objective(tau, adapted, zero_shot, result.views.tolist(), loss) for tau in taus[trial::24]]
        assert loss_at(result.tau, adapted, zero_shot, result.views, loss) <= min(scan) + 1e-14


def test_exact_finds_the_deeper_of_two_far_basins():
    """View 1 pulls tau down to 0.01 / log(.85/.15); view 2 would gain more at 100 / log 1.5 but has no slope at 1."""
    adapted = torch.tensor([[1.0, 0.0], [0.01, 0.0], [100.0, 0.0]], dtype=torch.float64)
    zero_shot = torch.tensor([[1.0, 0.0], [math.log(0.85 / 0.15), 0.0], [math.log(1.5), 0.0]], dtype=torch.float64)
    exact = calibrate(adapted, zero_shot, solver="exact", views="all_strong")
    assert float(exact.tau) == pytest.approx(100 / math.log(1.5), rel=1e-3)
    assert loss_at(exact.tau, adapted, zero_shot, exact.views, "l2") == pytest.approx(0.35**2 / 2, rel=1e-3)
    adam = calibrate(adapted, zero_shot, views="all_strong")
    assert loss_at(adam.tau, adapted, zero_shot, adam.views, "l2") >= 0.4**2 / 2


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("s", [0.2, 1.0, 1.7, 30.0])
def test_scaled_logits_give_back_the_scale(s, loss):
    zero_shot = 2 * torch.randn(5, 9, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    result = calibrate(s * zero_shot, zero_shot, solver="exact", loss=loss)
    torch.testing.assert_close(result.tau, torch.full((5,), s, dtype=torch.float64), rtol=2e-7, atol=0)
    torch.testing.assert_close(result.probabilities, zero_shot[:, 0].softmax(-1), rtol=1e-5, atol=1e-8)


def test_adam_approaches_the_scale_and_rests_where_nothing_is_to_do():
    zero_shot = torch.randn(5, 9, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(
        calibrate(1.7 * zero_shot, zero_shot).tau, torch.full((5,), 1.7, dtype=torch.float64), rtol=0.05, atol=0
    )
    for loss in LOSSES:
        assert calibrate(zero_shot, zero_shot, loss=loss).tau.tolist() == [1.0] * 5


@pytest.mark.parametrize("loss", LOSSES)
def test_one_view_meets_its_target_exactly(loss):
    g = torch.Generator().manual_seed(2)
    adapted, zero_shot = (2 * torch.randn(20, 4, 7, generator=g, dtype=torch.float64) for _ in range(2))
    result = calibrate(adapted, zero_shot, solver="exact", loss=loss, views="weak")
    torch.testing.assert_close(result.confidence, zero_shot[:, 0].softmax(-1).amax(-1), rtol=1e-6, atol=0)


def test_of_equal_losses_the_tau_nearest_one_is_taken():
    equal, sharp = torch.zeros(3, 4), torch.tensor([[9.0, 0, 0, 0]]).expand(3, 4)
    assert calibrate(equal, sharp, solver="exact").tau == 1  # nothing moves the confidence of equal logits
    assert calibrate(1e4 * sharp, 1e4 * sharp, solver="exact").tau == 1
    # The confidence of two equal best classes saturates at 1/2 for tau well below 1; it asks for 1.
    duplicate_classes = torch.tensor([[5.0, 5.0, 0.0]], dtype=torch.float64).expand(3, 3)
    wanted = torch.tensor([[1e4, 0.0, 0.0]], dtype=torch.float64).expand(3, 3)
    tau = float(calibrate(duplicate_classes, wanted, solver="exact").tau)
    assert loss_at(torch.tensor(tau), duplicate_classes, wanted, torch.tensor([1]), "l2") == 0.25
    assert tau > 5 / 40  # below it the loss is 0.25 everywhere, to rounding


def test_adam_with_wild_settings_stays_finite():
    g = torch.Generator().manual_seed(3)
    adapted, zero_shot = 100 * torch.randn(4, 9, 6, generator=g), torch.randn(4, 9, 6, generator=g)
    for loss in LOSSES:
        for wild in ({"lr": 50.0}, {"lr": 1e30}, {"t0": 1e30}, {"t0": 1e-30}, {"lr": 2.0, "steps": 300}):
            result = calibrate(adapted, zero_shot, loss=loss, **wild)
            assert torch.isfinite(result.tau).all()
            assert torch.isfinite(result.probabilities).all()


def test_entropy_keeps_the_order_of_nearly_certain_views():
    gaps = torch.tensor([30.0, 20.0, 25.0, 40.0])
    logits = torch.stack([gaps, torch.zeros(4), torch.zeros(4)], -1)
    assert entropy(logits).argsort().tolist() == [3, 0, 2, 1]
    torch.testing.assert_close(
        entropy(logits.double()), torch.distributions.Categorical(logits=logits.double()).entropy()
    )
    assert entropy(torch.zeros(5)) == pytest.approx(math.log(5))


# --- labelled temperature


def nll(log_tau, logits, labels):
    return float(torch.nn.functional.cross_entropy(logits / math.exp(log_tau), labels))


@pytest.mark.parametrize("scale", [0.05, 1.0, 8.0, 300.0])
def test_fit_temperature_against_scipy(scale):
    g = torch.Generator().manual_seed(4)
    logits = scale * torch.randn(300, 6, generator=g, dtype=torch.float64)
    labels = torch.where(torch.rand(300, generator=g) < 0.6, logits.argmax(1), torch.randint(6, (300,), generator=g))
    tau = fit_temperature(logits, labels)
    best = minimize_scalar(nll, bounds=(-12, 12), args=(logits, labels), method="bounded", options={"xatol": 1e-10})
    assert tau == pytest.approx(math.exp(best.x), rel=1e-5)
    assert nll(math.log(tau), logits, labels) <= best.fun + 1e-12
    assert fit_temperature(logits.numpy(), labels.numpy()) == tau


@pytest.mark.parametrize("true", [0.5, 1.16, 3.0])
def test_fit_temperature_recovers_a_known_one(true):
    g = torch.Generator().manual_seed(5)
    logits = 4 * torch.randn(20_000, 10, generator=g)
    labels = torch.multinomial((logits / true).softmax(-1), 1, generator=g)[:, 0]
    assert fit_temperature(logits, labels) == pytest.approx(true, rel=0.03)


def test_fit_temperature_without_an_interior_minimum_is_finite():
    right = torch.eye(4) * 3
    assert math.exp(-12) <= fit_temperature(right, torch.arange(4)) < 0.1
    assert fit_temperature(right, torch.tensor([1, 2, 3, 0])) == pytest.approx(math.exp(12))
    assert fit_temperature(torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)) == 1
    assert fit_temperature(np.ones((2, 1)), [0, 0]) == 1
    assert math.isfinite(fit_temperature(1e4 * right, [0, 1, 2, 0]))
