"""The labelled temperature of TS."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy
import torch

from cots import InputError, fit_temperature


def nll(log_tau, logits, labels):
    return float(torch.nn.functional.cross_entropy(logits / math.exp(log_tau), labels))


@pytest.mark.parametrize("scale", [0.05, 1.0, 8.0, 300.0])
def test_fit_temperature_against_scipy(scale):
    g = torch.Generator().manual_seed(4)
    logits = scale * torch.randn(300, 6, generator=g, dtype=torch.float64)
    labels = torch.where(torch.rand(300, generator=g) < 0.6, logits.argmax(1), torch.randint(6, (300,), generator=g))
    tau = fit_temperature(logits, labels)
    best = scipy.optimize.minimize_scalar(
        nll, bounds=(-12, 12), args=(logits, labels), method="bounded", options={"xatol": 1e-10}
    )
    assert tau == pytest.approx(math.exp(best.x), rel=1e-5)
    assert nll(math.log(tau), logits, labels) <= best.fun + 1e-12
    assert fit_temperature(logits.numpy(), labels.numpy()) == tau


@pytest.mark.parametrize("true", [0.5, 1.16, 3.0])
def test_fit_temperature_recovers_a_known_one(true):
    g = torch.Generator().manual_seed(5)
    logits = 4 * torch.randn(8_000, 10, generator=g)
    labels = torch.multinomial((logits / true).softmax(-1), 1, generator=g)[:, 0]
    assert fit_temperature(logits, labels) == pytest.approx(true, rel=0.03)


def test_fit_temperature_without_a_minimum_warns_where_the_search_ended():
    right = torch.eye(4) * 3  # every gap is 3
    with pytest.warns(UserWarning, match=r"no best temperature \(nearly every sample is right\); .* ended at 0.01\."):
        assert fit_temperature(right, torch.arange(4)) == pytest.approx(0.01)
    with pytest.warns(UserWarning, match=r"no better explained than by chance\); .* ended at 30\."):
        assert fit_temperature(right, torch.tensor([1, 2, 3, 0])) == pytest.approx(30)
    with pytest.warns(UserWarning, match="nearly every sample is right"):  # the loss underflows before the end
        assert 0.01 < fit_temperature(20 * right, torch.arange(4)) < 0.2
    assert fit_temperature(torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)) == 1
    assert fit_temperature(np.ones((2, 1)), [0, 0]) == 1
    # Three of four right: softmax(3e4 / tau) = 3/4 against three classes at 0.
    expected = 3e4 / math.log(9)
    assert fit_temperature(1e4 * right, [0, 1, 2, 0]) == pytest.approx(expected, rel=1e-6)


def test_probabilities_of_zero_do_not_move_the_search():
    sure = np.full((100, 50), -700.0)  # as cots check gives them
    sure[:, :2] = np.log([0.9, 0.1])
    labels = np.repeat([0, 1], [80, 20])
    # softmax(log(9) / tau) = 4 / 5
    assert fit_temperature(sure, labels) == pytest.approx(math.log(9) / math.log(4), rel=1e-6)


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_labels_without_relation_to_the_logits_warn_at_every_scale(scale):
    rng = np.random.default_rng(7)
    logits = scale * rng.normal(size=(200, 10))
    labels = np.where(rng.random(200) < 0.5, logits.argmin(1), rng.integers(0, 10, 200))
    mean_gap = (logits.max(1, keepdims=True) - logits).sum() / (200 * 9)
    with pytest.warns(UserWarning, match="no best temperature"):
        assert fit_temperature(logits, labels) == pytest.approx(10 * max(1, mean_gap))


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (np.ones(3), [0], r"logits must be \(N, K\).* not \(3,\)"),
        (np.ones((0, 3)), [], r"not \(0, 3\)"),
        (np.ones((2, 3)), [0], r"labels must be 2 class indices.* shape \(1,\)"),
        (np.ones((2, 3)), [0.0, 1.0], "not torch.float32"),
        (np.ones((2, 3)), [0, 3], r"labels\[1\] is 3, but the logits have classes 0 to 2"),
        (np.ones((2, 3)), [-1, 0], r"labels\[0\] is -1"),
        ([[1.0, float("inf")]], [0], r"logits has"),
    ],
)
def test_fit_temperature_errors(logits, labels, message):
    with pytest.raises(InputError, match=message):
        fit_temperature(logits, labels)
