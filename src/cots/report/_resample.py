"""Bootstrap over images, all seeds of an image together, for every resampled figure in one matrix product.

The seeds of a run look at the same images through other views. Drawing their records as if they were independent would
make intervals too narrow by up to the root of the number of seeds, so an image is drawn with all of its records.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from ._metrics import RESAMPLED, Scored

_ENTRIES = 1 << 22  # of the table of draws held at once, some 32 MB


def draw_seed(dataset: str) -> int:
    """One stream of draws a dataset: methods are compared on the same draws, datasets are independent."""
    return zlib.crc32(dataset.encode())


def resample(
    runs: Sequence[Scored], population: Sequence[str], *, seed: int, resamples: int = 1000, bins: int = 20
) -> np.ndarray:
    """The mean over `runs` (the seeds) of each figure on each resample: shape (resamples, len(RESAMPLED)).

    `population` are the ids to draw from; an image that failed in one of the runs counts only in the others. The draws
    are those of `cots.metrics.bootstrap` with the same seed. A resample without any record of a run is NaN.
    """
    place = {sample: i for i, sample in enumerate(population)}
    rows = [np.array([place[sample] for sample in run.ids]) for run in runs]
    tables = [_table(run, bins) for run in runs]
    figures = np.empty((resamples, len(RESAMPLED)))
    rng = np.random.default_rng(seed)
    n, step = len(population), max(1, _ENTRIES // len(population))
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        weights_Bn = np.stack([np.bincount(rng.integers(0, n, n), minlength=n) for _ in range(size)]).astype(np.float64)
        found = [
            _figures(run, table, weights_Bn[:, row], bins) for run, table, row in zip(runs, tables, rows, strict=True)
        ]
        figures[start : start + size] = np.mean(found, axis=0)
    return figures


def _table(run: Scored, bins: int) -> np.ndarray:
    """What a resample sums up, one row a sample: a one, the per-sample scores, and count and gap in its own bin."""
    confidence, correct = run.confidence.astype(np.float64), run.correct.astype(np.float64)
    gap = confidence - correct
    # Edges in the confidence's own precision, as cots.metrics compares them.
    edges = (np.arange(1, bins + 1) / bins).astype(run.confidence.dtype)
    in_bin = np.searchsorted(edges, run.confidence, side="left")[:, None] == np.arange(bins)
    means = np.stack([np.ones_like(gap), correct, gap, gap**2, run.brier, run.loss], axis=1)
    return np.concatenate([means, in_bin, in_bin * gap[:, None]], axis=1)


def _figures(run: Scored, table: np.ndarray, weights_BS: np.ndarray, bins: int) -> np.ndarray:
    sums = weights_BS @ table
    total, counts, gaps = sums[:, :1], sums[:, 6 : 6 + bins], np.abs(sums[:, 6 + bins :])
    with np.errstate(invalid="ignore", divide="ignore"):
        accuracy, gap, brier_top, brier, loss = (sums[:, 1:6] / total).T
        ece = gaps.sum(axis=1) / total[:, 0]
        worst = np.where(counts > 0, gaps / counts, 0.0).max(axis=1)
        mce = np.where(total[:, 0] > 0, worst, np.nan)
    found = {
        "accuracy": accuracy,
        "ece": ece,
        "mce": mce,
        "brier_top_label": brier_top,
        "brier_multiclass": brier,
        "nll": loss,
        "aurc": _aurc(run, weights_BS),
        "confidence_gap": gap,
    }
    return np.stack([found[name] for name in RESAMPLED], axis=1)


def _aurc(run: Scored, weights_BS: np.ndarray) -> np.ndarray:
    order = np.argsort(-run.confidence, kind="stable")
    confidence, weights = run.confidence[order], weights_BS[:, order]
    # Samples of equal confidence are accepted together.
    last = np.concatenate([np.flatnonzero(confidence[1:] != confidence[:-1]), [len(confidence) - 1]])
    accepted = np.cumsum(weights, axis=1)[:, last]
    errors = np.cumsum(weights * ~run.correct[order], axis=1)[:, last]
    risk = np.divide(errors, accepted, out=np.zeros_like(errors), where=accepted > 0)
    with np.errstate(invalid="ignore"):
        return (np.diff(accepted, axis=1, prepend=0.0) * risk).sum(axis=1) / accepted[:, -1]
