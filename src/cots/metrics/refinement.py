"""NLL and Brier score, split into what another temperature would repair and what it cannot.

    L(p) = calibration + refinement,   refinement = L(g(p)),   g(p) = (1 - w) softmax(log(p) / tau) + w / K

with tau the temperature with the lowest NLL on these samples and w = 1 / (S + 1), so that no probability is zero (Berta
et al. 2025, arXiv 2501.19195). A calibrator that only rescales confidences changes the calibration part; refinement
changes with what the model knows. Temperature and score use the same samples, one parameter for all, so the
calibration part is at least about 0.
"""

import hashlib
import warnings
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from ..calibrators import fit_temperature
from ._metric import metric
from .inputs import Floats, Values, table_inputs
from .scores import MeanScore, brier_multiclass, nll

_ROWS = 1 << 21  # entries of the table recalibrated at once
_KEPT = 2
_splits: OrderedDict[bytes, "_Split"] = OrderedDict()  # by the content of table and labels


@dataclass(frozen=True, kw_only=True)
class _Split:
    """Losses per sample: of the probabilities, and of those recalibrated."""

    nll: Floats
    recalibrated_nll: Floats
    brier: Floats
    recalibrated_brier: Floats


@metric(
    "nll_calibration",
    title="NLL, calibration part",
    short="NLL (cal.)",
    better="lower",
    scale=1.0,
    digits=3,
    interval_digits=3,
    place=81,
)
def nll_calibration(probabilities: Values, labels: Values) -> MeanScore:
    """Calibration part of the NLL: by how much the best temperature for these samples would lower it.

        CAL = NLL(p) - NLL(g(p)), in nats

    with g(p) the recalibrated probabilities: the best temperature, mixed with 1/(S + 1) of the uniform distribution.

    >>> p, labels = [[0.99, 0.01]] * 10, [0] * 8 + [1] * 2
    >>> round(float(nll_calibration(p, labels)), 3), round(float(nll_refinement(p, labels)), 3)
    (0.426, 0.503)
    """
    split = _split(probabilities, labels)
    return MeanScore.of("nll_calibration", split.nll - split.recalibrated_nll, None)


@metric(
    "nll_refinement",
    title="NLL, refinement part",
    short="NLL (ref.)",
    better="lower",
    scale=1.0,
    digits=3,
    interval_digits=3,
    place=82,
    bounds=(0.0, np.inf),
)
def nll_refinement(probabilities: Values, labels: Values) -> MeanScore:
    """Refinement part of the NLL: what is left of it under the best temperature for these samples.

        REF = NLL(g(p)), in nats

    with g(p) the recalibrated probabilities: the best temperature, mixed with 1/(S + 1) of the uniform distribution.

    >>> float(nll_refinement([[1.0, 0.0]], [1])) < 1
    True
    """
    return MeanScore.of("nll_refinement", _split(probabilities, labels).recalibrated_nll, None)


@metric(
    "brier_calibration",
    title="Brier score, calibration part",
    short="Brier (cal.)",
    better="lower",
    place=71,
)
def brier_calibration(probabilities: Values, labels: Values) -> MeanScore:
    """Calibration part of the Brier score over all classes: by how much the best temperature would lower it.

        CAL = BS(p) - BS(g(p))

    with g(p) the recalibrated probabilities: the temperature with the lowest NLL, mixed with 1/(S + 1) of the uniform
    distribution. It can be slightly negative, because that temperature is not the best for this score.

    >>> p, labels = [[0.99, 0.01]] * 10, [0] * 8 + [1] * 2
    >>> round(float(brier_calibration(p, labels)), 3), round(float(brier_refinement(p, labels)), 3)
    (0.071, 0.321)
    """
    split = _split(probabilities, labels)
    return MeanScore.of("brier_calibration", split.brier - split.recalibrated_brier, None)


@metric(
    "brier_refinement",
    title="Brier score, refinement part",
    short="Brier (ref.)",
    better="lower",
    place=72,
    bounds=(0.0, 2.0),
)
def brier_refinement(probabilities: Values, labels: Values) -> MeanScore:
    """Refinement part of the Brier score over all classes: what is left of it under the best temperature.

        REF = BS(g(p))

    with g(p) the recalibrated probabilities: the temperature with the lowest NLL, mixed with 1/(S + 1) of the uniform
    distribution.

    >>> float(brier_refinement([[1.0, 0.0]], [1])) < 1
    True
    """
    return MeanScore.of("brier_refinement", _split(probabilities, labels).recalibrated_brier, None)


def _split(probabilities: Values, labels: Values) -> _Split:
    """The losses of a table, kept for the next metric of the same table."""
    table_SK, truth = table_inputs(probabilities, labels)
    digest = hashlib.blake2b(np.ascontiguousarray(table_SK).data)
    digest.update(truth.tobytes())
    key = digest.digest()
    if key not in _splits:
        recalibrated_nll, recalibrated_brier = _recalibrated(table_SK, truth)
        _splits[key] = _Split(
            nll=nll(probabilities, truth).per_sample, recalibrated_nll=recalibrated_nll,
            brier=brier_multiclass(table_SK, truth).per_sample, recalibrated_brier=recalibrated_brier,
        )  # fmt: skip
        if len(_splits) > _KEPT:
            _splits.popitem(last=False)
    return _splits[key]


def _recalibrated(table_SK: Floats, truth: np.ndarray) -> tuple[Floats, Floats]:
    """NLL and Brier score of g(p), per sample."""
    samples, classes = table_SK.shape
    # The least float32 above zero stands for a probability that was rounded to zero.
    logits_SK = np.log(np.maximum(table_SK, np.finfo(np.float32).smallest_subnormal))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # without a best temperature, the last one tried is good enough
        tau = fit_temperature(logits_SK, truth)
    share = 1 / (samples + 1)
    nlls, briers = np.empty((2, samples))
    rows = max(1, _ROWS // classes)
    for start in range(0, samples, rows):
        part = slice(start, start + rows)
        scaled_SK = logits_SK[part] / tau
        mixed_SK = np.exp(scaled_SK - scaled_SK.max(axis=1, keepdims=True))
        mixed_SK *= (1 - share) / mixed_SK.sum(axis=1, keepdims=True)
        mixed_SK += share / classes
        here = np.arange(len(mixed_SK)), truth[part]
        nlls[part] = -np.log(mixed_SK[here])
        mixed_SK[here] -= 1.0
        briers[part] = np.einsum("sk,sk->s", mixed_SK, mixed_SK)
    return nlls, briers
