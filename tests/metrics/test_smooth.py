"""The smooth calibration error against kernels summed image by image, closed forms, and its bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cots.metrics import bootstrap, confidence_gap, ece, smooth, smooth_ece


def naive(confidence, correct, weights=None) -> float:
    """From the definition: Gaussians with their mirror images on a fixed mesh, and plain bisection."""
    c, residual = np.asarray(confidence, float), np.asarray(confidence, float) - np.asarray(correct, float)
    share = np.full(len(c), 1 / len(c)) if weights is None else np.asarray(weights) / np.sum(weights)
    mesh = (np.arange(800) + 0.5) / 800

    def at(width: float) -> float:
        kernel = np.zeros((len(mesh), len(c)))
        for period in range(-3, 4):
            for image in (2 * period + c, 2 * period - c):
                kernel += np.exp(-((mesh[:, None] - image) ** 2) / (2 * width**2))
        return float(np.abs(kernel @ (share * residual)).mean() / (width * np.sqrt(2 * np.pi)))

    low, high = 2.0**-10, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle) >= middle else (low, middle)
    return at(high)


def overconfident(n, power, seed=0):
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.2, 1, n)
    return confidence, rng.random(n) < confidence**power


@pytest.mark.parametrize(("n", "power"), [(3, 1), (40, 2), (60, 0.5), (150, 1), (150, 3)])
def test_it_is_the_fixed_point_of_the_definition(n, power):
    confidence, correct = overconfident(n, power, seed=n)
    assert float(smooth_ece(confidence, correct)) == pytest.approx(naive(confidence, correct), abs=3e-4)


def test_weights_are_repeated_samples():
    confidence, correct = overconfident(60, 2)
    rows = np.random.default_rng(1).integers(0, 3, (4, 60))
    found = smooth_ece(confidence, correct, weights=rows).value
    for row, value in zip(rows, found, strict=True):
        assert value == pytest.approx(naive(confidence, correct, row), abs=3e-4)
        again = smooth_ece(np.repeat(confidence, row), np.repeat(correct, row))
        assert value == pytest.approx(float(again), abs=1e-6)
    assert float(smooth_ece(confidence, correct, weights=rows[0])) == pytest.approx(found[0], abs=1e-6)


def test_closed_forms():
    assert float(smooth_ece([1.0, 0.0, 1.0], [1, 0, 1])) == 0
    for confidence, share in ((0.9, 0.5), (0.6, 0.9)):
        correct = np.arange(100) < 100 * share
        assert float(smooth_ece(np.full(100, confidence), correct)) == pytest.approx(abs(confidence - share), abs=1e-3)
    # Opposite errors far apart do not cancel, and neighbouring ones do.
    far = float(smooth_ece([0.1] * 100 + [0.9] * 100, [1] * 30 + [0] * 70 + [1] * 70 + [0] * 30))
    assert far == pytest.approx(0.2, abs=0.01)
    assert float(smooth_ece([0.5, 0.500001] * 50, [1, 0] * 50)) < 0.002


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=30))
def test_bounds(samples):
    confidence, correct = zip(*samples, strict=True)
    value = float(smooth_ece(confidence, correct))
    gap = abs(float(confidence_gap(confidence, correct)))
    assert gap - 2e-3 <= value <= 1 + 1e-9
    mirrored = float(smooth_ece([1 - c for c in confidence], [not a for a in correct]))
    assert value == pytest.approx(mirrored, abs=1e-3)


def test_large_sets_are_rounded_to_a_grid_that_is_too_fine_to_matter(monkeypatch):
    confidence, correct = overconfident(6000, 1.3)
    rounded = float(smooth_ece(confidence, correct))
    monkeypatch.setattr(smooth, "_CELLS", 10**6)
    assert rounded == pytest.approx(float(smooth_ece(confidence, correct)), rel=1e-4)


def test_it_has_less_noise_than_bins_and_an_interval():
    """Of a calibrated model, where both should be zero; and the interval covers what a large sample has."""
    errors = []
    for seed in range(30):
        confidence, correct = overconfident(300, 1, seed)
        errors.append((float(smooth_ece(confidence, correct)), float(ece(confidence, correct))))
    smooth_mean, binned_mean = np.mean(errors, axis=0)
    assert smooth_mean < 0.8 * binned_mean
    truth = float(smooth_ece(*overconfident(200_000, 2)))
    covered = 0
    for seed in range(40):
        found = bootstrap(smooth_ece, *overconfident(300, 2, seed), resamples=200, centre=True)
        covered += found.low <= truth <= found.high
    assert covered >= 34
