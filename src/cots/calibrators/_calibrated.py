"""The result of a calibrator, and the softmax at a temperature that most of them end with."""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from .._arrays import gaps


@dataclass(frozen=True, eq=False)
class Calibrated:
    """What a calibrator returns: torch tensors or numpy arrays, like the logits; without B for one sample.

    probabilities (B,K); prediction (B,), the class; confidence (B,), its probability; tau (B,), the temperature, 1
    where the method has none; alpha, the ensemble's weight, None where there is no ensemble; views (B,n), the views in
    Omega (0 weak, 1 to V-1 strong), lowest entropy first, n = 0 where the method selects none; method, its name.
    """

    probabilities: Any
    prediction: Any
    confidence: Any
    tau: Any
    alpha: float | None
    views: Any
    method: str = ""

    @classmethod
    def of(
        cls,
        probabilities_BK: Tensor,
        *,
        prediction: Tensor | None = None,
        tau: Tensor | None = None,
        alpha: float | None = None,
        views: Tensor | None = None,
    ) -> Self:
        """A result from its probabilities; omitted columns take their neutral value."""
        samples = len(probabilities_BK)
        prediction = probabilities_BK.argmax(1) if prediction is None else prediction
        return cls(
            probabilities=probabilities_BK,
            prediction=prediction,
            confidence=probabilities_BK.gather(1, prediction[:, None])[:, 0],
            tau=probabilities_BK.new_ones(samples) if tau is None else tau,
            alpha=alpha,
            views=prediction.new_empty(samples, 0) if views is None else views,
        )

    @classmethod
    def scaled(cls, adapted_BVK: Tensor, tau_B: Tensor, views_Bn: Tensor | None = None) -> Self:
        """p = softmax(z_adapted[0] / tau): the arg max is that of the adapted logits, whatever tau is."""
        weak_BK = adapted_BVK[:, 0]
        prediction_B = weak_BK.argmax(1)
        probabilities_BK = pin_argmax(scaled_softmax(weak_BK, tau_B), prediction_B)
        return cls.of(probabilities_BK, prediction=prediction_B, tau=tau_B, views=views_Bn)


def scaled_softmax(logits: Tensor, tau: Tensor) -> Tensor:
    """softmax(z / tau); `tau` has the leading axes of `logits`."""
    return (gaps(logits) / -tau[(...,) + (None,) * (logits.ndim - tau.ndim)]).softmax(-1)


def pin_argmax(probabilities_BK: Tensor, prediction_B: Tensor) -> Tensor:
    """The same probabilities, with rivals that rounding has lifted to the predicted class one ulp below it.

    A high temperature can round two unequal logits to equal probabilities; the arg max must still be the logits'.
    """
    top_B1 = probabilities_BK.gather(1, prediction_B[:, None])
    moved_B1 = (probabilities_BK.argmax(1) != prediction_B)[:, None]
    below = torch.minimum(probabilities_BK, torch.nextafter(top_B1, torch.zeros_like(top_B1)))
    pinned = torch.where(moved_B1, below, probabilities_BK)
    return pinned.scatter(1, prediction_B[:, None], top_B1)
