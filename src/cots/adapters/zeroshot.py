"""Zero-shot: no adaptation."""

from __future__ import annotations

from torch import Tensor

from ..prompts import Task
from ._api import Adapted, adapter, zero_shot_logits


@adapter("zeroshot")
def zeroshot(features_BVD: Tensor, task: Task) -> Adapted:
    """The backbone as it is: adapted logits equal the zero-shot ones (Eq. 1)."""
    logits = zero_shot_logits(features_BVD, task)
    return Adapted(zero_shot_logits=logits, logits=logits.clone())
