"""Scores that are the mean of one number a sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._errors import InputError
from ._inputs import (
    Floats,
    Values,
    class_labels,
    confidences,
    logit_table,
    outcomes,
    precision_of,
    probability_table,
    same_samples,
)
from ._result import LogScore, MeanScore


def accuracy(correct: Values) -> MeanScore:
    """The share of samples that are right.

        ACC = 1/S sum_i a_i

    with a_i = 1 where sample i is right, else 0, and S samples.

    >>> float(accuracy([True, True, False, True]))
    0.75
    """
    return _mean("accuracy", outcomes(correct).astype(np.float64))


def confidence_gap(confidence: Values, correct: Values) -> MeanScore:
    """Signed gap between mean confidence and accuracy: positive is over-confident, negative under-confident.

        GAP = 1/S sum_i (c_i - a_i)

    with c_i the confidence of sample i, a_i = 1 where it is right, else 0, and S samples. |GAP| is never above `ece`.

    >>> float(confidence_gap([1.0, 1.0, 0.5, 0.5], [1, 0, 1, 0]))
    0.25
    """
    scores, hits = confidences(confidence), outcomes(correct)
    same_samples(confidence=scores, correct=hits)
    return _mean("confidence_gap", scores - hits)


def brier_top_label(confidence: Values, correct: Values) -> MeanScore:
    """Brier score of the predicted class alone: the squared error of its confidence, in [0, 1].

        BS_top = 1/S sum_i (c_i - a_i)^2

    with c_i the confidence of sample i, a_i = 1 where it is right, else 0, and S samples.

    >>> float(brier_top_label([1.0, 0.5], [1, 0]))
    0.125
    """
    scores, hits = confidences(confidence), outcomes(correct)
    same_samples(confidence=scores, correct=hits)
    return _mean("brier_top_label", (scores - hits) ** 2)


def brier_multiclass(probabilities: Values, labels: Values) -> MeanScore:
    """Brier score over all classes: the squared distance of the probabilities from the one-hot label, in [0, 2].

        BS = 1/S sum_i sum_c (p_ic - y_ic)^2

    with p_ic the probability of class c for sample i, y_ic = 1 where c is the label of i, else 0, and S samples.

    >>> float(brier_multiclass([[1.0, 0.0], [0.5, 0.5]], [0, 1]))
    0.25
    """
    scores_SK = probability_table(probabilities)
    truth = class_labels(labels, scores_SK.shape[1])
    n = same_samples(probabilities=scores_SK, labels=truth)
    error_SK = scores_SK.copy()
    error_SK[np.arange(n), truth] -= 1.0
    return _mean("brier_multiclass", np.einsum("sk,sk->s", error_SK, error_SK))


def nll(probabilities: Values | None = None, labels: Values | None = None, *, logits: Values | None = None) -> LogScore:
    """Negative log-likelihood of the labels, in nats.

        NLL = -1/S sum_i log p_i

    with p_i the probability of the label of sample i and S samples. Give either `probabilities` or `logits` (whose
    softmax is taken in float64), by name: which one it is, is never guessed.

    A probability of zero would make the whole set's figure infinite. It counts as the smallest positive number of the
    precision it arrived in, which bounds the loss from below: 744.4 nats in float64, 103.3 in float32, 92.2 in
    bfloat16, 16.6 in float16. `clipped` says how many there were. Other probabilities are never touched, and with
    `logits` nothing is clipped.

    >>> nll([[0.5, 0.5], [0.25, 0.75]], [0, 1])
    LogScore(nll=0.4904, n=2)
    >>> nll(logits=[[0.0, 0.0]], labels=[1])
    LogScore(nll=0.6931, n=1)
    >>> nll([[1.0, 0.0]], [1])
    LogScore(nll=744.4401, n=1, clipped=1)
    """
    if logits is not None:
        if probabilities is not None:
            raise InputError("Give nll either probabilities or logits=, not both.")
        logits_SK = logit_table(logits)
        truth = class_labels(labels, logits_SK.shape[1])
        n = same_samples(logits=logits_SK, labels=truth)
        below_SK = logits_SK - logits_SK.max(axis=1, keepdims=True)
        return _log_score(np.log(np.exp(below_SK).sum(axis=1)) - below_SK[np.arange(n), truth])
    if probabilities is None:
        raise InputError("nll needs probabilities (the first argument) or logits=, given by name.")
    scores_SK = probability_table(probabilities)
    truth = class_labels(labels, scores_SK.shape[1])
    n = same_samples(probabilities=scores_SK, labels=truth)
    of_label = scores_SK[np.arange(n), truth]
    precision = torch.finfo(precision_of(probabilities))
    smallest = precision.tiny * precision.eps
    # Zero minus, so that certainty costs 0.0 and not -0.0.
    return _log_score(0.0 - np.log(np.maximum(of_label, smallest)), clipped=int((of_label == 0.0).sum()))


def top_label(probabilities: Values) -> tuple[Any, Any]:
    """Confidence (the largest probability) and prediction (its class, the first of equals) of each sample.

    Tensors come back as tensors on the same device, anything else as numpy arrays; the precision is kept.

    >>> confidence, prediction = top_label([[0.25, 0.75], [0.5, 0.5]])
    >>> confidence, prediction
    (array([0.75, 0.5 ]), array([1, 0]))
    >>> accuracy(prediction == [1, 1])
    MeanScore(accuracy=0.5000, n=2)
    """
    prediction = probability_table(probabilities).argmax(axis=1)
    if isinstance(probabilities, Tensor):
        chosen = torch.from_numpy(prediction).to(probabilities.device)
        return probabilities.detach().gather(1, chosen[:, None])[:, 0], chosen
    return np.asarray(probabilities)[np.arange(len(prediction)), prediction], prediction


# Their figure on a resample is the mean of the resampled per_sample, so a bootstrap needs to call them only once.
SAMPLE_MEANS: frozenset[Callable[..., Any]] = frozenset(
    {accuracy, confidence_gap, brier_top_label, brier_multiclass, nll}
)


def _mean(name: str, per_sample: Floats) -> MeanScore:
    return MeanScore(name=name, value=float(per_sample.mean()), n=len(per_sample), per_sample=per_sample)


def _log_score(per_sample: Floats, clipped: int = 0) -> LogScore:
    return LogScore(
        name="nll", value=float(per_sample.mean()), n=len(per_sample), per_sample=per_sample, clipped=clipped
    )
