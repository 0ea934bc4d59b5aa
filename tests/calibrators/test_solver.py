"""Both solvers where the temperature is known, and what `exact` guarantees."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import naive_calibrate as naive

import cots
from cots import calibrate

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


@pytest.mark.filterwarnings("ignore:The rows of .* sum to one")  # logits such as [1, 0] may be drawn
@given(cases())
@settings(max_examples=25, deadline=None)
def test_exact_is_never_worse_than_adam_or_no_temperature(case):
    adapted, zero_shot, loss = case
    exact = calibrate(adapted, zero_shot, solver="exact", loss=loss, views="all_strong", rows="views")
    adam = calibrate(adapted, zero_shot, solver="adam", loss=loss, views="all_strong", rows="views")
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
    every_tau = torch.vmap(naive.objective, in_dims=(0, None, None, None, None))
    g = torch.Generator().manual_seed(0)
    for trial in range(8):
        scale = 10 ** (trial % 4 - 1)
        adapted = scale * torch.randn(7, 2 + trial, generator=g, dtype=torch.float64)
        zero_shot = torch.randn(7, 2 + trial, generator=g, dtype=torch.float64) * 10 ** (trial % 3 - 1)
        result = calibrate(adapted, zero_shot, solver="exact", loss=loss, views="all_strong", rows="views")
        scan = every_tau(taus[trial::24], adapted, zero_shot, result.views.tolist(), loss)
        assert loss_at(result.tau, adapted, zero_shot, result.views, loss) <= scan.min() + 1e-14


def test_exact_finds_the_deeper_of_two_far_basins():
    """View 1 pulls tau down to 0.01 / log(.85/.15); view 2 would gain more at 100 / log 1.5 but has no slope at 1."""
    adapted = torch.tensor([[1.0, 0.0], [0.01, 0.0], [100.0, 0.0]], dtype=torch.float64)
    zero_shot = torch.tensor([[1.0, 0.0], [math.log(0.85 / 0.15), 0.0], [math.log(1.5), 0.0]], dtype=torch.float64)
    exact = calibrate(adapted, zero_shot, solver="exact", views="all_strong", rows="views")
    assert float(exact.tau) == pytest.approx(100 / math.log(1.5), rel=1e-3)
    assert loss_at(exact.tau, adapted, zero_shot, exact.views, "l2") == pytest.approx(0.35**2 / 2, rel=1e-3)
    adam = calibrate(adapted, zero_shot, solver="adam", views="all_strong", rows="views")
    assert loss_at(adam.tau, adapted, zero_shot, adam.views, "l2") >= 0.4**2 / 2


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("s", [0.2, 1.0, 1.7, 30.0])
def test_scaled_logits_give_back_the_scale(s, loss):
    zero_shot = 2 * torch.randn(5, 9, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    result = calibrate(s * zero_shot, zero_shot, solver="exact", loss=loss)
    torch.testing.assert_close(result.tau, torch.full((5,), s, dtype=torch.float64), rtol=2e-7, atol=0)
    torch.testing.assert_close(result.probabilities, zero_shot[:, 0].softmax(-1), rtol=1e-5, atol=1e-8)


def test_adam_approaches_the_scale_and_stays_at_one_for_equal_logits():
    zero_shot = torch.randn(5, 9, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(
        calibrate(1.7 * zero_shot, zero_shot, solver="adam").tau,
        torch.full((5,), 1.7, dtype=torch.float64),
        rtol=0.05,
        atol=0,
    )
    for loss in LOSSES:
        assert calibrate(zero_shot, zero_shot, solver="adam", loss=loss).tau.tolist() == [1.0] * 5


@pytest.mark.parametrize("loss", LOSSES)
def test_one_view_meets_its_target_exactly(loss):
    g = torch.Generator().manual_seed(2)
    adapted, zero_shot = (2 * torch.randn(20, 4, 7, generator=g, dtype=torch.float64) for _ in range(2))
    result = calibrate(adapted, zero_shot, solver="exact", loss=loss, views="weak")
    torch.testing.assert_close(result.confidence, zero_shot[:, 0].softmax(-1).amax(-1), rtol=1e-6, atol=0)


def test_of_equal_losses_the_tau_nearest_one_is_taken():
    equal, sharp = torch.zeros(3, 4), torch.tensor([[9.0, 0, 0, 0]]).expand(3, 4)
    assert (
        calibrate(equal, sharp, solver="exact", rows="views").tau == 1
    )  # nothing moves the confidence of equal logits
    assert calibrate(1e4 * sharp, 1e4 * sharp, solver="exact", rows="views").tau == 1
    # The confidence of two equal best classes saturates at 1/2 for tau well below 1; it asks for 1.
    duplicate_classes = torch.tensor([[5.0, 5.0, 0.0]], dtype=torch.float64).expand(3, 3)
    wanted = torch.tensor([[1e4, 0.0, 0.0]], dtype=torch.float64).expand(3, 3)
    tau = float(calibrate(duplicate_classes, wanted, solver="exact", rows="views").tau)
    assert loss_at(torch.tensor(tau), duplicate_classes, wanted, torch.tensor([1]), "l2") == 0.25
    assert tau > 5 / 40  # below it the loss is 0.25 everywhere, to rounding


def test_adam_with_wild_settings_stays_finite():
    g = torch.Generator().manual_seed(3)
    adapted, zero_shot = 100 * torch.randn(4, 9, 6, generator=g), torch.randn(4, 9, 6, generator=g)
    for loss in LOSSES:
        for wild in ({"lr": 50.0}, {"lr": 1e30}, {"t0": 1e30}, {"t0": 1e-30}, {"lr": 2.0, "steps": 120}):
            result = calibrate(adapted, zero_shot, loss=loss, **wild)
            assert torch.isfinite(result.tau).all()
            assert torch.isfinite(result.probabilities).all()


def test_where_adam_hardly_moves_the_default_finds_the_minimum():
    """Saturated logits, twice those of zero-shot: at tau = 1 there is no slope to follow, and the minimum is at 2."""
    adapted = torch.tensor([[30.0, 0.0, 0.0], [29.0, 1.0, 0.0], [31.0, 0.0, 1.0]])
    adam = calibrate(adapted, adapted / 2, solver="adam", views="all_strong", rows="views")
    assert float(adam.tau) == pytest.approx(1, abs=0.02)
    default = calibrate(adapted, adapted / 2, views="all_strong", rows="views")
    assert float(default.tau) == pytest.approx(2, rel=1e-4)
    with pytest.raises(cots.InputError, match="steps=10 has no effect"):
        calibrate(adapted, adapted / 2, solver="exact", steps=10, rows="views")
    given = calibrate(adapted, adapted / 2, steps=50, views="all_strong", rows="views")
    assert given.tau == adam.tau, "its own setting chooses adam"
