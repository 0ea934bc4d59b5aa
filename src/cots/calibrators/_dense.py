"""Calibration of dense predictions: every pixel or box is a sample of its own.

Shape letters: B images, V views, K classes, P places (the pixels or boxes of an image, in one axis).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._errors import InputError
from ._api import COLUMNS, Calibrated

LOGITS_AT_ONCE = 2**24  # held while places are calibrated


def calibrate_places(
    adapted: Tensor, zero_shot: Tensor, mask: Any, calibrate: Callable[[Tensor, Tensor], Calibrated]
) -> Calibrated:
    """Calibrate logits (B,V,K,...) place by place; `calibrate` takes and returns samples (N,V,K).

    The result's columns have the axes of the places at their end: probabilities (B,K,...), tau (B,...), and so on.
    Where `mask` (B,...) is False, floats are NaN, and prediction and views are -1.
    """
    images, views, classes, *places = adapted.shape
    kept = _mask(mask, (images, *places), adapted.device).flatten()
    if not bool(kept.any()):
        raise InputError("mask leaves no place to calibrate; it is True where a place counts.")
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


def _mask(mask: Any, shape: tuple[int, ...], device: torch.device) -> Tensor:
    if mask is None:
        return torch.ones(shape, dtype=torch.bool, device=device)
    given = mask if isinstance(mask, Tensor) else torch.from_numpy(np.array(mask))
    if tuple(given.shape) != shape:
        raise InputError(f"mask must have the images and places of the logits, {shape}, not {tuple(given.shape)}.")
    if given.dtype != torch.bool:
        raise InputError(f"mask must be of bool, True where a place counts, not {given.dtype}.")
    return given.to(device)
