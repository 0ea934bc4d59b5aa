"""Intervals: percentile bootstrap of any metric, and exact binomial bounds of a share (Clopper and Pearson 1934)."""

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from .._errors import InputError, whole_number
from ._metric import METRICS, Score
from .inputs import Floats, same_samples

_ENTRIES = 1 << 22  # of the table of draws held at once, about 32 MB
_HALVINGS = 40  # of the interval that contains a binomial bound
_TERMS = 10_000  # of the continued fraction; it needs about the square root of the number of samples
_CLOSE = 1e-13


@dataclass(frozen=True, kw_only=True, repr=False)
class Interval(Score):
    """A bootstrap interval [low, high] around `value`, the metric on the set itself."""

    low: float
    high: float
    standard_error: float
    level: float
    resamples: int

    def __repr__(self) -> str:
        return (
            f"Interval({self.name}={self.value:.4f}, {100 * self.level:g}% [{self.low:.4f}, {self.high:.4f}], "
            f"standard_error={self.standard_error:.4f}, resamples={self.resamples}, n={self.n})"
        )


def bootstrap(
    metric: Callable[..., Any],
    *arrays: Any,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    centre: bool = False,
    **settings: Any,
) -> Interval:
    """Percentile bootstrap interval of a metric over the samples it is computed from.

        low, high = quantiles (1 - level)/2 and (1 + level)/2 of metric(x*_1), ..., metric(x*_B)

    with x*_b the b-th of B = `resamples` sets of S samples drawn with replacement from the S given. `metric` is a
    function of this module or any callable that returns a number. All arrays, positional or named, are resampled along
    their first axis with the same draw; other arguments are passed on unchanged (`bins=15`). Use functools.partial for
    an array that must not be resampled. A metric with a `weights` parameter is called with the draws as weights, one
    row per resample, instead of once per resample.

    The draws depend only on `seed` and S, so two methods on the same samples see the same resamples. For a paired
    comparison, bootstrap the difference. Repeated samples in a resample raise every calibration error; `centre=True`
    shifts the interval so that the mean of the resamples equals the value, within the values that the metric can have.

    >>> from cots.metrics import accuracy
    >>> confidence = [0.9, 0.8, 0.7, 0.6] * 25
    >>> correct = [True, True, True, False] * 25
    >>> bootstrap(accuracy, correct)
    Interval(accuracy=0.7500, 95% [0.6600, 0.8300], standard_error=0.0439, resamples=1000, n=100)
    >>> bootstrap(lambda c, a: a[c > 0.65].mean(), confidence, correct, resamples=50).value
    1.0
    """
    check_resampling(resamples, level)
    whole_number("seed", seed)
    positional, named, n = _resampled_arrays(arrays, settings)

    def evaluate(take: Any = slice(None), **weights: Any) -> Any:
        of_name = {name: array[take] for name, array in named.items()}
        return metric(*(array[take] for array in positional), **settings | of_name | weights)

    whole = evaluate()
    if _takes_weights(metric) and "weights" not in settings:
        rows = (evaluate(weights=weights) for weights in draw_weights(n, seed, resamples))
        figures = np.concatenate([getattr(row, "value", row) for row in rows])
    else:
        rng = np.random.default_rng(seed)
        figures = np.array([float(evaluate(rng.integers(0, n, n))) for _ in range(resamples)])

    name = whole.name if isinstance(whole, Score) else getattr(metric, "__name__", "metric").strip("<>")
    value = float(whole)
    if not np.isfinite([value, *figures]).all():
        raise InputError(f"{name} is not finite on every resample; pass a metric that is.")
    low, high = quantiles(figures, level, value if centre else None)
    if isinstance(whole, Score) and name in METRICS.registered():
        low, high = METRICS.info(name).clip((low, high))
    how = {"standard_error": float(figures.std(ddof=1)), "level": level, "resamples": resamples}
    return Interval(name=name, value=value, n=n, low=low, high=high, **how)


def _resampled_arrays(given: Sequence[Any], settings: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any], int]:
    """The positional arrays, the named ones and their number of samples."""
    positional, named = {}, {}
    for i, value in enumerate(given, start=1):
        positional[f"array {i}"] = array = _as_array(value)  # no keyword contains a space, so the names cannot collide
        if array is None:
            raise InputError(f"array {i} is {value!r}, which has no samples to resample; pass settings by name.")
    for name, value in settings.items():
        array = _as_array(value)
        if array is not None:
            named[name] = array
    if not positional and not named:
        raise InputError("bootstrap needs at least one array after the metric: bootstrap(ece, confidence, correct).")
    n = same_samples(**positional, **named)
    if n == 0:
        raise InputError("bootstrap needs at least one sample; the arrays are empty.")
    return list(positional.values()), named, n


def check_resampling(resamples: int, level: float) -> None:
    """Refuse fewer than two resamples and a level outside (0, 1)."""
    whole_number("resamples", resamples, 2)
    if not 0.0 < level < 1.0:
        raise InputError(f"level must be a fraction between 0 and 1 such as 0.95, not {level!r}.")


def draw_weights(n: int, seed: int, resamples: int) -> Iterator[Floats]:
    """How often each of n samples is drawn in each resample: stacks of rows (B,n), `resamples` rows in total."""
    return iter(_kept_draws(n, seed, resamples)) if n * resamples <= _ENTRIES else _draw(n, seed, resamples)


@functools.lru_cache(maxsize=1)
def _kept_draws(n: int, seed: int, resamples: int) -> tuple[Floats, ...]:
    """Kept for the next method on the same samples."""
    return tuple(_draw(n, seed, resamples))


def _draw(n: int, seed: int, resamples: int) -> Iterator[Floats]:
    rng = np.random.default_rng(seed)
    step = max(1, _ENTRIES // n)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = rng.integers(0, n, (rows, n)) + n * np.arange(rows)[:, None]
        weights = np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)
        weights.setflags(write=False)
        yield weights


def quantiles(figures: Floats, level: float, centre: float | None = None) -> tuple[float, float]:
    """The ends of the interval of the resampled `figures`, shifted so that their mean is `centre`, if given."""
    low, high = np.nanquantile(figures, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    shift = 0.0 if centre is None else centre - np.nanmean(figures)
    return float(low + shift), float(high + shift)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction: with these, the chance of any false claim is at most the level.

    >>> [round(value, 3) for value in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    corrected, least = [0.0] * len(p), 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        least = max(least, min(1.0, (len(p) - rank) * p[index]))
        corrected[index] = least
    return corrected


def p_value(change: float, draws: np.ndarray) -> float:
    """Two-sided, of no difference, from resampled differences."""
    known = draws[np.isfinite(draws)]
    error = float(known.std(ddof=1)) if len(known) > 1 else math.inf
    if error == 0:
        return float(change == 0)
    return math.erfc(abs(change) / error / math.sqrt(2))


def _takes_weights(metric: Callable[..., Any]) -> bool:
    try:
        return "weights" in inspect.signature(metric).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False


def _as_array(value: Any) -> Any:
    """`value` as an array with at least one axis, or None."""
    if isinstance(value, Tensor):
        array = value.detach()
    elif isinstance(value, (list, tuple)) or hasattr(value, "__array__"):
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise InputError(f"bootstrap needs arrays with rows of equal length: {error}.") from None
    else:
        return None
    return array if array.ndim else None


def binomial_interval(count: Any, n: Any, level: float = 0.95) -> tuple[Any, Any]:
    """The exact interval of a share, from `count` successes in `n` samples; numbers or arrays.

        low = inf {p : P(X >= count) > (1 - level)/2},   high = sup {p : P(X <= count) > (1 - level)/2},   X ~ Bin(n, p)

    It contains the true share with probability `level` or more.

    >>> low, high = binomial_interval(3, 100)
    >>> round(low, 4), round(high, 4)
    (0.0062, 0.0852)
    """
    delta = (1.0 - level) / 2
    low, high = 1.0 - upper_bound(np.asarray(n) - count, n, delta), upper_bound(count, n, delta)
    return low, high


def upper_bound(count: Any, n: Any, delta: float) -> Any:
    """The largest share p with P(X <= count) >= delta, X ~ Bin(n, p); 1 if `n` is 0.

    The true share exceeds it with probability `delta` at most.
    """
    if not 0.0 < delta < 1.0:
        raise InputError(f"a confidence level must lie between 0 and 1; the error probability is {delta!r}.")
    if np.any(np.asarray(count) < 0) or np.any(np.asarray(count) > n):
        raise InputError("count must lie between 0 and n.")
    bounds = np.vectorize(_upper_bound, otypes=[np.float64])(count, n, delta)
    return float(bounds) if bounds.ndim == 0 else bounds


def _upper_bound(count: float, n: float, delta: float) -> float:
    if count == n:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if 1.0 - beta_cdf(middle, count + 1.0, n - count) > delta:  # P(X <= count) at p = middle
            low = middle
        else:
            high = middle
    return high


def beta_cdf(x: float, a: float, b: float) -> float:
    """The CDF of Beta(a, b) at 0 < x < 1: the regularised incomplete beta function I_x(a, b).

    Computed from its continued fraction (Abramowitz & Stegun 26.5.8) by Lentz's method.
    """
    if x > (a + 1.0) / (a + b + 2.0):  # the mirrored fraction converges fast there
        return 1.0 - beta_cdf(1.0 - x, b, a)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) - log_beta) / a
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, _TERMS):
        before = value
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            c, d = 1.0 + term / c, 1.0 / (1.0 + term * d)
            value *= c * d
        if abs(value / before - 1.0) < _CLOSE:
            break
    return front * value
