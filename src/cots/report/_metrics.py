"""Which figures a report shows, in which unit, and which way is better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .. import metrics


class RecordsLike(Protocol):
    """What a report reads of one dataset, method and seed: the samples that worked, and the errors of the others."""

    @property
    def ids(self) -> Sequence[str]: ...
    @property
    def label(self) -> np.ndarray: ...
    @property
    def confidence(self) -> np.ndarray: ...
    @property
    def tau(self) -> np.ndarray: ...
    @property
    def milliseconds(self) -> np.ndarray: ...
    @property
    def probabilities(self) -> np.ndarray: ...
    @property
    def correct(self) -> np.ndarray: ...


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A figure: how it is called, shown and judged. `better` is +1 (more), -1 (less) or 0 (nearest to zero)."""

    name: str
    title: str
    short: str
    better: int = -1
    scale: float = 100.0
    digits: int = 2
    bounds: int = 1  # digits of an interval's ends: they are wider than the last digit of the figure
    resampled: bool = True
    explained: str = ""

    @property
    def unit(self) -> str:
        return "%" if self.scale == 100.0 else "nats"

    @property
    def direction(self) -> str:
        return {1: "higher is better", -1: "lower is better", 0: "nearest to 0 is best"}[self.better]

    def show(self, value: float | None, *, bound: bool = False, signed: bool = False) -> str:
        """`value` in the metric's unit; a dash for what is not there.

        >>> METRICS[0].show(0.63416), METRICS[0].show(None), METRICS[0].show(0.63416, bound=True)
        ('63.42', '–', '63.4')
        """
        if value is None or math.isnan(value):
            return "–"
        text = (
            f"{self.scale * value:{'+' if signed or self.better == 0 else ''}.{self.bounds if bound else self.digits}f}"
        )
        return text.replace("-", "\N{MINUS SIGN}") if float(text) else text.lstrip("+-")

    def clip(self, ends: tuple[float, float]) -> tuple[float, float]:
        """An interval cut where the metric ends: an error is never below 0, a share never above 1."""
        least, most = -math.inf if self.better == 0 else 0.0, 1.0 if self.better == 1 else math.inf
        return max(least, ends[0]), min(most, ends[1])

    def goodness(self, value: float) -> float:
        """A number that is larger where `value` is better."""
        return self.better * value if self.better else -abs(value)


METRICS: tuple[Metric, ...] = (
    Metric(name="accuracy", title="Accuracy", short="accuracy", better=1, explained="the share of right answers"),
    Metric(
        name="ece",
        title="Expected calibration error (ECE)",
        short="ECE",
        explained="the distance between confidence and accuracy in a bin, averaged over the samples",
    ),
    Metric(
        name="mce",
        title="Maximum calibration error (MCE)",
        short="MCE",
        explained="the distance between confidence and accuracy in the worst bin that is not empty",
    ),
    Metric(
        name="adaptive_ece",
        title="Adaptive calibration error (AECE)",
        short="AECE",
        digits=3,
        resampled=False,
        explained="one against the rest, over ranges of equal mass, averaged over ranges and classes",
    ),
    Metric(
        name="classwise_ece",
        title="Class-wise calibration error (CECE)",
        short="CECE",
        digits=3,
        resampled=False,
        explained="the ECE of one class against the rest, averaged over the classes",
    ),
    Metric(
        name="brier_top_label",
        title="Brier score, top label",
        short="Brier (top)",
        explained="the squared error of the confidence alone; the score of the paper's tables",
    ),
    Metric(
        name="brier_multiclass",
        title="Brier score, all classes",
        short="Brier (all)",
        explained="the squared distance of all probabilities from the label, between 0 and 200",
    ),
    Metric(
        name="nll",
        title="Negative log-likelihood (NLL)",
        short="NLL",
        scale=1.0,
        digits=3,
        bounds=3,
        explained="minus the log of the label's probability",
    ),
    Metric(
        name="aurc",
        title="Area under the risk-coverage curve (AURC)",
        short="AURC",
        explained="the mean share of errors among the answers kept, over all confidence thresholds",
    ),
    Metric(
        name="confidence_gap",
        title="Confidence gap",
        short="gap",
        better=0,
        explained="mean confidence minus accuracy: positive is over-confident",
    ),
)
BY_NAME = {metric.name: metric for metric in METRICS}
RESAMPLED: tuple[str, ...] = tuple(metric.name for metric in METRICS if metric.resampled)


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The figures of one dataset, method and seed, and what figures drawn from it need; no class probabilities."""

    ids: tuple[str, ...]
    confidence: np.ndarray
    correct: np.ndarray
    loss: np.ndarray
    brier: np.ndarray
    values: dict[str, float]
    failed: int
    clipped: int
    tau: float
    milliseconds: float


def score(records: RecordsLike, failed: int, bins: int = 20) -> Scored:
    """Every metric of `METRICS` on one set of records."""
    confidence, correct = np.asarray(records.confidence), np.asarray(records.correct, dtype=bool)
    probabilities, label = np.asarray(records.probabilities), np.asarray(records.label)
    loss, brier = metrics.nll(probabilities, label), metrics.brier_multiclass(probabilities, label)
    found = (
        metrics.accuracy(correct),
        metrics.ece(confidence, correct, bins=bins),
        metrics.mce(confidence, correct, bins=bins),
        metrics.adaptive_ece(probabilities, label, ranges=bins),
        metrics.classwise_ece(probabilities, label, bins=bins),
        metrics.brier_top_label(confidence, correct),
        brier,
        loss,
        metrics.risk_coverage(confidence, correct),
        metrics.confidence_gap(confidence, correct),
    )
    return Scored(
        ids=tuple(records.ids),
        confidence=confidence,
        correct=correct,
        loss=loss.per_sample,
        brier=brier.per_sample,
        values={figure.name: float(figure) for figure in found},
        failed=failed,
        clipped=loss.clipped,
        tau=_mean(records.tau),
        milliseconds=_mean(records.milliseconds),
    )


def _mean(values: np.ndarray) -> float:
    """Mean of the finite entries: a method without a temperature or a clock writes NaN."""
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    return float(known.mean()) if known.size else math.nan
