"""How far a figure would move on another set of the same size: percentile bootstrap over the samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._errors import InputError
from ._inputs import whole_number
from ._result import Interval, Score
from ._scores import SAMPLE_MEANS


def bootstrap(
    metric: Callable[..., Any],
    *arrays: Any,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    **settings: Any,
) -> Interval:
    """Percentile bootstrap interval of a metric over the samples it is computed from.

        low, high = quantiles (1 - level)/2 and (1 + level)/2 of metric(x*_1), ..., metric(x*_B)

    with x*_b the b-th of B = `resamples` sets of S samples drawn with replacement from the S given. `metric` is a
    function of this module or any callable that returns a number. Every array, by position or by name, is resampled
    along its first axis, all with the same draw; what is not an array is passed on unchanged (`bins=15`). Bind an
    array that is not to be resampled with functools.partial.

    The draws depend on `seed` and S alone, so two methods on the same samples see the same resamples. For a paired
    comparison, bootstrap the difference. Calibration errors are biased upwards on finite sets, resamples more
    so than the set itself; close to zero the interval may lie above the value.

    >>> from cots.metrics import accuracy
    >>> confidence = [0.9, 0.8, 0.7, 0.6] * 25
    >>> correct = [True, True, True, False] * 25
    >>> bootstrap(accuracy, correct)
    Interval(accuracy=0.7500, 95% [0.6600, 0.8300], standard_error=0.0439, resamples=1000, n=100)
    >>> bootstrap(lambda c, a: a[c > 0.65].mean(), confidence, correct, resamples=50).value
    1.0
    """
    resamples = whole_number(resamples, "resamples", 2)
    seed = whole_number(seed, "seed", 0)
    if not 0.0 < level < 1.0:
        raise InputError(f"level must be a fraction between 0 and 1 such as 0.95, not {level!r}.")

    sampled, fixed = _split(arrays, settings)
    n = _common_length(sampled)

    def evaluate(values: dict[str, Any]) -> Any:
        by_name = {key: value for key, value in values.items() if key in settings}
        by_position = [value for key, value in values.items() if key not in settings]
        return metric(*by_position, **by_name, **fixed)

    whole = evaluate(sampled)
    per_sample = whole.per_sample if any(metric is mean for mean in SAMPLE_MEANS) else None
    rng = np.random.default_rng(seed)
    figures = np.empty(resamples)
    for b in range(resamples):
        index = rng.integers(0, n, n)
        if per_sample is not None:
            figures[b] = per_sample[index].mean()
        else:
            figures[b] = float(evaluate({key: _take(value, index) for key, value in sampled.items()}))

    name = whole.name if isinstance(whole, Score) else getattr(metric, "__name__", "metric").strip("<>")
    _check_figures(name, float(whole), figures)
    low, high = np.quantile(figures, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return Interval(
        name=name,
        value=float(whole),
        low=float(low),
        high=float(high),
        standard_error=float(figures.std(ddof=1)),
        level=float(level),
        resamples=resamples,
        n=n,
    )


def centred(figures: np.ndarray, value: float, level: float) -> tuple[float, float]:
    """The quantiles of the resampled `figures`, moved so that their mean is `value`.

    Resamples hold the same image several times, which raises every calibration error. That shift says nothing about
    how far the figure would move on another set of the same size, and on averages it can exceed the spread.

    >>> centred(np.array([1.0, 2.0, 3.0]), 1.5, 0.5)
    (1.0, 2.0)
    """
    low, high = np.nanquantile(figures, [(1.0 - level) / 2.0, (1.0 + level) / 2.0]) + (value - np.nanmean(figures))
    return float(low), float(high)


def _split(arrays: tuple[Any, ...], settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is resampled, in order, under a name for messages; and what is passed on as it is."""
    sampled: dict[str, Any] = {}
    for i, value in enumerate(arrays, start=1):
        # A space keeps the name apart from every keyword.
        sampled[f"array {i}"] = array = _as_array(value)
        if array is None:
            raise InputError(f"array {i} is {value!r}, which has no samples to draw from; give settings by name.")
    named = {name: array for name, value in settings.items() if (array := _as_array(value)) is not None}
    return sampled | named, {name: value for name, value in settings.items() if name not in named}


def _as_array(value: Any) -> np.ndarray | Tensor | None:
    """`value` with a first axis to draw from, or None where it has none."""
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


def _common_length(sampled: dict[str, Any]) -> int:
    if not sampled:
        raise InputError("bootstrap needs at least one array after the metric: bootstrap(ece, confidence, correct).")
    lengths = {name: len(array) for name, array in sampled.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise InputError(
            f"All arrays must have one row a sample, but {told}. "
            "Bind what is not to be resampled with functools.partial."
        )
    n = next(iter(lengths.values()))
    if n == 0:
        raise InputError(f"{' and '.join(lengths)} must not be empty; give at least one sample.")
    return n


def _take(array: np.ndarray | Tensor, index: np.ndarray) -> np.ndarray | Tensor:
    if isinstance(array, Tensor):
        return array[torch.from_numpy(index).to(array.device)]
    return array[index]


def _check_figures(name: str, value: float, figures: np.ndarray) -> None:
    bad = int((~np.isfinite(figures)).sum())
    if bad or not np.isfinite(value):
        where = f"{bad} of {len(figures)} resamples" if bad else "the set itself"
        raise InputError(f"{name} is not finite on {where}; give a metric that is a number for every draw of samples.")
