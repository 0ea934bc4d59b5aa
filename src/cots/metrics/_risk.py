"""Selective prediction: how many errors are left when only the confident answers are kept."""

from __future__ import annotations

import numpy as np

from ._inputs import Values, confidences, outcomes, same_samples
from ._result import RiskCoverage


def risk_coverage(confidence: Values, correct: Values) -> RiskCoverage:
    """Risk (errors among the accepted) against coverage (share accepted) for every confidence threshold, and its area.

        coverage(t) = |A_t| / S,   risk(t) = 1/|A_t| sum_{i in A_t} (1 - a_i),   A_t = {i : c_i >= t}
        AURC = 1/S sum_i risk(c_i)

    with c_i the confidence of sample i, a_i = 1 where it is right, else 0, and S samples. Samples of equal confidence
    are accepted together: they are one point of the curve, whatever their order. A smaller area is better; the same
    confidence for all gives the error rate.

    >>> curve = risk_coverage([0.9, 0.9, 0.6, 0.3], [True, False, True, True])
    >>> curve
    RiskCoverage(aurc=0.3958, n=4, points=3)
    >>> curve.coverage, curve.thresholds
    (array([0.5 , 0.75, 1.  ]), array([0.9, 0.6, 0.3]))
    >>> curve.threshold_for_risk(0.25).coverage
    1.0
    """
    scores, hits = confidences(confidence), outcomes(correct)
    n = same_samples(confidence=scores, correct=hits)
    order = np.argsort(-scores)
    scores, errors = scores[order], np.cumsum(~hits[order])
    last = np.concatenate([np.flatnonzero(scores[1:] != scores[:-1]), [n - 1]])
    accepted = last + 1
    coverage, risk = accepted / n, errors[last] / accepted
    return RiskCoverage(
        name="aurc",
        value=float(np.diff(accepted, prepend=0) @ risk / n),
        n=n,
        thresholds=scores[last],
        coverage=coverage,
        risk=risk,
    )
