"""Error control: how often the bound is violated, what is accepted, and how many labels are asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy

from cots import InputError
from cots.conformal import control_error


def error_above(threshold: float, power: float) -> float:
    """The true error rate of uniform confidences c >= threshold that are right with probability c^power."""
    return 1 - (1 - threshold ** (power + 1)) / ((power + 1) * (1 - threshold))


@pytest.mark.parametrize("power", [0.15, 0.05])
def test_the_bound_is_violated_in_at_most_five_percent_of_simulations(power, monkeypatch):
    monkeypatch.setattr("cots.conformal._risk._labels_needed", lambda *given: None)  # the search is slow
    monkeypatch.setattr("cots.conformal._risk._smallest_risk", lambda *given: 1.0)
    rng, violated, promised, runs = np.random.default_rng(0), 0, 0, 1000
    for _ in range(runs):
        confidence = rng.random(400)
        correct = rng.random(400) < confidence**power
        found = control_error(confidence, correct, risk=0.1, certainty=0.95)
        if found.threshold is None:
            continue
        promised += 1
        violated += error_above(found.threshold, power) > 0.1
    assert violated <= 0.05 * runs
    assert promised > 0.2 * runs


def test_the_smallest_supported_risk_holds_although_the_same_labels_choose_it():
    """For confidences that say nothing, each draw offers the candidate that was luckiest: the worst case."""
    rng, runs, true = np.random.default_rng(1), 1000, 0.2
    broken = 0
    for _ in range(runs):
        found = control_error(rng.random(200), rng.random(200) >= true, risk=0.999)
        broken += true > found.smallest_risk
    assert broken <= 0.05 * runs + 1.645 * (0.05 * 0.95 * runs) ** 0.5


def test_the_lowest_threshold_that_qualifies_is_taken():
    confidence = np.linspace(0.5, 1, 1000)
    correct = confidence > 0.6
    found = control_error(confidence, correct)
    assert found.accepted == 800
    assert found.errors == 0
    assert found.coverage == 0.8
    assert found.bound == pytest.approx(1 - 0.005 ** (1 / 800), rel=1e-6)
    assert ((confidence >= found.threshold) == (np.arange(1000) >= 200)).all()
    everything = control_error(confidence, np.ones(1000, dtype=bool))
    assert (everything.threshold, everything.accepted) == (0.0, 1000)


def test_equal_confidences_are_accepted_or_left_out_together():
    confidence = np.repeat([0.9, 0.6], [300, 300])
    found = control_error(confidence, confidence > 0.7)
    assert found.accepted == 300
    assert 0.6 < found.threshold <= 0.9


def test_without_a_threshold_the_supported_risk_and_the_labels_needed_are_given():
    confidence = np.linspace(0.5, 1, 50)
    found = control_error(confidence, np.ones(50, dtype=bool))
    assert (found.threshold, found.accepted) == (None, 0)
    assert found.smallest_risk == pytest.approx(1 - 0.005 ** (1 / 50), rel=1e-9)
    assert found.needed == math.ceil(math.log(0.005) / math.log(0.95))
    assert found.shortfall == "these 50 labels support at most 11% errors; about 54 more for 5%"
    assert control_error(confidence, np.ones(50, dtype=bool), found.offered_risk).accepted == 50
    assert control_error(confidence, np.ones(50, dtype=bool), found.smallest_risk - 1e-6).threshold is None
    assert control_error(np.linspace(0.5, 1, 104), np.ones(104, dtype=bool)).accepted == 104
    assert control_error(np.linspace(0.5, 1, 103), np.ones(103, dtype=bool)).threshold is None


def test_the_smallest_risk_is_the_least_clopper_pearson_bound_of_the_candidates():
    rng = np.random.default_rng(3)
    confidence = rng.random(120)
    correct = rng.random(120) < 0.6 + 0.3 * confidence
    best_first = correct[np.argsort(-confidence)]
    kept = range(12, 121, 12)
    wrong = [int((~best_first[:k]).sum()) for k in kept]
    bounds = [scipy.stats.beta.ppf(0.995, w + 1, k - w) for k, w in zip(kept, wrong, strict=True)]
    assert control_error(confidence, correct).smallest_risk == pytest.approx(min(bounds), rel=1e-8)


def test_labels_that_are_all_wrong_support_nothing():
    confidence = np.linspace(0.5, 1, 50)
    none = control_error(confidence, np.zeros(50, dtype=bool))
    assert (none.threshold, none.smallest_risk, none.offered_risk, none.needed) == (None, 1.0, None, None)
    assert "even the most confident predictions are wrong too often" in none.shortfall
    with pytest.raises(InputError, match="risk must lie between 0 and 1"):
        control_error(confidence, confidence > 0, risk=5)
