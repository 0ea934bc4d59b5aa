"""Error control: how often the bound is violated, what is accepted, and how many labels are asked for."""

from __future__ import annotations

import numpy as np
import pytest

from cots import InputError
from cots.conformal import control_error


def error_above(threshold: float, power: float) -> float:
    """The true error rate of uniform confidences c >= threshold that are right with probability c^power."""
    return 1 - (1 - threshold ** (power + 1)) / ((power + 1) * (1 - threshold))


@pytest.mark.parametrize("power", [0.15, 0.05])
def test_the_bound_is_violated_in_at_most_five_percent_of_simulations(power, monkeypatch):
    monkeypatch.setattr("cots.conformal._sets._too_few", lambda *found: "none")  # the search is slow
    rng, violated, promised, runs = np.random.default_rng(0), 0, 0, 1000
    for _ in range(runs):
        confidence = rng.random(400)
        correct = rng.random(400) < confidence**power
        try:
            found = control_error(confidence, correct, risk=0.1, certainty=0.95)
        except InputError:
            continue
        promised += 1
        violated += error_above(found.threshold, power) > 0.1
    assert violated <= 0.05 * runs
    assert promised > 0.2 * runs


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


def test_too_few_labels_are_refused_with_the_number_needed():
    confidence = np.linspace(0.5, 1, 50)
    with pytest.raises(
        InputError, match=r"50 labels are too few to guarantee 5.0% errors with 95% certainty; about 150 "
    ):
        control_error(confidence, np.ones(50, dtype=bool))
    assert control_error(np.linspace(0.5, 1, 150), np.ones(150, dtype=bool)).accepted == 150
    with pytest.raises(InputError, match="even the most confident predictions are wrong more often"):
        control_error(confidence, np.zeros(50, dtype=bool))
    with pytest.raises(InputError, match="risk must lie between 0 and 1"):
        control_error(confidence, confidence > 0, risk=5)
