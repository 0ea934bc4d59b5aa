"""The split of NLL and Brier score against a naive one, its sum, and what moves which part."""

from __future__ import annotations

import numpy as np
import pytest

from cots.metrics import (
    METRICS,
    bootstrap,
    brier_calibration,
    brier_multiclass,
    brier_refinement,
    nll,
    nll_calibration,
    nll_refinement,
    refinement,
)

PAIRS = ((nll, nll_calibration, nll_refinement), (brier_multiclass, brier_calibration, brier_refinement))


def softmax(z):
    p = np.exp(z - z.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def drawn(n=800, classes=6, sharpness=2.0, seed=0):
    """Logits of a calibrated model and labels drawn from it."""
    rng = np.random.default_rng(seed)
    logits = sharpness * rng.normal(size=(n, classes))
    labels = (softmax(logits).cumsum(1) > rng.random((n, 1))).argmax(1)
    return logits, labels


def naive(p, labels):
    """(NLL, Brier) at the best of 4,000 temperatures, mixed with 1/(n + 1) of the uniform distribution."""
    logits, rows = np.log(p), np.arange(len(p))
    best = min(np.geomspace(0.05, 20, 4000), key=lambda tau: -np.log(softmax(logits / tau)[rows, labels]).mean())
    share = 1 / (len(p) + 1)
    mixed = (1 - share) * softmax(logits / best) + share / p.shape[1]
    return -np.log(mixed[rows, labels]).mean(), ((mixed - np.eye(p.shape[1])[labels]) ** 2).sum(1).mean()


@pytest.mark.parametrize("power", [0.4, 1.0, 3.0])
def test_against_a_naive_split(power):
    logits, labels = drawn(200)
    p = softmax(power * logits)
    for (total, calibration, refined), expected in zip(PAIRS, naive(p, labels), strict=True):
        assert float(refined(p, labels)) == pytest.approx(expected, abs=5e-5)
        parts = calibration(p, labels).per_sample + refined(p, labels).per_sample
        np.testing.assert_allclose(parts, total(p, labels).per_sample, atol=1e-12)


def test_parts_are_shown_in_the_unit_of_their_sum():
    """So that the two columns of a table add up to the third."""
    for total, *parts in PAIRS:
        whole = METRICS.info(total.__name__)
        for part in parts:
            info = METRICS.info(part.__name__)
            assert (info.scale, info.digits, info.better) == (whole.scale, whole.digits, whole.better)


def test_a_temperature_moves_only_the_calibration_part():
    logits, labels = drawn()
    for _, calibration, refined in PAIRS:
        parts = {power: (float(calibration(softmax(power * logits), labels))) for power in (0.5, 1.0, 2.0)}
        left = [float(refined(softmax(power * logits), labels)) for power in (0.5, 1.0, 2.0)]
        assert np.ptp(left) < 1e-5
        assert abs(parts[1.0]) < 0.003
        assert min(parts[0.5], parts[2.0]) > 0.01


def test_knowledge_moves_only_the_refinement_part():
    """Two calibrated models, of which one knows more."""
    for _, calibration, refined in PAIRS:
        (weak, labels), (strong, others) = drawn(3000, sharpness=1.0), drawn(3000, sharpness=3.0)
        assert abs(float(calibration(softmax(weak), labels)) - float(calibration(softmax(strong), others))) < 0.005
        assert float(refined(softmax(weak), labels)) > float(refined(softmax(strong), others)) + 0.2


def test_one_fit_serves_all_parts_and_a_changed_table_gets_its_own(monkeypatch):
    logits, labels = drawn(50, seed=5)
    p, fits = softmax(2 * logits), []
    fit = refinement.fit_temperature
    monkeypatch.setattr(refinement, "fit_temperature", lambda *given: fits.append(0) or fit(*given))
    before = [float(part(p, labels)) for _, *parts in PAIRS for part in parts]
    assert len(fits) == 1
    p[:] = softmax(0.5 * logits)
    assert [float(part(p, labels)) for _, *parts in PAIRS for part in parts] != before
    assert len(fits) == 2


def test_extremes():
    p = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    assert float(nll_refinement(p, [0, 1])) < 0.5, "no best temperature: the sharpest tried, and the mixture"
    assert float(nll_calibration(p, [1, 0])) > 90, "certain and wrong: repaired by any temperature"
    assert float(nll_refinement(np.full((5, 4), 0.25), [0, 1, 2, 3, 0])) == pytest.approx(np.log(4))
    assert float(nll_refinement([[1.0]], [0])) == pytest.approx(0)


def test_the_interval_of_the_columns_is_that_of_new_fits():
    """Reports resample the losses per sample; fitting the temperature again in every resample gives the same ends."""
    logits, labels = drawn(400, seed=2)
    p = softmax(1.7 * logits)
    for part in (nll_calibration, nll_refinement, brier_calibration, brier_refinement):
        again = bootstrap(part, p, labels, resamples=60, centre=True)
        columns = bootstrap(np.mean, part(p, labels).per_sample, resamples=60, centre=True)
        width = again.high - again.low
        assert columns.low == pytest.approx(again.low, abs=0.12 * width), part.__name__
        assert columns.high == pytest.approx(again.high, abs=0.12 * width), part.__name__
