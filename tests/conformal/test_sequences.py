"""Confidence sequences: against numerical integration, exact enumeration, a grid, and simulation of every look."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, optimize, special

from cots import InputError
from cots.conformal import mean_interval, mean_lower_bound, rate_interval
from cots.conformal._sequences import FRACTIONS, log_capital
from cots.metrics import binomial_interval


def capital_of_rate(s: int, f: int, m: float) -> float:
    """The mixture of likelihood ratios, integrated over the Beta(1/2, 1/2) prior."""

    def ratio(q: float) -> float:
        return (q / m) ** s * ((1 - q) / (1 - m)) ** f

    return integrate.quad(ratio, 0, 1, weight="alg", wvar=(-0.5, -0.5))[0] / math.pi


@pytest.mark.parametrize(
    ("count", "n", "low", "high"),
    [(0, 50, 0, 0.105), (0, 100, 0, 0.057), (5, 100, 0.007, 0.156), (100, 1000, 0.069, 0.138), (7, 7, 0.521, 1)],
)
def test_the_closed_form_inverts_the_mixture_of_all_rates(count, n, low, high):
    ends = rate_interval(count, n)
    assert ends == pytest.approx((low, high), abs=5e-4)
    for end in ends:
        if 0 < end < 1 and n <= 100:
            assert capital_of_rate(count, n - count, end) == pytest.approx(20, rel=1e-6)


@given(st.integers(1, 300), st.data())
def test_the_closed_form_is_mirrored_and_wider_than_an_interval_for_one_look(n, data):
    count = data.draw(st.integers(0, n))
    low, high = rate_interval(count, n)
    mirrored = rate_interval(n - count, n)
    assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high), abs=1e-9)
    fixed = binomial_interval(count, n)
    assert low <= fixed[0] + 1e-9
    assert high >= fixed[1] - 1e-9


def test_capital_is_a_fair_game():
    """Its expected value at the true mean is 1, whatever the values are; enumerated exactly."""
    values, probabilities = np.array([0.0, 0.4, 3.0]), np.array([0.5, 0.3, 0.2])
    mean, total = float(values @ probabilities), 0.0
    for draw in itertools.product(range(3), repeat=5):
        at = list(draw)
        total += probabilities[at].prod() * math.exp(log_capital(values[at], np.zeros(5), np.ones(5), mean))
    assert total == pytest.approx(1, rel=1e-12)


def test_the_lower_bound_inverts_the_capital():
    rng = np.random.default_rng(0)
    for values in (rng.uniform(size=40), rng.binomial(1, 0.3, 60) / 0.2, np.array([0.0, 0.0, 9.0])):

        def excess(m: float, values: np.ndarray = values) -> float:
            products = [np.prod([1 + c * (x / m - 1) for x in values]) for c in FRACTIONS]
            return math.log(np.mean(products)) - math.log(20)

        expected = optimize.brentq(excess, 1e-3, values.mean())
        assert mean_lower_bound(values, 0.05) == pytest.approx(expected, rel=1e-9)
        assert mean_lower_bound(values[::-1], 0.05) == mean_lower_bound(values, 0.05)


def test_lower_limits_that_depend_on_the_past_sharpen_the_bound():
    """Drawing a pool without replacement: a draw's unbiased estimate of the pool's mean is at least what was seen."""
    rng = np.random.default_rng(3)
    pool = np.arange(300) < 90
    missed, sharper = 0, 0
    for _ in range(200):
        drawn = rng.permutation(pool)[:150].astype(float)
        seen = np.concatenate([[0.0], np.cumsum(drawn)[:-1]])
        estimates = (seen + (300 - np.arange(150)) * drawn) / 300
        low = mean_lower_bound(estimates, 0.05, least=seen / 300)
        missed += low > 0.3
        sharper += low > mean_lower_bound(drawn, 0.05)
    assert missed <= 17
    assert sharper > 150


def test_lower_limits_enter_the_capital_and_shift_with_the_values():
    values, least = np.array([0.1, 0.9, 0.4, 0.8]), np.array([0.0, 0.1, 0.0, 0.2])
    low = mean_lower_bound(values, 0.7, least=least)
    capitals = [np.prod(1 + c * ((values - least) / (low - least) - 1)) for c in FRACTIONS]
    assert np.mean(capitals) == pytest.approx(1 / 0.7, rel=1e-9)
    shifted = mean_lower_bound(values - 3, 0.7, least=least - 3)
    assert shifted == pytest.approx(low - 3, abs=1e-12)
    assert mean_lower_bound([0.2, 0.3], 0.05, least=[0.2, 0.3]) == 0.3


def test_counts_stand_for_repeated_values_and_both_ends_mirror():
    values = np.repeat([0.0, 0.5, 2.0], [50, 20, 4])
    assert mean_interval(values, most=2) == mean_interval([0, 0.5, 2], counts=[50, 20, 4], most=2)
    low, high = mean_interval(values, most=2)
    mirrored = mean_interval(2 - values, most=2)
    assert (2 - mirrored[1], 2 - mirrored[0]) == pytest.approx((low, high), abs=1e-12)
    assert low < values.mean() < high


def test_without_samples_or_spread():
    assert rate_interval(0, 0) == mean_interval([]) == (0, 1)
    assert mean_lower_bound([], 0.05) == mean_lower_bound([0, 0], 0.05) == 0
    assert mean_interval([0, 0])[0] == 0
    assert mean_interval([1, 1])[1] == 1


def crossings(capitals: np.ndarray, delta: float) -> float:
    """The share of runs (runs, samples) that ever reach 1 / delta."""
    return float((capitals.max(1) >= -math.log(delta)).mean())


def test_the_rate_is_excluded_ever_in_at_most_five_percent_of_runs():
    rng, runs, n, rate = np.random.default_rng(1), 2000, 400, 0.07
    s = np.cumsum(rng.random((runs, n)) < rate, axis=1)
    f = np.arange(1, n + 1) - s
    mixed = special.betaln(s + 0.5, f + 0.5) - special.betaln(0.5, 0.5)
    missed = crossings(mixed - s * math.log(rate) - f * math.log1p(-rate), 0.05)
    assert 0.005 < missed <= 0.05
    at = rng.integers(runs), rng.integers(n)
    low, high = rate_interval(int(s[at]), int(at[1]) + 1)
    assert (low < rate < high) == (mixed[at] - s[at] * math.log(rate) - f[at] * math.log1p(-rate) < math.log(20))


def test_weighted_samples_exclude_the_mean_ever_in_at_most_five_percent_of_runs():
    """Half the photos are asked with probability 0.1, those with more errors with 0.5."""
    rng, runs, n = np.random.default_rng(2), 1000, 400
    unsure = rng.random((runs, n)) < 0.5
    chance = np.where(unsure, 0.5, 0.1)
    loss = rng.random((runs, n)) < np.where(unsure, 0.15, 0.03)
    x = (rng.random((runs, n)) < chance) * loss / chance
    for values, mean in ((x, 0.09), (10 - x, 10 - 0.09)):
        logs = np.stack([np.cumsum(np.log1p(c * (values / mean - 1)), axis=1) for c in FRACTIONS])
        top = logs.max(0)
        missed = crossings(top + np.log(np.exp(logs - top).mean(0)), 0.025)
        assert missed <= 0.025 + 1.645 * (0.025 * 0.975 / runs) ** 0.5
    low, high = mean_interval(x[0], most=10)
    assert 0 < low < 0.09 < high < 0.35


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: rate_interval(3, 2), "count must lie between 0 and n, not 3 of 2"),
        (lambda: rate_interval(1, 2, 95), "level must lie between 0 and 1, such as 0.95, not 95"),
        (lambda: mean_interval([0.5, 1.5]), "values must be at most most=1.0; the largest is 1.5"),
        (lambda: mean_interval([0.5, np.nan]), "must be finite and at least `least`"),
        (lambda: mean_lower_bound([0.5, -1], 0.05), "must be finite and at least `least`"),
        (lambda: mean_lower_bound([0.5], 0.05, counts=[1, 2]), "equal lengths"),
        (lambda: mean_lower_bound([0.5], 0), "delta must lie between 0 and 1"),
    ],
)
def test_refusals(call, match):
    with pytest.raises(InputError, match=match):
        call()


def test_a_value_at_the_highest_limit_leaves_nothing_to_bet_on():
    assert mean_lower_bound([0.2, 0.7], 0.05, least=np.array([0.1, 0.7])) == 0.7
    near = math.nextafter(0.7, 1)
    assert 0.7 <= mean_lower_bound([0.2, 0.7, near], 0.05, least=np.array([0.1, 0.7, 0.1])) <= near
