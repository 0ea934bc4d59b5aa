"""Exact bounds of a counted share, against sums of binomial probabilities and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy

from cots import InputError
from cots.metrics import binomial_interval
from cots.metrics.intervals import upper_bound


def at_most(count: int, n: int, p: float) -> float:
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(count + 1))


@pytest.mark.parametrize(("count", "n"), [(0, 1), (0, 59), (1, 93), (3, 100), (50, 100), (99, 100)])
def test_the_bound_is_where_the_tail_has_the_given_probability(count, n):
    assert at_most(count, n, upper_bound(count, n, 0.05)) == pytest.approx(0.05, rel=1e-8)
    low, high = binomial_interval(count, n, level=0.9)
    assert at_most(count, n, high) == pytest.approx(0.05, rel=1e-8)
    if count:
        assert 1 - at_most(count - 1, n, low) == pytest.approx(0.05, rel=1e-8)
    else:
        assert low == 0


def test_arrays_against_scipy():
    rng = np.random.default_rng(0)
    n = rng.integers(1, 20_000, 100)
    count = np.minimum(n, rng.integers(0, 20_000, 100))
    low, high = binomial_interval(count, n)
    np.testing.assert_allclose(
        low, np.where(count == 0, 0, scipy.stats.beta.ppf(0.025, np.maximum(count, 1), n - count + 1)), atol=1e-10
    )
    np.testing.assert_allclose(
        high, np.where(count == n, 1, scipy.stats.beta.ppf(0.975, count + 1, np.maximum(n - count, 1))), atol=1e-10
    )


def test_nothing_seen_bounds_nothing_and_bad_counts_are_refused():
    assert binomial_interval(0, 0) == (0.0, 1.0)
    with pytest.raises(InputError, match="between 0 and n"):
        binomial_interval(3, 2)
    with pytest.raises(InputError, match="between 0 and 1"):
        binomial_interval(1, 2, level=1.0)
