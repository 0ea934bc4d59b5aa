"""Scores that are the mean of one value per sample."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from .._errors import InputError
from ._metric import SHARE, Score, metric
from .inputs import Floats, Values, mean_of, outcomes, precision_of, probability_table, table_inputs, top_label_inputs


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MeanScore(Score):
    """A score that is the mean of `per_sample`, one value per sample in the order given.

    `clipped` counts the samples whose label had probability zero (NLL only).
    """

    per_sample: Floats
    clipped: int = 0

    @classmethod
    def of(cls, name: str, per_sample: Floats, weights: Any, clipped: int = 0) -> Self:
        value, n = mean_of(per_sample, weights), len(per_sample)
        return cls(name=name, value=value, n=n, per_sample=per_sample, clipped=clipped)

    def _detail(self) -> str:
        return f", clipped={self.clipped}" if self.clipped else ""


@metric("accuracy", title="Accuracy", short="accuracy", better="higher", place=10, bounds=SHARE)
def accuracy(correct: Values, *, weights: Values | None = None) -> MeanScore:
    """Accuracy: the share of right answers.

        ACC = 1/S sum_i a_i

    with a_i = 1 where sample i is right, else 0, and S samples.

    >>> float(accuracy([True, True, False, True]))
    0.75
    >>> float(accuracy([True, True, False, True], weights=[1, 1, 2, 0]))
    0.5
    """
    return MeanScore.of("accuracy", outcomes(correct).astype(np.float64), weights)


@metric("confidence_gap", title="Confidence gap", short="gap", better="zero", place=100, bounds=(-1.0, 1.0))
def confidence_gap(confidence: Values, correct: Values, *, weights: Values | None = None) -> MeanScore:
    """Confidence gap: mean confidence minus accuracy, positive where over-confident, negative where under-confident.

        GAP = 1/S sum_i (c_i - a_i)

    with c_i the confidence of sample i, a_i = 1 where it is right, else 0, and S samples. |GAP| is never above `ece`.

    >>> float(confidence_gap([1.0, 1.0, 0.5, 0.5], [1, 0, 1, 0]))
    0.25
    """
    scores, hits, _ = top_label_inputs(confidence, correct)
    return MeanScore.of("confidence_gap", scores - hits, weights)


@metric("brier_top_label", title="Brier score, top label", short="Brier (top)", better="lower", place=60, bounds=SHARE)
def brier_top_label(confidence: Values, correct: Values, *, weights: Values | None = None) -> MeanScore:
    """Brier score of the predicted class alone: the squared error of its confidence.

        BS_top = 1/S sum_i (c_i - a_i)^2, in [0, 1]

    with c_i the confidence of sample i, a_i = 1 where it is right, else 0, and S samples.

    >>> float(brier_top_label([1.0, 0.5], [1, 0]))
    0.125
    """
    scores, hits, _ = top_label_inputs(confidence, correct)
    return MeanScore.of("brier_top_label", (scores - hits) ** 2, weights)


@metric(
    "brier_multiclass",
    title="Brier score, all classes",
    short="Brier (all)",
    better="lower",
    place=70,
    bounds=(0.0, 2.0),
)
def brier_multiclass(probabilities: Values, labels: Values, *, weights: Values | None = None) -> MeanScore:
    """Brier score over all classes: the squared distance of the probabilities from the one-hot label.

        BS = 1/S sum_i sum_c (p_ic - y_ic)^2, in [0, 2]

    with p_ic the probability of class c for sample i, y_ic = 1 where c is the label of i, else 0, and S samples.

    >>> float(brier_multiclass([[1.0, 0.0], [0.5, 0.5]], [0, 1]))
    0.25
    """
    scores_SK, truth = table_inputs(probabilities, labels)
    error_SK = scores_SK.copy()
    error_SK[np.arange(len(truth)), truth] -= 1.0
    return MeanScore.of("brier_multiclass", np.einsum("sk,sk->s", error_SK, error_SK), weights)


@metric(
    "nll",
    title="Negative log-likelihood (NLL)",
    short="NLL",
    better="lower",
    scale=1.0,
    digits=3,
    interval_digits=3,
    place=80,
    bounds=(0.0, np.inf),
)
def nll(
    probabilities: Values | None = None,
    labels: Values | None = None,
    *,
    logits: Values | None = None,
    weights: Values | None = None,
) -> MeanScore:
    """Negative log-likelihood: minus the log of the label's probability.

        NLL = -1/S sum_i log p_i, in nats

    with p_i the probability of the label of sample i and S samples. Pass either `probabilities` or `logits` (by name;
    the softmax is computed in float64).

    A probability of zero would make the mean infinite. It is replaced by the smallest positive number of its precision,
    a lower bound of the loss: 744.4 nats in float64, 103.3 in float32, 92.2 in bfloat16, 16.6 in float16. `clipped` is
    the number of such samples. With `logits` nothing is clipped.

    >>> nll([[0.5, 0.5], [0.25, 0.75]], [0, 1])
    MeanScore(nll=0.4904, n=2)
    >>> nll(logits=[[0.0, 0.0]], labels=[1])
    MeanScore(nll=0.6931, n=1)
    >>> nll([[1.0, 0.0]], [1])
    MeanScore(nll=744.4401, n=1, clipped=1)
    """
    if (logits is None) == (probabilities is None):
        raise InputError("nll needs either probabilities (the first argument) or logits=, not both.")
    if logits is not None:
        logits_SK, truth = table_inputs(logits, labels, "logits")
        below_SK = logits_SK - logits_SK.max(axis=1, keepdims=True)
        loss = np.log(np.exp(below_SK).sum(axis=1)) - below_SK[np.arange(len(truth)), truth]
        return MeanScore.of("nll", loss, weights)
    scores_SK, truth = table_inputs(probabilities, labels)
    of_label = scores_SK[np.arange(len(truth)), truth]
    precision = torch.finfo(precision_of(probabilities))
    # Subtracted from zero, so that certainty costs 0.0 and not -0.0.
    loss = 0.0 - np.log(np.maximum(of_label, precision.tiny * precision.eps))
    return MeanScore.of("nll", loss, weights, clipped=int((of_label == 0.0).sum()))


def top_label(probabilities: Values) -> tuple[Any, Any]:
    """Confidence (the largest probability) and prediction (its class, the first among equals) of each sample.

    Returns tensors on the same device for tensors, and numpy arrays otherwise, in the precision of the input.

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
