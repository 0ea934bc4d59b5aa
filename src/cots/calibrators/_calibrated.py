"""The result of a calibrator, and calibration of dense predictions place by place.

Shape letters: B samples or images, V views, K classes, P places (the pixels or boxes of an image, in one axis).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np
import torch
from torch import Tensor

from .._arrays import Arrays
from .._errors import InputError
from ._solver import pin_argmax, scaled_softmax

COLUMNS = ("probabilities", "prediction", "confidence", "tau", "views")
LOGITS_AT_ONCE = 2**24  # held while dense predictions are calibrated


@dataclass(frozen=True, eq=False, repr=False)
class Calibrated(Generic[Arrays]):
    """The result of a calibrator: torch tensors or numpy arrays, like the logits; without B for one sample.

    - probabilities: (B,K)
    - prediction, confidence: (B,), the class and its probability
    - tau: (B,), the temperature, 1 for methods without one
    - alpha: the weight of the ensemble, or None
    - views: (B,n), the views in Omega (0 weak, 1 to V-1 strong), lowest entropy first; n = 0 if none is selected
    - method: its name
    """

    probabilities: Arrays
    prediction: Arrays
    confidence: Arrays
    tau: Arrays
    alpha: float | None
    views: Arrays
    method: str = ""

    def __repr__(self) -> str:
        alpha = "" if self.alpha is None else f", alpha={self.alpha:.4g}"
        return f"Calibrated(method={self.method!r}, probabilities of shape {tuple(self.probabilities.shape)}{alpha})"

    @classmethod
    def of(
        cls, probabilities_BK: Tensor, *, prediction: Tensor | None = None, tau: Tensor | None = None,
        alpha: float | None = None, views: Tensor | None = None,
    ) -> "Calibrated[Tensor]":  # fmt: skip
        """A result from its probabilities, with neutral values for omitted columns."""
        samples = len(probabilities_BK)
        prediction = probabilities_BK.argmax(1) if prediction is None else prediction
        return Calibrated(
            probabilities=probabilities_BK,
            prediction=prediction,
            confidence=probabilities_BK.gather(1, prediction[:, None])[:, 0],
            tau=probabilities_BK.new_ones(samples) if tau is None else tau,
            alpha=alpha,
            views=prediction.new_empty(samples, 0) if views is None else views,
        )

    @classmethod
    def scaled(cls, adapted_BVK: Tensor, tau_B: Tensor, views_Bn: Tensor | None = None) -> "Calibrated[Tensor]":
        """p = softmax(z_adapted[0] / tau); its arg max is that of the adapted logits for every tau."""
        weak_BK = adapted_BVK[:, 0]
        prediction_B = weak_BK.argmax(1)
        probabilities_BK = pin_argmax(scaled_softmax(weak_BK, tau_B), prediction_B)
        return cls.of(probabilities_BK, prediction=prediction_B, tau=tau_B, views=views_Bn)


def each_place(
    adapted: Tensor, zero_shot: Tensor, mask: Any, calibrate: Callable[[Tensor, Tensor], Calibrated]
) -> Calibrated:
    """Calibrate dense logits (B,V,K,...), each pixel or box as a sample of its own; `calibrate` takes samples (N,V,K).

    The columns of the result end with the axes of the places: probabilities (B,K,...), tau (B,...), and so on. Where
    `mask` (B,...) is False, floats are NaN, and prediction and views are -1.
    """
    images, views, classes, *places = adapted.shape
    shape = (images, *places)
    if mask is None:
        mask = torch.ones(shape, dtype=torch.bool)
    elif not isinstance(mask, Tensor):
        mask = torch.from_numpy(np.array(mask))
    if tuple(mask.shape) != shape:
        raise InputError(f"mask must have the images and places of the logits, {shape}, not {tuple(mask.shape)}.")
    if mask.dtype != torch.bool:
        raise InputError(f"mask must be boolean, True where a place counts, not {mask.dtype}.")
    kept = mask.to(adapted.device).flatten()
    if not bool(kept.any()):
        raise InputError("mask is False everywhere; set it to True for the places to calibrate.")
    flat = [logits.flatten(3).permute(0, 3, 1, 2).reshape(-1, views, classes)[kept] for logits in (adapted, zero_shot)]
    size = max(1, LOGITS_AT_ONCE // (views * classes))
    parts = [calibrate(*pair) for pair in zip(*(logits.split(size) for logits in flat), strict=True)]

    def spread(name: str) -> Tensor:
        values = torch.cat([getattr(part, name) for part in parts])
        blank = float("nan") if values.is_floating_point() else -1
        whole = values.new_full((len(kept), *values.shape[1:]), blank)
        whole[kept] = values
        whole = whole.unflatten(0, (images, -1))  # (B,P) or (B,P,n)
        return (whole.mT if whole.ndim == 3 else whole).unflatten(-1, places)

    return replace(parts[0], **{name: spread(name) for name in COLUMNS})
