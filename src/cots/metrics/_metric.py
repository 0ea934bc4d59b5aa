"""What all metrics share: their description and registry, and the result."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from .._errors import CotsError, InputError
from .._registry import Info, Registry

Better = Literal["higher", "lower", "zero"]
DIRECTIONS = {"higher": "higher is better", "lower": "lower is better", "zero": "nearest to 0 is best"}
SHARE = (0.0, 1.0)  # bounds of a share
INPUTS = ("confidence", "correct", "probabilities", "labels")


@dataclass(frozen=True, kw_only=True)
class Metric(Info):
    """A registered metric: its name, format and direction.

    better: "higher", "lower" or "zero" (nearest to zero), which ranks tables; required. scale: from the value to the
    printed unit (100 for %). digits, interval_digits: decimals of a figure and of its interval. bins: the kind of bins
    of a binned metric. bounds: its least and largest possible value. inflated: repeated samples raise it, as they raise
    every binned metric, so its intervals are centred on the value.
    """

    short: str = ""
    better: Better | None = None
    scale: float = 100.0
    digits: int = 2
    interval_digits: int = 1
    bins: str = ""
    bounds: tuple[float, float] = (-math.inf, math.inf)
    inflated: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "short", self.short or self.name)
        if self.better not in DIRECTIONS:
            given = "" if self.better is None else f", not {self.better!r}"
            raise InputError(f'Metric {self.name!r} needs better="higher", "lower" or "zero" (nearest to zero){given}.')
        allowed = {*INPUTS, "bins", "ranges", "weights"}
        unknown = []
        for parameter in inspect.signature(self.function).parameters.values():
            if parameter.name not in allowed and parameter.default is parameter.empty:
                unknown.append(parameter.name)
        if unknown or not self.inputs:
            raise InputError(
                f"Metric {self.name!r} has the parameters {', '.join(self.arguments) or '(none)'}. Name its inputs "
                f"{', '.join(INPUTS)}; others need a default."
            )

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
        return DIRECTIONS[self.better or ""]

    def __call__(self, columns: Mapping[str, Any], bins: int = 20, weights: Any = None) -> Any:
        """Evaluate the metric on `columns`, a mapping that contains its `inputs`."""
        given = {name: columns[name] for name in self.inputs}
        given |= {name: bins for name in ("bins", "ranges") if name in self.arguments}
        return self.function(**given) if weights is None else self.function(**given, weights=weights)

    def measure(self, columns: Mapping[str, Any], bins: int = 20) -> "Measured":
        """The metric's value, and the values per sample that it is the mean of, if it has them."""
        result, n = self(columns, bins), len(columns[self.inputs[0]])
        per_sample, clipped = getattr(result, "per_sample", None), getattr(result, "clipped", 0)
        value = np.asarray(getattr(result, "value", result))
        if value.shape == (n,) and not isinstance(result, Score):
            per_sample = value.astype(np.float64)
        elif value.shape != () or value.dtype.kind not in "biuf":
            raise InputError(
                f"Metric {self.name!r} returned {_described(result)} for {n} samples; return a number, an array with "
                "one value per sample, or a score of cots.metrics."
            )
        return Measured(float(value.mean()), per_sample, clipped)

    def measure_resamples(self, columns: Mapping[str, Any], bins: int, weights_BS: np.ndarray) -> np.ndarray:
        """One value per row of weights."""
        remedy = "one value per row, or omit `weights` and return one value per sample, which has intervals too."
        try:
            result = self(columns, bins, weights_BS)
        except CotsError:
            raise
        except Exception as error:  # a plug-in can raise anything
            raise InputError(
                f"Metric {self.name!r} fails for weights of shape {weights_BS.shape}: {type(error).__name__}: {error}. "
                f"Return {remedy}"
            ) from error
        values = np.asarray(getattr(result, "value", result))
        if values.shape != (len(weights_BS),):
            raise InputError(
                f"Metric {self.name!r} returned {_described(result)} for weights of shape {weights_BS.shape}; return "
                f"{remedy}"
            )
        return values

    def show(self, value: float | None, *, interval: bool = False, signed: bool = False) -> str:
        """`value` in the metric's unit, or a dash for a missing one."""
        if value is None or math.isnan(value):
            return "–"
        sign = "+" if signed or self.better == "zero" else ""
        text = f"{self.scale * value:{sign}.{self.interval_digits if interval else self.digits}f}"
        return text.replace("-", "\N{MINUS SIGN}") if float(text) else text.lstrip("+-")

    def clip(self, ends: tuple[float, float]) -> tuple[float, float]:
        """An interval clipped to the values that the metric can have."""
        least, most = self.bounds
        return max(least, ends[0]), min(most, ends[1])

    def clip_change(self, ends: tuple[float, float]) -> tuple[float, float]:
        """An interval of a difference of two values, clipped to the differences that the metric can have."""
        most = self.bounds[1] - self.bounds[0]
        return max(-most, ends[0]), min(most, ends[1])

    def goodness(self, value: float) -> float:
        """A number that is larger if `value` is better."""
        if self.better == "higher":
            return value
        return -value if self.better == "lower" else -abs(value)


class Measured(NamedTuple):
    """A metric's value; per_sample: the values that it is the mean of, or None; clipped: see `MeanScore`."""

    value: float
    per_sample: np.ndarray | None
    clipped: int


def _described(result: Any) -> str:
    array = np.asarray(getattr(result, "value", result))
    return f"{type(result).__name__} of shape {array.shape}" if array.shape else repr(result)


METRICS = Registry("metric", "cots.metrics", Metric)


def metric(
    name: str, *, better: Better | None = None, **described: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a metric: a function of columns, described by fields of `Metric`.

    better: "higher", "lower" or "zero" (nearest to zero); required. Parameters of the function name its inputs: any of
    confidence, correct, probabilities and labels. A `bins` parameter gets the report's number of bins. It returns:

    - an array with one value per sample: the metric is their mean, and has bootstrap intervals;
    - a number, which has intervals if the function takes confidence or correct, and `weights`: it is then called with
      an array (B,S), one row per resample, and returns B values;
    - a score of this package, such as that of `ece`.

    >>> @metric("error", title="Error rate", short="error", better="lower")
    ... def error(correct):
    ...     "Error rate: the share of wrong answers."
    ...     return 1 - correct
    >>> METRICS.info("error").measure({"correct": np.array([True, False])}).value
    0.5
    >>> METRICS.unregister("error")
    """
    return METRICS.register(name, better=better, **described)


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
