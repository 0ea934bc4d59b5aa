"""Exact bounds of a share that was counted: Clopper and Pearson, Biometrika 1934."""

import math
from typing import Any

import numpy as np

from .._errors import InputError
from ._inputs import Floats

_HALVINGS = 40
_TERMS = 10_000  # of the continued fraction; it needs about the square root of the number of samples
_CLOSE = 1e-13
_TINY = float(np.finfo(np.float64).tiny)
_log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])


def binomial_interval(count: Any, n: Any, level: float = 0.95) -> tuple[Any, Any]:
    """The exact interval of a share of which `count` out of `n` were seen; numbers or arrays.

        low = inf {p : P(X >= count) > (1 - level)/2},   high = sup {p : P(X <= count) > (1 - level)/2},   X ~ Bin(n, p)

    It covers the true share with probability `level` or more, whatever that share is.

    >>> low, high = binomial_interval(3, 100)
    >>> round(low, 4), round(high, 4)
    (0.0062, 0.0852)
    """
    low = 1.0 - upper_bound(np.asarray(n) - count, n, (1.0 - level) / 2)
    high = upper_bound(count, n, (1.0 - level) / 2)
    return (float(low), float(high)) if np.ndim(low) == 0 else (low, high)


def upper_bound(count: Any, n: Any, delta: float) -> Any:
    """The largest share p for which seeing `count` or fewer out of `n` still has probability `delta`.

    The true share is above it with probability `delta` at most. With `n` = 0 it is 1.
    """
    if not 0.0 < delta < 1.0:
        raise InputError(f"a confidence level must lie between 0 and 1; the error probability is {delta!r}.")
    seen, total = np.broadcast_arrays(np.asarray(count, dtype=np.float64), np.asarray(n, dtype=np.float64))
    if (seen < 0).any() or (seen > total).any():
        raise InputError("count must lie between 0 and n.")
    a, b = seen + 1.0, np.maximum(total - seen, 1.0)
    low, high = np.zeros(a.shape), np.ones(a.shape)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        more = 1.0 - beta_cdf(middle, a, b) > delta  # P(X <= count) at p = middle
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    found = np.where(seen == total, 1.0, high)
    return float(found) if found.ndim == 0 else found


def beta_cdf(x: Floats, a: Floats, b: Floats) -> Floats:
    """The distribution function of Beta(a, b), 0 < x < 1: the regularised incomplete beta function I_x(a, b)."""
    swap = x > (a + 1.0) / (a + b + 2.0)  # where the fraction converges slowly, its mirror image does not
    x, a, b = np.where(swap, 1.0 - x, x), np.where(swap, b, a), np.where(swap, a, b)
    front = np.exp(_log_gamma(a + b) - _log_gamma(a) - _log_gamma(b) + a * np.log(x) + b * np.log1p(-x)) / a
    found = front * _fraction(x, a, b)
    return np.where(swap, 1.0 - found, found)


def _fraction(x: Any, a: Any, b: Any) -> Any:
    """The continued fraction of the incomplete beta function (Abramowitz & Stegun 26.5.8), by Lentz's method."""
    not_zero, small = _not_zero, np.all
    if x.ndim == 0:  # Python's floats: the same numbers in a tenth of the time
        x, a, b, not_zero, small = float(x), float(a), float(b), lambda value: value or _TINY, bool
    c, d = 1.0, 1.0 / not_zero(1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, _TERMS):
        step = 1.0
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d, c = 1.0 + term * d, 1.0 + term / c
            d, c = 1.0 / not_zero(d), not_zero(c)
            step = step * d * c
            value = value * d * c
        if small(abs(step - 1.0) < _CLOSE):
            break
    return value


def _not_zero(values: Floats) -> Floats:
    return np.where(values == 0, _TINY, values)
