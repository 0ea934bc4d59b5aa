"""The temperature that matches a mean confidence, and the distance of two classifiers, by other means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import softmax

from cots.export import Distance, match_confidence


@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.floats(0.05, 0.95))
def test_the_mean_confidence_is_matched(seed, classes, share):
    logits = np.random.default_rng(seed).normal(0, 5, (40, classes))
    target = 1 / classes + share * (1 - 1 / classes)

    def excess(log_tau):
        return softmax(logits / np.exp(log_tau), axis=1).max(1).mean() - target

    found = match_confidence(torch.from_numpy(logits), target)
    assert abs(excess(np.log(found))) < 1e-9
    assert found == pytest.approx(np.exp(brentq(excess, -6.9, 6.9, xtol=1e-12)), rel=1e-6)


def test_a_confidence_out_of_reach_ends_at_a_limit():
    logits = torch.tensor([[1.0, 0.0], [0.5, 0.0]])
    assert match_confidence(logits, 1.0) == pytest.approx(1e-3)
    assert match_confidence(logits, 0.1) == pytest.approx(1e3)


def test_the_distance_by_hand():
    distance = Distance.between([0, 1, 2, 1], [0.9, 0.5, 0.6, 0.7], [0, 1, 0, 1], [0.8, 0.7, 0.6, 0.7])
    assert (distance.n, distance.same) == (4, 0.75)
    assert distance.mean == pytest.approx((0.1 + 0.2) / 4)
    assert distance.largest == pytest.approx(0.2)
    assert (distance.before, distance.after) == (pytest.approx(0.675), pytest.approx(0.7))
    assert distance.line() == (
        "on 4 photos: same class 75.0%, confidence differs by 7.50 points on average and 20.0 at most, mean confidence "
        "67.5% before, 70.0% after"
    )
