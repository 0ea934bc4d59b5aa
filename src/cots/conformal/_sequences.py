"""Confidence sequences: intervals for a mean that hold at every sample size together, however often one looks.

A bettor starts with capital 1 and bets on each sample before seeing it. If the mean is m, fair bets leave the expected
capital at 1, and by Ville's inequality it ever reaches 1/delta with probability delta at most. So the means against
which the capital has reached 1/delta can be excluded, at any time, with one error probability for the whole sequence.

Both kinds assume that each sample has the same mean given the samples before it, as independent samples do.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .._errors import InputError
from ..metrics.inputs import Floats

# Shares of the capital at risk; the bettor splits the capital equally among them, to suit rare and frequent values.
FRACTIONS = np.array([0.9, 0.75, 0.55, *(3.0**-k for k in range(1, 7))])
_HALVINGS = 50  # of the interval that contains a bound


def rate_interval(count: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """The interval of a rate from `count` of `n` uniformly drawn samples, valid at every n together.

        {m : M(m) < 1 / (1 - level)},   M(m) = B(s + 1/2, f + 1/2) / (B(1/2, 1/2) m^s (1 - m)^f),   s = count, f = n - s

    M is the capital of a mixture of bets, Beta(1/2, 1/2) over the possible rates (Robbins 1970). It contains the rate
    at all n together with probability `level` or more; `cots.metrics.binomial_interval`, at one n chosen beforehand.

    >>> low, high = rate_interval(5, 100)
    >>> round(low, 3), round(high, 3)
    (0.007, 0.156)
    """
    check_level(level)
    if not 0 <= count <= n:
        raise InputError(f"count must lie between 0 and n, not {count!r} of {n!r}.")
    if n == 0:
        return 0.0, 1.0
    s, f = count, n - count
    mixed = math.lgamma(s + 0.5) + math.lgamma(f + 0.5) - math.lgamma(n + 1.0) - math.log(math.pi)

    def excluded(m: float) -> bool:
        right = (s and s * math.log(m)) + (f and f * math.log1p(-m))
        return mixed - right >= -math.log(1.0 - level)

    low = _last_excluded(excluded, 0.0, s / n) if s else 0.0
    high = 1.0 - _last_excluded(lambda m: excluded(1.0 - m), 0.0, f / n) if f else 1.0
    return low, high


def mean_interval(values: Any, level: float = 0.95, *, most: float = 1.0, counts: Any = None) -> tuple[float, float]:
    """The interval of a mean of independent samples in [0, most], valid at every number of samples together.

        low = mean_lower_bound(values, delta),   high = most - mean_lower_bound(most - values, delta)

    with delta = (1 - level) / 2: the hedged capital of Waudby-Smith and Ramdas (2024). counts: how often each value
    occurred; default: once.

    Weighted samples: if sample i is drawn with a probability p_i >= p fixed before its loss l_i in [0, 1] is known,
    pass l_i / p_i for drawn samples and 0 for the others, with most = 1 / p. The interval is that of the mean loss.

    >>> low, high = mean_interval([0, 1], counts=[95, 5])
    >>> round(low, 3), round(high, 3)
    (0.007, 0.152)
    """
    check_level(level)
    table, _, often = _table(values, 0.0, counts)
    if table.size and not table.max() <= most * (1 + 1e-12):
        raise InputError(f"values must be at most most={most!r}; the largest is {float(table.max())!r}.")
    delta = (1.0 - level) / 2
    low = mean_lower_bound(table, delta, counts=often)
    return low, float(most - mean_lower_bound(np.maximum(most - table, 0.0), delta, counts=often))


def mean_lower_bound(values: Any, delta: float, *, least: Any = 0.0, counts: Any = None) -> float:
    """The lower bound of a mean of samples x_i >= l_i, valid at every number of samples together.

        inf {m : K(m) < 1 / delta},  K(m) = mean over c of prod_i (1 + c ((x_i - l_i) / (m - l_i) - 1)),  c in FRACTIONS

    The true mean is ever below it with probability `delta` at most. The samples need no upper bound, so they can be
    weighted with any 1 / probability, and their order does not matter. least: the lower limits l_i, one for all or one
    per sample, each known before the sample. counts: how often each value occurred; default: once.
    """
    if not 0.0 < delta < 1.0:
        raise InputError(f"delta must lie between 0 and 1, such as 0.05, not {delta!r}.")
    table, limits, often = _table(values, least, counts)
    if not len(table):
        return float(np.max(least))
    low, high = float(limits.max()), float(table.max())
    if low >= high:
        return low
    above = math.nextafter(low, math.inf)  # a mean equal to a limit has no bets
    # Against a mean above all values, every bet is lost.
    return _last_excluded(lambda m: log_capital(table, limits, often, max(m, above)) >= -math.log(delta), low, high)


def log_capital(values: Floats, least: Floats, counts: Floats, mean: float) -> float:
    """log K(mean) after all samples; see `mean_lower_bound`."""
    gains = (values - least) / (mean - least) - 1.0
    each = np.log1p(FRACTIONS[:, None] * gains) @ counts
    top = each.max()
    return float(top + np.log(np.exp(each - top).mean()))


def check_level(level: float) -> None:
    """Refuse a level outside (0, 1)."""
    if not 0.0 < level < 1.0:
        raise InputError(f"level must lie between 0 and 1, such as 0.95, not {level!r}.")


def _table(values: Any, least: Any, counts: Any) -> tuple[Floats, Floats, Floats]:
    """The distinct values with their lower limits, and how often each pair occurred."""
    given = np.asarray(values, dtype=np.float64)
    often = np.ones(given.shape) if counts is None else np.asarray(counts, dtype=np.float64)
    if given.ndim != 1 or given.shape != often.shape or np.shape(least) not in ((), given.shape):
        raise InputError(f"values, least and counts must have one axis and equal lengths; values has {given.shape}.")
    limits = np.broadcast_to(np.asarray(least, dtype=np.float64), given.shape)
    if not (np.isfinite(given).all() and np.isfinite(limits).all() and (given >= limits).all() and (often >= 0).all()):
        raise InputError("values must be finite and at least `least` (0), and counts at least 0.")
    pairs, at = np.unique(np.stack([given, limits]), axis=1, return_inverse=True)
    return pairs[0], pairs[1], np.bincount(at.ravel(), often, pairs.shape[1]).astype(np.float64)


def _last_excluded(excluded: Callable[[float], bool], low: float, kept: float) -> float:
    """The end of an excluded stretch from `low` to below `kept`, by bisection; rounded to the excluded side."""
    for _ in range(_HALVINGS):
        middle = (low + kept) / 2
        if excluded(middle):
            low = middle
        else:
            kept = middle
    return low
