"""Calibration error without bins: residuals smoothed over the confidence (Blasiok and Nakkiran, ICLR 2024)."""

import numpy as np

from ._metric import SHARE, Score, metric
from .inputs import Floats, Values, top_label_inputs

_NARROWEST = 2.0**-10  # the least width of the kernel
_HALVINGS = 12  # of the interval that contains the fixed point
_WIDTHS = 5.0  # standard deviations of the kernel's spectrum; the rest is below 4e-6
_POINTS = 10  # of the integral, per width of the kernel
_CELLS = 4096  # of larger sets, confidences are rounded to a grid with so many cells
_ENTRIES = 1 << 22  # of a table held at once


@metric(
    "smooth_ece",
    title="Smooth calibration error (smECE)",
    short="smECE",
    better="lower",
    place=25,
    bounds=SHARE,
    inflated=True,
)
def smooth_ece(confidence: Values, correct: Values, *, weights: Values | None = None) -> Score:
    """Smooth calibration error: how far confidence and accuracy are apart among similar confidences, without bins.

        smECE = integral of |r_s(t)| over t in [0, 1], at the width s that equals it
        r_s(t) = 1/S sum_i K_s(t, c_i) (c_i - a_i)

    with c_i the confidence of sample i, a_i = 1 where it is right, else 0, S samples, and K_s a Gaussian of width s
    that is reflected at 0 and 1. The width is the error itself, but at least 1/1024, so nothing has to be chosen. It is
    never below |mean confidence - accuracy|.

    >>> round(float(smooth_ece([0.75, 0.75], [1, 0])), 4)
    0.25
    >>> float(smooth_ece([1.0, 0.0], [1, 0]))
    0.0
    """
    scores, hits, rows = top_label_inputs(confidence, correct, weights)
    weights_BS = np.ones((1, len(scores))) if rows is None else np.atleast_2d(rows)
    residual_BU, place_U = _residuals(scores, scores - hits, weights_BS)
    values = _fixed_point(residual_BU, place_U)
    single = rows is None or rows.ndim == 1
    return Score(name="smooth_ece", value=values[0] if single else values, n=len(scores))


def _residuals(scores: Floats, residual: Floats, weights_BS: Floats) -> tuple[Floats, Floats]:
    """The mean residual at each place, one row per row of weights; of large sets, at the cells of a grid."""
    with np.errstate(invalid="ignore", divide="ignore"):
        share_BS = weights_BS * (residual / weights_BS.sum(axis=1, keepdims=True))
    if len(scores) <= _CELLS:
        return share_BS, scores
    cell = np.rint(scores * _CELLS).astype(np.int64)
    order = np.argsort(cell, kind="stable")
    cells, starts = np.unique(cell[order], return_index=True)
    return np.add.reduceat(share_BS[:, order], starts, axis=1), cells / _CELLS


def _fixed_point(residual_BU: Floats, place_U: Floats) -> Floats:
    """smECE_s where it equals s, one per row: it falls in s, so the point lies between powers of two of s."""
    series, values_B = _Series(residual_BU, place_U), np.empty(len(residual_BU))
    wide, rows = 0.5, np.arange(len(residual_BU))
    while len(rows):  # wide ones first, because narrow ones cost more
        found = (series.smoothed(rows, np.full(len(rows), wide), wide) >= wide) | (wide <= _NARROWEST)
        values_B[rows[found]] = _bisected(series, rows[found], wide)
        wide, rows = wide / 2, rows[~found]
    return values_B


def _bisected(series: "_Series", rows: np.ndarray, wide: float) -> Floats:
    """The fixed points of rows that have it between `wide` and twice that, or at most there."""
    low_B, high_B = np.full(len(rows), wide), np.full(len(rows), 2 * wide)
    for _ in range(_HALVINGS if len(rows) else 0):
        middle_B = (low_B + high_B) / 2
        above_B = series.smoothed(rows, middle_B, wide) >= middle_B
        low_B, high_B = np.where(above_B, middle_B, low_B), np.where(above_B, high_B, middle_B)
    return series.smoothed(rows, high_B, wide)


class _Series:
    """The cosine series of rows of residuals; as many coefficients as were needed so far.

    A reflected Gaussian of width s multiplies the k-th coefficient by exp(-(pi k s)^2 / 2).
    """

    def __init__(self, residual_BU: Floats, place_U: Floats) -> None:
        self._residual_BU, self._place_U = residual_BU, place_U
        self._coefficient_BF = np.empty((len(residual_BU), 0))

    def smoothed(self, rows: np.ndarray, width_B: Floats, narrowest: float) -> Floats:
        """smECE_s of some rows, each at its own width s >= `narrowest`."""
        terms = int(np.ceil(_WIDTHS / (np.pi * narrowest))) + 1
        points = 2 ** int(np.ceil(np.log2(_POINTS / narrowest + 200)))  # a power of two, for the fast transform
        frequency_F = np.pi * np.arange(terms)
        spectrum_BF = self._coefficients(terms)[rows] * np.exp(-((frequency_F * width_B[:, None]) ** 2) / 2)
        # At 0, 1/points, ..., 1.
        heights_BT = np.abs(2 * points * np.fft.irfft(spectrum_BF, 2 * points)[:, : points + 1])
        return (heights_BT[:, :-1] + heights_BT[:, 1:]).mean(axis=1) / 2

    def _coefficients(self, terms: int) -> Floats:
        known = self._coefficient_BF.shape[1]
        step = max(1, _ENTRIES // len(self._place_U))
        for start in range(known, terms, step):
            frequency_F = np.pi * np.arange(start, min(start + step, terms))
            new_BF = self._residual_BU @ np.cos(np.outer(self._place_U, frequency_F))
            self._coefficient_BF = np.concatenate([self._coefficient_BF, new_BF], axis=1)
        return self._coefficient_BF[:, :terms]
