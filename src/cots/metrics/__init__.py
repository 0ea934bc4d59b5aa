"""Metrics of classes and confidences: calibration errors, proper scores, risk against coverage, intervals.

Every function evaluates a whole set at once, computes in float64, accepts numpy arrays, lists or torch tensors, and
returns a result with `float(result)` as a fraction (0.05, not 5). `weights=` takes one non-negative weight per sample,
or a stack of rows (B,S) for B values at once. Every public module here registers its metrics with `@metric`; reports,
tables and `cots ls metrics` are generated from `METRICS`.

>>> from cots.metrics import bootstrap, ece
>>> confidence, correct = [0.9, 0.9, 0.8, 0.8, 0.6], [True, True, True, False, False]
>>> ece(confidence, correct)
BinnedScore(ece=0.2800, n=5, bins=20)
>>> round(float(ece(confidence, correct)), 2)
0.28
>>> bootstrap(ece, confidence, correct, resamples=200).resamples
200
"""

from ._metric import METRICS, Metric, Score, metric
from .binned import BinnedScore, ClassScore, adaptive_ece, classwise_ece, ece, mce, noise_floor
from .intervals import Interval, binomial_interval, bootstrap
from .ranking import OperatingPoint, RiskCoverage, aupr, auroc, fpr_at_95, risk_coverage
from .refinement import brier_calibration, brier_refinement, nll_calibration, nll_refinement
from .scores import MeanScore, accuracy, brier_multiclass, brier_top_label, confidence_gap, nll, top_label
from .smooth import smooth_ece

METRICS.discover(__name__)

__all__ = [
    "METRICS", "BinnedScore", "ClassScore", "Interval", "MeanScore", "Metric", "OperatingPoint", "RiskCoverage",
    "Score", "accuracy", "adaptive_ece", "aupr", "auroc", "binomial_interval", "bootstrap", "brier_calibration",
    "brier_multiclass", "brier_refinement", "brier_top_label", "classwise_ece", "confidence_gap", "ece", "fpr_at_95",
    "mce", "metric", "nll", "nll_calibration", "nll_refinement", "noise_floor", "risk_coverage", "smooth_ece",
    "top_label",
]  # fmt: skip
