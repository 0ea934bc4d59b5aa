"""Calibration errors: the distance between confidence and accuracy, over bins of similar confidence.

Equal-width bins are (lo, hi] with the first closed at 0, so 1.0 is in the last bin and a value on an edge is in the
bin below it. The edges are m/M, correctly rounded: 3/20 is the float64 that 0.15 is, where 3*0.05 is not. A
confidence that arrives in float32, bfloat16 or float16 is compared with the edges rounded to that type. So 0.15 is
on the edge 0.15 in every precision, although as a float32 it is 0.15000000596. All sums are taken in float64. (Values
that were computed in float32 and widened since are taken at their float64 value.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ._inputs import (
    Floats,
    Values,
    class_labels,
    confidences,
    in_precision,
    outcomes,
    precision_of,
    probability_table,
    same_samples,
    whole_number,
)
from ._result import BinnedScore, ClassScore

# Entries binned at once: bounds the temporaries for 50,000 samples x 1,000 classes to some 100 MB.
_CHUNK = 1 << 21


def ece(confidence: Values, correct: Values, bins: int = 20) -> BinnedScore:
    """Expected calibration error: how far confidence and accuracy are apart in a bin, averaged over the samples.

        ECE = sum_m |B_m| / S * |acc(B_m) - conf(B_m)|

    with B_m the samples whose confidence is in bin m of `bins` equal-width bins (lo, hi], S the number of samples,
    acc the share of correct ones and conf the mean confidence.

    >>> result = ece([0.95, 0.95, 0.55, 0.55], [1, 1, 1, 0], bins=20)
    >>> result
    BinnedScore(ece=0.0500, n=4, bins=20)
    >>> result.counts[[10, 18]], result.accuracy[[10, 18]]
    (array([2, 2]), array([0.5, 1. ]))
    """
    sums, fields = _top_label_bins(confidence, correct, bins)
    return BinnedScore(name="ece", value=float(_weighted_gap(sums)[0]), **fields)


def mce(confidence: Values, correct: Values, bins: int = 20) -> BinnedScore:
    """Maximum calibration error: how far confidence and accuracy are apart in the worst bin.

        MCE = max_m |acc(B_m) - conf(B_m)|

    over the bins B_m of `ece` that hold at least one sample.

    >>> float(mce([1.0, 1.0, 0.5, 0.5], [1, 0, 1, 0]))
    0.5
    """
    _, fields = _top_label_bins(confidence, correct, bins)
    worst = np.nanmax(np.abs(fields["accuracy"] - fields["mean_confidence"]))
    return BinnedScore(name="mce", value=float(worst), **fields)


def classwise_ece(probabilities: Values, labels: Values, bins: int = 20) -> ClassScore:
    """Class-wise calibration error: the one-vs-rest ECE of each class, averaged over the classes.

        CECE = 1/K sum_c sum_m |B_mc| / S * |acc_c(B_mc) - conf_c(B_mc)|

    with B_mc the samples whose probability of class c is in bin m of `bins` equal-width bins (lo, hi], acc_c the share
    of them that belong to class c, conf_c their mean probability of class c, S samples and K classes. A class that
    never occurs among the labels counts like any other.

    >>> result = classwise_ece([[0.75, 0.25], [0.75, 0.25]], [0, 0])
    >>> result, result.per_class
    (ClassScore(classwise_ece=0.2500, n=2, classes=2, bins=20), array([0.25, 0.25]))
    """
    bins = whole_number(bins, "bins", 1)
    scores_SK, hits_SK = _one_vs_rest(probabilities, labels)
    edges = _equal_width(bins)
    sums = _bin_sums(scores_SK, hits_SK, in_precision(edges, precision_of(probabilities)))
    per_class = _weighted_gap(sums)
    return ClassScore(
        name="classwise_ece",
        value=float(per_class.mean()),
        n=len(scores_SK),
        per_class=per_class,
        edges=edges,
        **_bin_means(*sums),
    )


def adaptive_ece(probabilities: Values, labels: Values, ranges: int = 20) -> ClassScore:
    """Adaptive calibration error: the same gap over ranges of equal mass, averaged over ranges and classes.

        AECE = 1/(R K) sum_c sum_r |acc_c(B_rc) - conf_c(B_rc)|

    with B_rc the r-th of R = `ranges` groups of (nearly) equal size of the samples sorted by their probability of
    class c, acc_c the share of them that belong to class c, conf_c their mean probability of class c and K classes.
    The first S mod R ranges hold one sample more than the others. With fewer samples than ranges, R is the number of
    samples.

    Samples with the same probability that straddle two ranges share their labels evenly, so that the result does not
    depend on the order of the samples. `edges[c]` holds the smallest probability of class c and then the largest of
    each range.

    >>> result = adaptive_ece([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.5, 0.5]], [0, 0, 0, 1], ranges=2)
    >>> result
    ClassScore(adaptive_ece=0.1000, n=4, classes=2, bins=2)
    >>> result.counts[0], result.accuracy[0]
    (array([2, 2]), array([0.5, 1. ]))
    """
    ranges = whole_number(ranges, "ranges", 1)
    scores_SK, hits_SK = _one_vs_rest(probabilities, labels)
    samples, classes = scores_SK.shape
    parts = min(ranges, samples)
    sizes = samples // parts + (np.arange(parts) < samples % parts)
    bounds = np.concatenate([[0], np.cumsum(sizes)])

    edges, score_sums, hit_sums = (np.empty((classes, parts + extra)) for extra in (1, 0, 0))
    for c in range(classes):
        order = np.argsort(scores_SK[:, c])
        scores = scores_SK[order, c]
        edges[c] = scores[np.concatenate([[0], bounds[1:] - 1])]
        score_sums[c] = np.add.reduceat(scores, bounds[:-1])
        # Interpolating the running count of hits between the ends of tied groups shares a group's hits evenly.
        ends = np.concatenate([[0], np.flatnonzero(scores[1:] != scores[:-1]) + 1, [samples]])
        running = np.concatenate([[0], np.cumsum(hits_SK[order, c])])
        hit_sums[c] = np.diff(np.interp(bounds, ends, running[ends]))

    means = _bin_means(np.tile(sizes, (classes, 1)), score_sums, hit_sums)
    per_class = np.abs(means["accuracy"] - means["mean_confidence"]).mean(axis=1)
    return ClassScore(
        name="adaptive_ece", value=float(per_class.mean()), n=samples, per_class=per_class, edges=edges, **means
    )


def _equal_width(bins: int) -> Floats:
    return np.arange(bins + 1) / bins


def _one_vs_rest(probabilities: Values, labels: Values) -> tuple[Floats, NDArray[np.bool_]]:
    scores_SK = probability_table(probabilities)
    truth = class_labels(labels, scores_SK.shape[1])
    same_samples(probabilities=scores_SK, labels=truth)
    return scores_SK, truth[:, None] == np.arange(scores_SK.shape[1])


def _top_label_bins(confidence: Values, correct: Values, bins: int) -> tuple[tuple[np.ndarray, ...], dict]:
    bins = whole_number(bins, "bins", 1)
    scores, hits = confidences(confidence), outcomes(correct)
    n = same_samples(confidence=scores, correct=hits)
    edges = _equal_width(bins)
    sums = _bin_sums(scores[:, None], hits[:, None], in_precision(edges, precision_of(confidence)))
    return sums, {"n": n, "edges": edges, **{name: rows[0] for name, rows in _bin_means(*sums).items()}}


def _bin_sums(scores_SK: Floats, hits_SK: NDArray[np.bool_], edges: Floats) -> tuple[np.ndarray, Floats, Floats]:
    """For each class and bin (K, M): the number of samples, the sum of their scores, the number of hits."""
    samples, classes = scores_SK.shape
    bins = len(edges) - 1
    first_cell = bins * np.arange(classes)
    counts = np.zeros(classes * bins, dtype=np.int64)
    score_sums, hit_sums = np.zeros((2, classes * bins))
    rows = max(1, _CHUNK // classes)
    for start in range(0, samples, rows):
        scores, hits = scores_SK[start : start + rows], hits_SK[start : start + rows]
        # The first upper edge that is not below the score: (lo, hi], with 0 in the first bin.
        cells = (np.searchsorted(edges[1:], scores, side="left") + first_cell).ravel()
        counts += np.bincount(cells, minlength=counts.size)
        score_sums += np.bincount(cells, weights=scores.ravel(), minlength=counts.size)
        hit_sums += np.bincount(cells, weights=hits.ravel(), minlength=counts.size)
    shape = (classes, bins)
    return counts.reshape(shape), score_sums.reshape(shape), hit_sums.reshape(shape)


def _weighted_gap(sums: tuple[np.ndarray, ...]) -> Floats:
    """One ECE a class: |B|/S * |acc - conf| is |hits - scores|/S."""
    counts, score_sums, hit_sums = sums
    return np.abs(hit_sums - score_sums).sum(axis=1) / counts.sum(axis=1)


def _bin_means(counts: np.ndarray, score_sums: Floats, hit_sums: Floats) -> dict[str, np.ndarray]:
    filled = counts > 0
    mean_confidence, accuracy = (
        np.divide(sums, counts, out=np.full(counts.shape, np.nan), where=filled) for sums in (score_sums, hit_sums)
    )
    return {"counts": counts, "mean_confidence": mean_confidence, "accuracy": accuracy}
