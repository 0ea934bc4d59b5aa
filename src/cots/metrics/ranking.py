"""How well a score ranks samples: the errors among the most confident predictions, and detection of positives."""

from dataclasses import dataclass

import numpy as np

from .._errors import InputError
from ._metric import SHARE, Score, metric
from .inputs import Floats, Values, numbers, outcomes, same_samples, top_label_inputs
from .intervals import binomial_interval


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """Accept samples with a confidence of at least `threshold`: coverage is the share accepted, risk the share of
    errors among them.

    interval: the exact 95% interval of the risk at this threshold. If nothing is accepted, `threshold` is infinite,
    `coverage` 0, `risk` NaN and the interval (0, 1).
    """

    threshold: float
    coverage: float
    risk: float
    accepted: int
    interval: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RiskCoverage(Score):
    """The risk-coverage curve, one point per distinct confidence from the highest down; its value is the area.

    At point j, samples with confidence >= thresholds[j] are accepted: the share coverage[j] of all samples, with the
    error rate risk[j].
    """

    thresholds: Floats
    coverage: Floats
    risk: Floats

    @property
    def aurc(self) -> float:
        """The area under the curve."""
        return self.value

    def threshold_for_risk(self, risk: float) -> OperatingPoint:
        """The lowest confidence threshold with an error rate of at most `risk` among the accepted samples.

        It is chosen on this set and describes only this set. For a bound that holds on new samples, use
        `cots.conformal.control_error`.

        >>> from cots.metrics import risk_coverage
        >>> curve = risk_coverage([0.9, 0.8, 0.7, 0.6], [True, True, True, False])
        >>> point = curve.threshold_for_risk(0.05)
        >>> point.threshold, point.coverage, point.risk, [round(end, 3) for end in point.interval]
        (0.7, 0.75, 0.0, [0.0, 0.708])
        """
        if not 0.0 <= risk <= 1.0:
            raise InputError(f"risk must be a fraction in [0, 1] such as 0.05 for 5% errors, not {risk!r}.")
        # The curve is not monotonic: take the last point that qualifies.
        (good,) = np.nonzero(self.risk <= risk)
        if not len(good):
            return OperatingPoint(threshold=float("inf"), coverage=0.0, risk=float("nan"), accepted=0)
        threshold, coverage, wrong = (float(a[good[-1]]) for a in (self.thresholds, self.coverage, self.risk))
        accepted = round(coverage * self.n)
        interval = binomial_interval(round(wrong * accepted), accepted)
        return OperatingPoint(threshold=threshold, coverage=coverage, risk=wrong, accepted=accepted, interval=interval)

    def _detail(self) -> str:
        return f", points={len(self.thresholds)}"


@metric("aurc", title="Area under the risk-coverage curve (AURC)", short="AURC", better="lower", place=90, bounds=SHARE)
def risk_coverage(confidence: Values, correct: Values, *, weights: Values | None = None) -> RiskCoverage:
    """Risk-coverage curve and its area: the share of errors among the accepted answers, over all confidence thresholds.

        coverage(t) = |A_t| / S,   risk(t) = 1/|A_t| sum_{i in A_t} (1 - a_i),   A_t = {i : c_i >= t}
        AURC = 1/S sum_i risk(c_i)

    with c_i the confidence of sample i, a_i = 1 where it is right, else 0, and S samples. Samples of equal confidence
    are accepted together: they are one point of the curve, in any order. A smaller area is better; the same
    confidence for all gives the error rate. With `weights`, counts are sums of weights.

    >>> curve = risk_coverage([0.9, 0.9, 0.6, 0.3], [True, False, True, True])
    >>> curve
    RiskCoverage(aurc=0.3958, n=4, points=3)
    >>> curve.coverage, curve.thresholds
    (array([0.5 , 0.75, 1.  ]), array([0.9, 0.6, 0.3]))
    >>> curve.threshold_for_risk(0.25).coverage
    1.0
    """
    scores, hits, rows = top_label_inputs(confidence, correct, weights)
    rows = np.ones(len(scores)) if rows is None else rows
    order = np.argsort(-scores)
    scores, rows = scores[order], rows[..., order]
    last = np.concatenate([np.flatnonzero(scores[1:] != scores[:-1]), [len(scores) - 1]])
    accepted = np.cumsum(rows, axis=-1)[..., last]
    errors = np.cumsum(rows * ~hits[order], axis=-1)[..., last]
    risk = np.divide(errors, accepted, out=np.zeros_like(errors), where=accepted > 0)
    steps = np.diff(accepted, axis=-1, prepend=0.0)
    area = steps @ risk if steps.ndim == 1 else (steps * risk).sum(axis=-1)
    with np.errstate(invalid="ignore"):
        coverage, value = accepted / accepted[..., -1:], area / accepted[..., -1]
    return RiskCoverage(name="aurc", value=value, n=len(scores), thresholds=scores[last], coverage=coverage, risk=risk)


def auroc(scores: Values, positive: Values) -> Score:
    """Area under the ROC curve: the chance that a positive sample has a higher score than a negative one.

        AUROC = P(s+ > s-) + P(s+ = s-) / 2

    >>> auroc([0.9, 0.8, 0.3, 0.1], [True, False, True, False])
    Score(auroc=0.7500, n=4)
    """
    hits, misses = _curve(scores, positive)
    # Each miss loses to the hits above it, and ties with half of those at its own score.
    area = (np.diff(misses, prepend=0) * (hits - np.diff(hits, prepend=0) / 2)).sum()
    return Score(name="auroc", value=area / (hits[-1] * misses[-1]), n=int(hits[-1] + misses[-1]))


def aupr(scores: Values, positive: Values) -> Score:
    """Area under the precision-recall curve, as average precision: sum over thresholds of precision * recall gained.

    >>> round(float(aupr([0.9, 0.8, 0.3, 0.1], [True, False, True, False])), 4)
    0.8333
    """
    hits, misses = _curve(scores, positive)
    precision_gained = np.diff(hits, prepend=0) * hits / (hits + misses)
    return Score(name="aupr", value=precision_gained.sum() / hits[-1], n=int(hits[-1] + misses[-1]))


def fpr_at_95(scores: Values, positive: Values) -> Score:
    """False positive rate at 95% recall: the share of negatives accepted by the threshold that keeps 95% of positives.

    >>> float(fpr_at_95([0.9, 0.8, 0.3, 0.1], [True, False, True, False]))
    0.5
    """
    hits, misses = _curve(scores, positive)
    at = int(np.argmax(hits >= 0.95 * hits[-1] - 1e-9))
    return Score(name="fpr_at_95", value=misses[at] / misses[-1], n=int(hits[-1] + misses[-1]))


def _curve(scores: Values, positive: Values) -> tuple[Floats, Floats]:
    """Positives and negatives at or above each distinct score, from the highest score down."""
    values = numbers(scores, "scores", "Pass one score per sample.")
    right = outcomes(positive, "positive", "True for each sample to detect", "scores")
    same_samples(scores=values, positive=right)
    if right.all() or not right.any():
        raise InputError("positive must contain both True and False; a score cannot separate samples of one kind.")
    order = np.argsort(-values, kind="stable")
    last = np.append(np.flatnonzero(np.diff(values[order])), len(values) - 1)
    hits = np.cumsum(right[order])[last].astype(np.float64)
    return hits, last + 1 - hits
