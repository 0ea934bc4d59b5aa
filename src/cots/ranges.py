"""The range of a confidence under other random views of the same photo."""

from collections.abc import Callable

import torch
from torch import Tensor

from .adapters import Adapted
from .calibrators import Calibrated

RESAMPLES = 40  # of the strong views
RESAMPLED_AT_ONCE = 2**24  # logits in memory while resampling
WIDEN = 3.0  # chosen to cover 90% of photos with a confidence below 95%; see docs/acting.md


def confidence_range(
    adapted: Adapted, confidence_B: Tensor, calibrate: Callable[[Tensor, Tensor], Calibrated]
) -> Tensor:
    """The 90% range (B,2): logit(confidence) -+ WIDEN * 1.645 standard deviations under resampled strong views.

    Selection and calibration are repeated, adaptation is not. Another draw of views also has another centre and
    tunes another prompt; WIDEN accounts for both, and docs/acting.md has the measured coverage.
    """
    views, classes = adapted.logits.shape[1:]
    if views == 1:
        return torch.stack([confidence_B, confidence_B], 1)
    draws = torch.Generator().manual_seed(0)
    index_RV = torch.randint(1, views, (RESAMPLES, views), generator=draws)
    index_RV[:, 0] = 0  # the weak view is not random
    index_RV = index_RV.to(adapted.logits.device)
    size = max(1, RESAMPLED_AT_ONCE // (RESAMPLES * views * classes))
    spreads = []
    for logits, zero_shot in zip(adapted.logits.split(size), adapted.zero_shot_logits.split(size), strict=True):
        again = calibrate(logits[:, index_RV].flatten(0, 1), zero_shot[:, index_RV].flatten(0, 1)).confidence
        spreads.append(_logit(again).unflatten(0, (len(logits), RESAMPLES)).std(1))
    spread_B = WIDEN * 1.645 * torch.cat(spreads)
    low, high = (_logit(confidence_B) + side * spread_B for side in (-1, 1))
    return torch.stack([low.sigmoid(), high.sigmoid()], 1)


def _logit(confidence: Tensor) -> Tensor:
    return confidence.double().logit(eps=1e-6)
