"""Levels, p-values and bets: against exact enumeration, naive formulas and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cots.watch._signal import EXTREMES, JUMP, Bag, Extreme, Trace, bet, levels_of


@given(st.integers(0, 2**32))
def test_levels_rise_with_the_values(seed):
    rng = np.random.default_rng(seed)
    anywhere = rng.choice([-1, 1], 20) * 10 ** rng.uniform(-300, 300, 20)
    ordered = np.sort(np.concatenate([rng.random(20), anywhere, [0.0, 0.5, 1.0]]))
    assert (np.diff(levels_of(ordered)) >= 0).all()


def test_levels_are_fine_near_zero_and_one_and_few():
    assert len(set(levels_of(np.arange(65) / 64).tolist())) == 65, "agreement of 64 views"
    near = 1 - np.logspace(-6, -1, 200)
    assert len(set(levels_of(near).tolist())) == 200
    steps = 1.008 ** np.arange(-3000, -87)
    assert steps[-1] < 0.5
    assert (np.diff(levels_of(steps)) > 0).all(), "steps of 0.8% are told apart"
    assert (np.diff(levels_of(1 - steps[2000:])) < 0).all()
    ends = levels_of([-1e300, 1e300])
    assert ends[1] - ends[0] < 100_000
    assert levels_of([0.0, 0.5, 1.0]).tolist() == [0, 0x3F00, 2 * 0x3F00]


@pytest.mark.parametrize("values", [[1, 2, 3, 4], [1, 1, 2, 3], [5, 5, 5, 5], [1, 1, 2, 2]])
def test_p_values_are_independent_and_uniform_over_all_orders(values):
    """P(p_1 <= a_1, ..., p_n <= a_n) = a_1 ... a_n, the tie-breaking integrated exactly."""
    for limits in itertools.product([0.13, 0.5, 0.77], repeat=4):
        total = 0.0
        for order in itertools.permutations(values):
            bag, chance = Bag(), 1.0
            for level, limit in zip(order, limits, strict=True):
                smaller, equal = bag.add(level)
                chance *= min(1.0, max(0.0, (limit * bag.size - smaller) / equal))
            total += chance
        assert total / math.factorial(4) == pytest.approx(math.prod(limits), rel=1e-12)


def test_a_bag_counts_like_a_list():
    rng, bag, seen = np.random.default_rng(0), Bag(), []
    for level in rng.integers(-20, 20, 300).tolist():
        seen.append(level)
        assert bag.add(level) == (sum(one < level for one in seen), seen.count(level))
    assert bag.size == 300
    assert len(bag.levels) == len(set(seen))


def naive_capital(p_values: list[float]) -> float:
    """The sum of simple jumpers started at every t with w_t, each from the definition."""
    total = 0.0
    for start in range(len(p_values)):
        capital = dict.fromkeys((-1, 0, 1), 1 / 3)
        for p in p_values[start:]:
            together = sum(capital.values())
            for e in capital:
                capital[e] = ((1 - JUMP) * capital[e] + JUMP / 3 * together) * (1 + e * (p - 0.5))
        total += sum(capital.values()) / ((start + 1) * (start + 2))
    return total


def test_bets_are_restarted_jumpers():
    p_values = np.random.default_rng(0).beta(2, 1, 40).tolist()
    capital = np.zeros(3)
    for t, p in enumerate(p_values, start=1):
        capital = bet(capital, p, t)
    assert capital.sum() == pytest.approx(naive_capital(p_values), rel=1e-12)


def test_a_trace_begins_after_the_last_minimum_of_the_sum():
    """Of the gains, of which some are small and some cancel exactly."""
    rng, trace = np.random.default_rng(2), Trace()
    gains = rng.choice([-0.5, -0.25, 0.0625, 0.25], 300).tolist()
    values = rng.random(300).tolist()
    for photo, (gain, value) in enumerate(zip(gains, values, strict=True), start=1):
        trace.add(Extreme(value=value, photo=photo), gain, order=-1)
        sums = np.concatenate([[0.0], np.cumsum(gains[:photo])])
        begun = max(i for i in range(len(sums)) if sums[i] == sums.min())
        assert trace.evidence == sums[-1] - sums.min()
        if photo > 1 or gains[0] <= 0:
            assert trace.since == begun + 1
        lowest = sorted((values[i], i + 1) for i in range(begun, photo))[:EXTREMES]
        assert [(one.value, one.photo) for one in trace.extremes] == lowest


def test_the_capital_reaches_twenty_in_at_most_five_percent_of_runs():
    rng, runs = np.random.default_rng(1), 4000
    capital, largest = np.zeros((3, runs)), np.zeros(runs)
    for t in range(1, 1001):
        capital = bet(capital, rng.random(runs), t)
        largest = np.maximum(largest, capital.sum(0))
    assert 0.002 < (largest >= 20).mean() <= 0.05
    assert capital.sum(0).mean() < 1.2, "no bet gains on average"
