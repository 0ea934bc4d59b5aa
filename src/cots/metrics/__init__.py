"""How good are the class and the confidence: calibration errors, proper scores, risk against coverage, intervals.

Every function looks at a whole set at once, computes in float64, takes numpy arrays, lists or torch tensors, and
returns a result with `float(result)` as a fraction (0.05, not 5). Probabilities and logits go under different names.

>>> from cots.metrics import bootstrap, ece
>>> confidence, correct = [0.9, 0.9, 0.8, 0.8, 0.6], [True, True, True, False, False]
>>> ece(confidence, correct)
BinnedScore(ece=0.2800, n=5, bins=20)
>>> round(float(ece(confidence, correct)), 2)
0.28
>>> bootstrap(ece, confidence, correct, resamples=200).resamples
200
"""

from ._binned import adaptive_ece, classwise_ece, ece, mce
from ._bootstrap import bootstrap
from ._result import BinnedScore, ClassScore, Interval, LogScore, MeanScore, OperatingPoint, RiskCoverage, Score
from ._risk import risk_coverage
from ._scores import accuracy, brier_multiclass, brier_top_label, confidence_gap, nll, top_label

__all__ = [
    "BinnedScore",
    "ClassScore",
    "Interval",
    "LogScore",
    "MeanScore",
    "OperatingPoint",
    "RiskCoverage",
    "Score",
    "accuracy",
    "adaptive_ece",
    "bootstrap",
    "brier_multiclass",
    "brier_top_label",
    "classwise_ece",
    "confidence_gap",
    "ece",
    "mce",
    "nll",
    "risk_coverage",
    "top_label",
]
