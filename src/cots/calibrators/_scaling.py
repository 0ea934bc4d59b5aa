"""What `none`, `ts`, `sals` and `cots` share: the softmax of view 0 at a temperature."""

from __future__ import annotations

import torch
from torch import Tensor

from .._numeric import gaps
from ._api import Calibrated


def scaled_softmax(logits: Tensor, tau: Tensor) -> Tensor:
    """softmax(z / tau); `tau` has one axis or more fewer than `logits` and applies to what follows."""
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


def scaled(adapted_BVK: Tensor, tau_B: Tensor, views_Bn: Tensor | None = None) -> Calibrated:
    """p = softmax(z_adapted[0] / tau): the arg max is that of the adapted logits, whatever tau is."""
    weak_BK = adapted_BVK[:, 0]
    prediction_B = weak_BK.argmax(1)
    probabilities_BK = pin_argmax(scaled_softmax(weak_BK, tau_B), prediction_B)
    return Calibrated.of(probabilities_BK, prediction=prediction_B, tau=tau_B, views=views_Bn)
