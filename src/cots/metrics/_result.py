"""What the metrics return: small frozen objects that are a number first and keep what the number was made of."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from .._errors import InputError
from ._inputs import Floats


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Score:
    """A figure for a set: `float(score)` and `score.value` are the fraction, `n` the number of samples.

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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MeanScore(Score):
    """A score that is the mean of `per_sample`, one value per sample in the order given.

    `clipped` counts the samples whose label had probability zero (NLL only).
    """

    per_sample: Floats
    clipped: int = 0

    def _detail(self) -> str:
        return f", clipped={self.clipped}" if self.clipped else ""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class BinnedScore(Score):
    """A calibration error and its bins.

    Bin m is (edges[m], edges[m+1]]. `counts` (sums of weights where there are any), `mean_confidence` and `accuracy`
    have one value per bin (one row per class for the class-wise scores); the last two are NaN in empty bins.
    """

    edges: Floats
    counts: np.ndarray
    mean_confidence: Floats
    accuracy: Floats

    @property
    def gap(self) -> Floats:
        """Mean confidence minus accuracy of each bin: positive where the bin is over-confident, NaN where empty."""
        return self.mean_confidence - self.accuracy

    def _detail(self) -> str:
        return f", bins={self.counts.shape[-1]}"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ClassScore(BinnedScore):
    """The mean of `per_class`, one calibration error per class; the bin-level arrays have one row per class."""

    per_class: Floats

    def _detail(self) -> str:
        return f", classes={len(self.per_class)}{super()._detail()}"


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """Accept a sample when its confidence is at least `threshold`: the share accepted, and the share of those wrong.

    When nothing is accepted, `threshold` is infinite, `coverage` 0 and `risk` NaN.
    """

    threshold: float
    coverage: float
    risk: float
    accepted: int


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RiskCoverage(Score):
    """The risk-coverage curve, one point for each distinct confidence from the highest down; its value is the area.

    At point j the samples with confidence >= thresholds[j] are accepted: the share coverage[j] of all, of which the
    share risk[j] is wrong.
    """

    thresholds: Floats
    coverage: Floats
    risk: Floats

    @property
    def aurc(self) -> float:
        """The area under the curve."""
        return self.value

    def threshold_for_risk(self, risk: float) -> OperatingPoint:
        """The lowest confidence threshold at which at most the share `risk` of the accepted samples is wrong.

        The answer describes this set. For new samples, look the threshold up on one set, check it on another, and
        leave room for the sampling error of small sets.

        >>> from cots.metrics import risk_coverage
        >>> curve = risk_coverage([0.9, 0.8, 0.7, 0.6], [True, True, True, False])
        >>> curve.threshold_for_risk(0.05)
        OperatingPoint(threshold=0.7, coverage=0.75, risk=0.0, accepted=3)
        """
        if not 0.0 <= risk <= 1.0:
            raise InputError(f"risk must be a fraction in [0, 1] such as 0.05 for 5% errors, not {risk!r}.")
        # The curve can rise and fall: take the last point that qualifies.
        (good,) = np.nonzero(self.risk <= risk)
        if not len(good):
            return OperatingPoint(threshold=float("inf"), coverage=0.0, risk=float("nan"), accepted=0)
        threshold, coverage, wrong = (float(a[good[-1]]) for a in (self.thresholds, self.coverage, self.risk))
        return OperatingPoint(threshold=threshold, coverage=coverage, risk=wrong, accepted=round(coverage * self.n))

    def _detail(self) -> str:
        return f", points={len(self.thresholds)}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Interval:
    """A bootstrap interval [low, high] around `value`, the metric on the set itself; `float(interval)` is `value`."""

    name: str
    value: float
    low: float
    high: float
    standard_error: float
    level: float
    resamples: int
    n: int

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return (
            f"Interval({self.name}={self.value:.4f}, {100 * self.level:g}% [{self.low:.4f}, {self.high:.4f}], "
            f"standard_error={self.standard_error:.4f}, resamples={self.resamples}, n={self.n})"
        )
