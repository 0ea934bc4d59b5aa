"""What all metrics share: their description and registry, and the result."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from .._registry import Info, Registry

INPUTS = ("confidence", "correct", "probabilities", "labels")


@dataclass(frozen=True, kw_only=True)
class Metric(Info):
    """A registered metric: its name, format and direction.

    better: +1 (higher), -1 (lower) or 0 (nearest to zero). scale: from the value to the printed unit (100 for %).
    digits, interval_digits: decimals of a figure and of its interval. bins: the kind of bins of a binned metric.
    """

    short: str = ""
    better: int = -1
    scale: float = 100.0
    digits: int = 2
    interval_digits: int = 1
    bins: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "short", self.short or self.name)

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """All parameters of the function."""
        return tuple(inspect.signature(self.function).parameters)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns of a run that the metric uses."""
        return tuple(name for name in self.arguments if name in INPUTS)

    @property
    def resampled(self) -> bool:
        """Whether the metric takes weights, which bootstrap intervals require."""
        return "weights" in self.arguments

    @property
    def explained(self) -> str:
        """The first line of the function's docstring, without the name."""
        return (self.summary.partition(": ")[2] or self.summary).rstrip(".")

    @property
    def unit(self) -> str:
        return "%" if self.scale == 100.0 else "nats"

    @property
    def direction(self) -> str:
        return {1: "higher is better", -1: "lower is better", 0: "nearest to 0 is best"}[self.better]

    def __call__(self, columns: dict[str, Any], bins: int = 20, weights: Any = None) -> Any:
        """Evaluate the metric on `columns`, a mapping that contains its `inputs`."""
        given = {name: columns[name] for name in self.inputs}
        given |= {name: bins for name in ("bins", "ranges") if name in self.arguments}
        return self.function(**given) if weights is None else self.function(**given, weights=weights)

    def show(self, value: float | None, *, interval: bool = False, signed: bool = False) -> str:
        """`value` in the metric's unit, or a dash for a missing one."""
        if value is None or math.isnan(value):
            return "–"
        sign = "+" if signed or self.better == 0 else ""
        text = f"{self.scale * value:{sign}.{self.interval_digits if interval else self.digits}f}"
        return text.replace("-", "\N{MINUS SIGN}") if float(text) else text.lstrip("+-")

    def clip(self, ends: tuple[float, float]) -> tuple[float, float]:
        """An interval clipped to the metric's range: errors are at least 0, shares at most 1."""
        least, most = -math.inf if self.better == 0 else 0.0, 1.0 if self.better == 1 else math.inf
        return max(least, ends[0]), min(most, ends[1])

    def goodness(self, value: float) -> float:
        """A number that is larger if `value` is better."""
        return self.better * value if self.better else -abs(value)


METRICS = Registry("metric", "cots.metrics", Metric)


def metric(name: str, **described: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a metric: `function(columns..., [bins], [weights]) -> Score or number`, described by fields of `Metric`.

    Its parameters name its inputs: any of confidence, correct, probabilities and labels. A `bins` parameter gets the
    report's number of bins. With a `weights` parameter it gets bootstrap intervals: it is then called with an array
    (B,S), one row per resample, and returns B values; a metric of probabilities must return a MeanScore.

    >>> from cots.metrics import accuracy
    >>> @metric("error", title="Error rate", short="error")
    ... def error(correct, *, weights=None):
    ...     "Error rate: the share of wrong answers."
    ...     return 1 - accuracy(correct, weights=weights).value
    >>> METRICS.info("error").show(error([True, False]))
    '50.00'
    >>> METRICS.unregister("error")
    """
    return METRICS.register(name, **described)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Score:
    """The result of a metric: `float(score)` is the fraction, `n` the number of samples.

    For a stack of weights, `value` is an array with one figure per row.

    >>> score = Score(name="ece", value=0.05, n=100)
    >>> score, float(score), f"{score:.1%}"
    (Score(ece=0.0500, n=100), 0.05, '5.0%')
    """

    name: str
    value: Any
    n: int

    def __post_init__(self) -> None:
        if np.ndim(self.value) == 0:
            object.__setattr__(self, "value", float(self.value))
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def __float__(self) -> float:
        return float(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec) if spec else repr(self)

    def __repr__(self) -> str:
        value = f"{self.value:.4f}" if np.ndim(self.value) == 0 else f"array of {len(self.value)}"
        return f"{type(self).__name__}({self.name}={value}, n={self.n}{self._detail()})"

    def _detail(self) -> str:
        return ""
