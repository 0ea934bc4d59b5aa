"""One temperature for zero-shot logits in place of a method that cannot be exported, and how far the two are apart."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

_LOWEST, _HIGHEST = 1e-3, 1e3  # temperatures of the search


def match_confidence(logits_NK: Tensor, confidence: float) -> float:
    """The temperature with which the mean confidence of the logits is `confidence`; needs no labels.

        mean_n max softmax(z_n / tau) = confidence

    The mean falls as tau rises, so bisection of log tau finds it, between 0.001 and 1000.

    >>> import torch
    >>> round(match_confidence(torch.tensor([[2.0, 0.0], [4.0, 0.0]]), 0.75), 3)
    2.644
    """
    z_NK = logits_NK.double()
    low, high = math.log(_LOWEST), math.log(_HIGHEST)
    for _ in range(60):
        middle = (low + high) / 2
        mean = float((z_NK / math.exp(middle)).softmax(1).amax(1).mean())
        low, high = (middle, high) if mean > confidence else (low, middle)
    return math.exp((low + high) / 2)


@dataclass(frozen=True, kw_only=True)
class Distance:
    """Two classifiers on the same n photos: shares and confidences between 0 and 1.

    same: share of photos with the same class. mean, largest: difference of their confidences, without its sign.
    before, after: mean confidences.
    """

    n: int
    same: float
    mean: float
    largest: float
    before: float
    after: float

    @classmethod
    def between(cls, classes: ArrayLike, confidence: ArrayLike, other: ArrayLike, changed: ArrayLike) -> "Distance":
        """From classes and confidences before and after."""
        first, second = np.asarray(confidence, dtype=np.float64), np.asarray(changed, dtype=np.float64)
        apart = np.abs(second - first)
        return cls(
            n=len(first), same=float(np.mean(np.asarray(classes) == np.asarray(other))), mean=float(apart.mean()),
            largest=float(apart.max()), before=float(first.mean()), after=float(second.mean()),
        )  # fmt: skip

    def line(self) -> str:
        """`on 100 photos: same class 97.0%, ...`."""
        return (
            f"on {self.n} photos: same class {self.same:.1%}, confidence differs by {100 * self.mean:.2f} points on "
            f"average and {100 * self.largest:.1f} at most, mean confidence {self.before:.1%} before, {self.after:.1%} "
            "after"
        )
