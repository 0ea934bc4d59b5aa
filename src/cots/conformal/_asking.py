"""Which photos of a folder to label, and what their labels say about the accuracy on all of them.

N photos with confidences c are drawn one after the other, without replacement. Before each draw a fair coin is tossed.
Heads: the photo is the next one that is left of a random order of all N. Tails: it is drawn from those left in
proportion to sqrt(c (1 - c)), the standard deviation of whether a calibrated answer is right. So the t-th draw takes
photo i with probability

    q_t(i) = 1/2 * 1/(N - t + 1) + 1/2 * sqrt(c_i (1 - c_i)) / sum over those left of sqrt(c (1 - c)),

whatever was drawn before, and its weight w = 1 / ((N - t + 1) q_t) is 2 at most. Labels have no influence, so the first
draws are a smaller draw of the same kind, and the rest may stay unlabelled. If K of them had heads, they contain the
first K photos of the random order: a uniform sample, for guarantees that need one.
"""

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._errors import InputError, whole_number
from ..metrics import binomial_interval
from ..metrics.inputs import Floats, confidences
from ._sequences import check_level, mean_lower_bound

LABELS, OF_EACH = 100, 10  # least labels, and right and wrong ones among them, for a normal interval


@dataclass(frozen=True, kw_only=True)
class AskedAccuracy:
    """Accuracy on all photos of a draw, from the labels of its first photos.

    labelled, uniform: number of labels, and of those drawn uniformly. accuracy: the unbiased estimate, kept within
    `interval`. mean_confidence: of all photos.

    Intervals: `interval` holds at any number of labels, and for all numbers together. `exact` is that of Clopper and
    Pearson from the uniform labels alone; it holds for a number of labels fixed beforehand, so it is None until all
    photos that were drawn are labelled. `normal` is approximate, and None for fewer than 100 labels, or fewer than 10
    right or wrong ones.
    """

    labelled: int
    uniform: int
    photos: int
    mean_confidence: float
    accuracy: float
    interval: tuple[float, float]
    exact: tuple[float, float] | None
    normal: tuple[float, float] | None

    @property
    def gap(self) -> float:
        """Mean confidence minus accuracy; positive if the confidence is too high."""
        return self.mean_confidence - self.accuracy

    @property
    def gap_interval(self) -> tuple[float, float]:
        """The interval of `gap` that belongs to `interval`: the confidence of all photos is known."""
        low, high = self.interval
        return self.mean_confidence - high, self.mean_confidence - low


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Photos to label, in the order of the draw.

    confidence: of all N photos. photos: the indices of those drawn. probability: of each draw, given those before.
    heads: whether the coin fell so that the photo was drawn uniformly. place: its place in the random order, from 1, or
    0 if the order was not needed that far. least, most: limits of the weighted difference of label and confidence.
    """

    confidence: Floats = field(repr=False)
    photos: NDArray[np.int64]
    probability: Floats = field(repr=False)
    heads: NDArray[np.bool_] = field(repr=False)
    place: NDArray[np.int64] = field(repr=False)
    least: Floats = field(repr=False)
    most: Floats = field(repr=False)

    def __len__(self) -> int:
        return len(self.photos)

    def uniform_rows(self, labelled: int | None = None) -> NDArray[np.int64]:
        """Which of the first `labelled` draws (default: all) are a uniform sample of the photos."""
        first = slice(labelled)
        heads = int(self.heads[first].sum())
        return np.flatnonzero((self.place[first] > 0) & (self.place[first] <= heads))

    def accuracy(self, correct: Any, level: float = 0.95) -> AskedAccuracy:
        """The accuracy on all photos, from whether the answers for the first photos drawn are right.

        correct: true or false for each of the first photos, in the order of the draw; NaN where nobody can tell, which
        counts as wrong for lower ends and as right for upper ends.

        With e = correct - c, w = 1 / ((N - t + 1) q_t) and S the sum of the e before draw t,

            z_t = mean of all c + ((N - t + 1) w e + S) / N

        has the accuracy on all photos as its mean given the draws before, and known limits: `interval` are its betting
        bounds (`mean_lower_bound`). `accuracy` is the average of the z_t with weights in proportion to
        1 / ((N - t) (N - t + 1)) (LURE, Farquhar et al. 2021). `normal` is the same average for e = correct - lambda c,
        with its spread, which lambda in [0, 1] minimises: PPI++ (Angelopoulos et al. 2023) for uniform draws, active
        inference (Zrnic and Candes 2024) for the others.
        """
        check_level(level)
        marks = np.asarray(correct, dtype=np.float64)
        if marks.ndim != 1 or not 1 <= len(marks) <= len(self):
            raise InputError(f"correct must have from 1 to {len(self)} values, those of the first photos drawn.")
        unknown = np.isnan(marks)
        if not np.isin(marks[~unknown], (0, 1)).all():
            raise InputError("correct must be true, false or NaN for each photo.")
        worst, best = np.where(unknown, 0.0, marks), np.where(unknown, 1.0, marks)
        rows = self.uniform_rows(len(marks))
        exact = normal = None
        if len(marks) == len(self) and len(rows):
            exact = _exact(worst[rows], best[rows], level)
        known = marks[~unknown]
        if len(known) == len(marks) >= LABELS and min(known.sum(), (1 - known).sum()) >= OF_EACH:
            normal = self._normal(marks, level)
        low = max(self._bound(worst, self.least, 1, level), worst.sum() / len(self.confidence))
        high = min(self._bound(best, self.most, -1, level), 1 - (1 - best).sum() / len(self.confidence))
        residual = (worst + best) / 2 - self.confidence[self.photos[: len(marks)]]
        middle = self.confidence.mean() + _averaging(len(marks), len(self.confidence)) @ self._estimates(residual)
        return AskedAccuracy(
            labelled=len(marks), uniform=len(rows), photos=len(self.confidence),
            mean_confidence=float(self.confidence.mean()), accuracy=float(np.clip(middle, low, high)),
            interval=(low, high), exact=exact, normal=normal,
        )  # fmt: skip

    def _bound(self, values: Floats, limits: Floats, sign: int, level: float) -> float:
        """The lower (sign 1) or upper (-1) betting bound; `limits` of the weighted residuals on that side."""
        total, labelled = len(self.confidence), len(values)
        residual = values - self.confidence[self.photos[:labelled]]
        before = np.cumsum(residual) - residual
        least = sign * (self.confidence.mean() + ((total - np.arange(labelled)) * limits[:labelled] + before) / total)
        estimates = sign * (self.confidence.mean() + self._estimates(residual))
        return sign * mean_lower_bound(np.maximum(estimates, least), (1 - level) / 2, least=least)

    def _estimates(self, values: Floats) -> Floats:
        """Unbiased estimates of the mean of all photos, one per draw, given the values of the photos drawn before."""
        total = len(self.confidence)
        left = total - np.arange(len(values))
        return (left * self._weights(len(values)) * values + np.cumsum(values) - values) / total

    def _weights(self, labelled: int) -> Floats:
        return 1.0 / ((len(self.confidence) - np.arange(labelled)) * self.probability[:labelled])

    def _normal(self, values: Floats, level: float) -> tuple[float, float]:
        n = len(values)
        weights = _averaging(n, len(self.confidence))
        plain = self._estimates(values)
        slope = self._estimates(self.confidence[self.photos[:n]]) - self.confidence.mean()
        about_plain, about_slope = plain - weights @ plain, slope - weights @ slope
        spread = weights**2 @ about_slope**2
        share = 0.0
        if spread > 0:
            share = float(np.clip(weights**2 @ (about_plain * about_slope) / spread, 0.0, 1.0))
        estimates = plain - share * slope
        middle = float(weights @ estimates)
        error = math.sqrt(n / (n - 1) * (weights**2 @ (estimates - middle) ** 2))
        half = NormalDist().inv_cdf((1 + level) / 2) * error
        return max(0.0, middle - half), min(1.0, middle + half)


def draw(confidence: Any, n: int, *, uniform: bool = False, seed: int = 0) -> Draw:
    """Draw `n` photos to label from the confidences of all photos; `uniform`: all with the same probability.

    >>> confidence = np.linspace(0.4, 1, 500)
    >>> drawn = draw(confidence, 100)
    >>> correct = confidence[drawn.photos] > 0.5  # in place of a person who looks at the photos
    >>> found = drawn.accuracy(correct)
    >>> found.labelled, found.uniform, np.round(found.interval, 3).tolist()
    (100, 43, [0.714, 0.909])
    """
    c = confidences(confidence)
    n = whole_number("n", n, 1, len(c))
    rng = np.random.default_rng(seed)
    order, heads = rng.permutation(len(c)), rng.random(n) < (1.0 if uniform else 0.5)
    wanted = np.sqrt(c * (1 - c))
    left, next_in_order = np.ones(len(c), dtype=bool), 0
    row_of = np.full(len(c), -1)
    photos, place = np.empty(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    probability, least, most = np.empty(n), np.empty(n), np.empty(n)
    for row in range(n):
        size = len(c) - row
        equal, uneven = left / size, _shares(wanted * left, left / size)
        chance = equal if uniform else (equal + uneven) / 2
        with np.errstate(divide="ignore"):
            weight = np.where(left, 1 / (size * chance), 0.0)
        least[row], most[row] = -(weight * c).max(), (weight * (1 - c)).max()
        if heads[row]:
            while row_of[order[next_in_order]] >= 0:  # drawn before, by the other half
                place[row_of[order[next_in_order]]] = next_in_order + 1
                next_in_order += 1
            photo = order[next_in_order]
            next_in_order += 1
            place[row] = next_in_order
        else:
            photo = rng.choice(len(c), p=uneven)
        photos[row], probability[row] = photo, chance[photo]
        left[photo], row_of[photo] = False, row
    return Draw(confidence=c, photos=photos, probability=probability, heads=heads, place=place, least=least, most=most)


def _averaging(n: int, total: int) -> Floats:
    """Weights of the estimates of n draws from `total` photos: later ones vary less, and the last of all is exact."""
    weights = np.zeros(n)
    at = np.arange(min(n, total - 1))
    weights[: len(at)] = total / n * (total - n) / ((total - 1 - at) * (total - at))
    if n == total:
        weights[-1] = 1.0
    return weights


def _shares(values: Floats, otherwise: Floats) -> Floats:
    """`values` divided by their sum; `otherwise` if all are 0."""
    total = values.sum()
    return values / total if total > 0 else otherwise


def _exact(worst: Floats, best: Floats, level: float) -> tuple[float, float]:
    low, _ = binomial_interval(int(worst.sum()), len(worst), level)
    _, high = binomial_interval(int(best.sum()), len(best), level)
    return float(low), float(high)
