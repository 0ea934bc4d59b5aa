"""Detection: how well a score separates positive samples from negative ones."""

import numpy as np

from .._errors import InputError
from ._inputs import Floats, Values, numbers, outcomes, same_samples
from ._metric import Score


def auroc(scores: Values, positive: Values) -> Score:
    """Area under the ROC curve: the chance that a positive sample has a higher score than a negative one.

        AUROC = P(s+ > s-) + P(s+ = s-) / 2

    >>> auroc([0.9, 0.8, 0.3, 0.1], [True, False, True, False])
    Score(auroc=0.7500, n=4)
    """
    values, right = _inputs(scores, positive)
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # the mean rank of equal scores
    pos, neg = int(right.sum()), int((~right).sum())
    area = (ranks[right].sum() - pos * (pos + 1) / 2) / (pos * neg)
    return Score(name="auroc", value=area, n=len(values))


def aupr(scores: Values, positive: Values) -> Score:
    """Area under the precision-recall curve, as average precision: sum over thresholds of precision * recall gained.

    >>> round(float(aupr([0.9, 0.8, 0.3, 0.1], [True, False, True, False])), 4)
    0.8333
    """
    values, right = _inputs(scores, positive)
    hits, taken = _curve(values, right)
    return Score(name="aupr", value=(np.diff(hits, prepend=0) * hits / taken).sum() / hits[-1], n=len(values))


def fpr_at_95(scores: Values, positive: Values) -> Score:
    """False positive rate at 95% recall: the share of negatives accepted by the threshold that keeps 95% of positives.

    >>> float(fpr_at_95([0.9, 0.8, 0.3, 0.1], [True, False, True, False]))
    0.5
    """
    values, right = _inputs(scores, positive)
    hits, taken = _curve(values, right)
    at = int(np.argmax(hits >= 0.95 * hits[-1] - 1e-9))
    return Score(name="fpr_at_95", value=(taken[at] - hits[at]) / (~right).sum(), n=len(values))


def _inputs(scores: Values, positive: Values) -> tuple[Floats, np.ndarray]:
    values = numbers(scores, "scores", "Pass one score per sample.")
    right = outcomes(positive)
    same_samples(scores=values, positive=right)
    if right.all() or not right.any():
        raise InputError("positive must contain both True and False; a score cannot separate samples of one kind.")
    return values, right


def _curve(values: Floats, right: np.ndarray) -> tuple[Floats, Floats]:
    """Positives and samples at or above each distinct score, from the highest score down."""
    order = np.argsort(-values, kind="stable")
    last = np.append(np.flatnonzero(np.diff(values[order])), len(values) - 1)
    return np.cumsum(right[order])[last].astype(np.float64), (last + 1).astype(np.float64)
