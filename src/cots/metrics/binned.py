"""Calibration errors: the distance between confidence and accuracy, over bins of similar confidence.

Equal-width bins are (lo, hi] with the first closed at 0, so 1.0 is in the last bin. Values of any precision are
compared in float64 with the float64 edges m/M: 0.15 in float64 lies on the edge 3/20 and thus in the bin below it, 0.15
in float32 is 0.15000000596 and lies in the bin above. All sums are in float64.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._errors import whole_number
from ._metric import SHARE, Score, metric
from .inputs import Floats, Values, table_inputs, top_label_inputs

# Entries binned at once: bounds the temporaries for 50,000 samples x 1,000 classes to some 100 MB.
_CHUNK = 1 << 21


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class BinnedScore(Score):
    """A calibration error and its bins.

    Bin m is (edges[m], edges[m+1]]. `counts` (sums of weights, if given), `mean_confidence` and `accuracy` have one
    value per bin (one row per class for the class-wise scores); the last two are NaN in empty bins.
    """

    edges: Floats
    counts: np.ndarray
    mean_confidence: Floats
    accuracy: Floats

    @property
    def gap(self) -> Floats:
        """Mean confidence minus accuracy of each bin: positive if over-confident, NaN if empty."""
        return self.mean_confidence - self.accuracy

    def _detail(self) -> str:
        return f", bins={self.counts.shape[-1]}"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ClassScore(BinnedScore):
    """The mean of `per_class`, one calibration error per class; the bin-level arrays have one row per class."""

    per_class: Floats

    def _detail(self) -> str:
        return f", classes={len(self.per_class)}{super()._detail()}"


@metric(
    "ece",
    title="Expected calibration error (ECE)",
    short="ECE",
    better="lower",
    place=20,
    bins="(lo, hi]",
    bounds=SHARE,
)
def ece(confidence: Values, correct: Values, bins: int = 20, *, weights: Values | None = None) -> BinnedScore:
    """Expected calibration error: how far confidence and accuracy are apart in a bin, averaged over the samples.

        ECE = sum_m |B_m| / S * |acc(B_m) - conf(B_m)|

    with B_m the samples whose confidence is in bin m of `bins` equal-width bins (lo, hi], S the number of samples,
    acc the share of correct ones and conf the mean confidence. With `weights`, counts and means are weighted.

    >>> result = ece([0.95, 0.95, 0.55, 0.55], [1, 1, 1, 0], bins=20)
    >>> result
    BinnedScore(ece=0.0500, n=4, bins=20)
    >>> result.counts[[10, 18]], result.accuracy[[10, 18]]
    (array([2, 2]), array([0.5, 1. ]))
    """
    n, sums = _top_label_bins(confidence, correct, bins, weights)
    return BinnedScore(name="ece", value=sums.mean_gap(), n=n, edges=equal_width(bins), **sums.means())


@metric(
    "mce", title="Maximum calibration error (MCE)", short="MCE", better="lower", place=30, bins="(lo, hi]", bounds=SHARE
)
def mce(confidence: Values, correct: Values, bins: int = 20, *, weights: Values | None = None) -> BinnedScore:
    """Maximum calibration error: how far confidence and accuracy are apart in the worst bin that is not empty.

        MCE = max_m |acc(B_m) - conf(B_m)|

    over the bins B_m of `ece` that have at least one sample (of positive weight).

    >>> float(mce([1.0, 1.0, 0.5, 0.5], [1, 0, 1, 0]))
    0.5
    """
    n, sums = _top_label_bins(confidence, correct, bins, weights)
    means = sums.means()
    worst = np.nan_to_num(np.abs(means["accuracy"] - means["mean_confidence"])).max(axis=-1)
    value = np.where(sums.counts.sum(axis=-1) > 0, worst, np.nan)
    return BinnedScore(name="mce", value=value, n=n, edges=equal_width(bins), **means)


@metric(
    "classwise_ece",
    title="Class-wise calibration error (CECE)",
    short="CECE",
    better="lower",
    digits=3,
    place=50,
    bins="(lo, hi]",
    bounds=SHARE,
)
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
    scores_SK, labels = table_inputs(probabilities, labels)
    edges = equal_width(bins)
    sums = bin_sums(scores_SK, labels[:, None] == np.arange(scores_SK.shape[1]), edges)
    errors = sums.mean_gap()
    return ClassScore(
        name="classwise_ece", value=errors.mean(), n=len(labels), per_class=errors, edges=edges, **sums.means()
    )


@metric(
    "adaptive_ece",
    title="Adaptive calibration error (AECE)",
    short="AECE",
    better="lower",
    digits=3,
    place=40,
    bins="equal mass",
    bounds=SHARE,
)
def adaptive_ece(probabilities: Values, labels: Values, ranges: int = 20) -> ClassScore:
    """Adaptive calibration error: the gap of each class over ranges of equal mass, averaged over ranges and classes.

        AECE = 1/(R K) sum_c sum_r |acc_c(B_rc) - conf_c(B_rc)|

    with B_rc the r-th of R = `ranges` groups of (nearly) equal size of the samples sorted by their probability of
    class c, acc_c the share of them that belong to class c, conf_c their mean probability of class c and K classes.
    The first S mod R ranges have one sample more than the others. With fewer samples than ranges, R is the number of
    samples.

    Samples with the same probability that straddle two ranges share their labels evenly, so the result does not
    depend on the order of the samples. `edges[c]` has the smallest probability of class c and then the largest of
    each range.

    >>> result = adaptive_ece([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.5, 0.5]], [0, 0, 0, 1], ranges=2)
    >>> result
    ClassScore(adaptive_ece=0.1000, n=4, classes=2, bins=2)
    >>> result.counts[0], result.accuracy[0]
    (array([2, 2]), array([0.5, 1. ]))
    """
    whole_number("ranges", ranges, 1)
    scores_SK, labels = table_inputs(probabilities, labels)
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
        running = np.concatenate([[0], np.cumsum(labels[order] == c)])
        hit_sums[c] = np.diff(np.interp(bounds, ends, running[ends]))
    means = _Sums(np.tile(sizes, (classes, 1)), score_sums, hit_sums).means()
    per_class = np.abs(means["accuracy"] - means["mean_confidence"]).mean(axis=1)
    value = per_class.mean()
    return ClassScore(name="adaptive_ece", value=value, n=samples, per_class=per_class, edges=edges, **means)


def noise_floor(confidence: Floats, seed: int = 0, draws: int = 400) -> tuple[float, float]:
    """Mean and 95% quantile of the 20-bin ECE of a perfectly calibrated model with these confidences.

    >>> mean, high = noise_floor(np.full(400, 0.8))
    >>> round(mean, 3), round(high, 3)
    (0.016, 0.037)
    """
    rng = np.random.default_rng(seed)
    correct = rng.random((draws, len(confidence))) < confidence
    scores, hits, _ = top_label_inputs(confidence, correct[0])
    edges = equal_width(20)
    # The draws differ in the hits alone, so one matrix product counts them for all: `ece` of each row of `correct`.
    in_bin_SM = bin_of(scores, edges)[:, None] == np.arange(20)
    hits_BM = correct.astype(np.float64) @ in_bin_SM.astype(np.float64)
    errors = bin_sums(scores[:, None], hits[:, None], edges)._replace(hits=hits_BM).mean_gap()
    return float(errors.mean()), float(np.quantile(errors, 0.95))


class _Sums(NamedTuple):
    """Per bin, along the last axis: number of samples, sum of their scores, number of hits."""

    counts: np.ndarray
    scores: np.ndarray
    hits: np.ndarray

    def mean_gap(self) -> Floats:
        """|B|/S * |acc - conf| is |hits - scores|/S."""
        with np.errstate(invalid="ignore"):
            return np.abs(self.hits - self.scores).sum(axis=-1) / self.counts.sum(axis=-1)

    def means(self) -> dict[str, np.ndarray]:
        filled = self.counts > 0
        conf, acc = (
            np.divide(sums, self.counts, out=np.full(self.counts.shape, np.nan), where=filled)
            for sums in (self.scores, self.hits)
        )
        return {"counts": self.counts, "mean_confidence": conf, "accuracy": acc}


def equal_width(bins: int) -> Floats:
    return np.arange(whole_number("bins", bins, 1) + 1) / bins


def _top_label_bins(confidence: Values, correct: Values, bins: int, weights: Values | None) -> tuple[int, _Sums]:
    edges = equal_width(bins)
    scores, hits, rows = top_label_inputs(confidence, correct, weights)
    if rows is None:
        sums = bin_sums(scores[:, None], hits[:, None], edges)
        return len(scores), _Sums(*(column[0] for column in sums))
    in_bin_SM = bin_of(scores, edges)[:, None] == np.arange(bins)
    columns = (in_bin_SM, in_bin_SM * scores[:, None], in_bin_SM * hits[:, None])
    return len(scores), _Sums(*(rows @ column for column in columns))


def bin_of(scores: Floats, edges: Floats) -> NDArray[np.intp]:
    # The first upper edge that is not below the score: (lo, hi], with 0 in the first bin.
    return np.searchsorted(edges[1:], scores, side="left")


def bin_sums(scores_SK: Floats, hits_SK: NDArray[np.bool_], edges: Floats) -> _Sums:
    """The sums of each class and bin, (K, M)."""
    samples, classes = scores_SK.shape
    bins = len(edges) - 1
    first_cell = bins * np.arange(classes)
    counts = np.zeros(classes * bins, dtype=np.int64)
    score_sums, hit_sums = np.zeros((2, classes * bins))
    rows = max(1, _CHUNK // classes)
    for start in range(0, samples, rows):
        scores, hits = scores_SK[start : start + rows], hits_SK[start : start + rows]
        cells = (bin_of(scores, edges) + first_cell).ravel()
        counts += np.bincount(cells, minlength=counts.size)
        score_sums += np.bincount(cells, weights=scores.ravel(), minlength=counts.size)
        hit_sums += np.bincount(cells, weights=hits.ravel(), minlength=counts.size)
    return _Sums(*(column.reshape(classes, bins) for column in (counts, score_sums, hit_sums)))
