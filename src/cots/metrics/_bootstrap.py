"""How far a figure would move on another set of the same size: percentile bootstrap over the samples."""

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from .._checks import whole_number
from .._errors import InputError
from ._inputs import Floats, same_samples
from ._metric import Score

_ENTRIES = 1 << 22  # of the table of draws held at once, some 32 MB


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
    function of this module or any callable that returns a number. Every array, by position or by name, is resampled
    along its first axis, all with the same draw; what is not an array is passed on unchanged (`bins=15`). Bind an
    array that must not be resampled with functools.partial. A metric with a `weights` parameter is called with the
    draws as weights, one row per resample, instead of once per resample.

    The draws depend on `seed` and S alone, so two methods on the same samples see the same resamples. For a paired
    comparison, bootstrap the difference. A resample contains some samples several times, which raises every calibration
    error; `centre=True` moves the interval so that the mean of the resamples is the value.

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
    sampled, fixed = _split(arrays, settings)
    n = same_samples(**sampled)
    if n == 0:
        raise InputError("bootstrap needs at least one sample; the arrays are empty.")

    def evaluate(values: dict[str, Any], **more: Any) -> Any:
        by_name = {key: value for key, value in values.items() if key in settings}
        by_position = [value for key, value in values.items() if key not in settings]
        return metric(*by_position, **by_name, **fixed, **more)

    whole = evaluate(sampled)
    if _takes_weights(metric) and "weights" not in settings:
        rows = (evaluate(sampled, weights=weights) for weights in draw_weights(n, seed, resamples))
        figures = np.concatenate([getattr(row, "value", row) for row in rows])
    else:
        rng = np.random.default_rng(seed)
        draws = (rng.integers(0, n, n) for _ in range(resamples))
        figures = np.array([float(evaluate({k: v[draw] for k, v in sampled.items()})) for draw in draws])

    name = whole.name if isinstance(whole, Score) else getattr(metric, "__name__", "metric").strip("<>")
    value = float(whole)
    if not np.isfinite([value, *figures]).all():
        raise InputError(f"{name} is not finite on every draw of samples; pass a metric that is.")
    low, high = quantiles(figures, level, value if centre else None)
    how = {"standard_error": float(figures.std(ddof=1)), "level": level, "resamples": resamples}
    return Interval(name=name, value=value, n=n, low=low, high=high, **how)


def check_resampling(resamples: int, level: float) -> None:
    """Refuse fewer than two resamples and a level outside (0, 1)."""
    whole_number("resamples", resamples, 2)
    if not 0.0 < level < 1.0:
        raise InputError(f"level must be a fraction between 0 and 1 such as 0.95, not {level!r}.")


def draw_weights(n: int, seed: int, resamples: int) -> Iterator[Floats]:
    """How often each of n samples is drawn in each resample: stacks of rows (B,n), B in all being `resamples`."""
    if n * resamples <= _ENTRIES:
        yield _drawn_before(n, seed, resamples)
        return
    rng = np.random.default_rng(seed)
    step = max(1, _ENTRIES // n)
    for start in range(0, resamples, step):
        yield _draw(rng, n, min(step, resamples - start))


@functools.lru_cache(maxsize=1)
def _drawn_before(n: int, seed: int, resamples: int) -> Floats:
    """Kept for the next method on the same samples."""
    weights = _draw(np.random.default_rng(seed), n, resamples)
    weights.setflags(write=False)
    return weights


def _draw(rng: np.random.Generator, n: int, rows: int) -> Floats:
    return np.stack([np.bincount(rng.integers(0, n, n), minlength=n) for _ in range(rows)]).astype(np.float64)


def quantiles(figures: Floats, level: float, centre: float | None = None) -> tuple[float, float]:
    """The ends of an interval of the resampled `figures`, moved so that their mean is `centre` where that is given."""
    low, high = np.nanquantile(figures, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    shift = 0.0 if centre is None else centre - np.nanmean(figures)
    return float(low + shift), float(high + shift)


def _takes_weights(metric: Callable[..., Any]) -> bool:
    try:
        return "weights" in inspect.signature(metric).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False


def _split(arrays: tuple[Any, ...], settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays to resample, in order, named for messages; and the settings passed on unchanged."""
    sampled: dict[str, Any] = {}
    for i, value in enumerate(arrays, start=1):
        # A space keeps the name apart from every keyword.
        sampled[f"array {i}"] = array = _as_array(value)
        if array is None:
            raise InputError(f"array {i} is {value!r}, which has no samples to draw from; pass settings by name.")
    named = {name: array for name, value in settings.items() if (array := _as_array(value)) is not None}
    if not sampled | named:
        raise InputError("bootstrap needs at least one array after the metric: bootstrap(ece, confidence, correct).")
    return sampled | named, {name: value for name, value in settings.items() if name not in named}


def _as_array(value: Any) -> np.ndarray | Tensor | None:
    """`value` as an array with a first axis, or None."""
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
