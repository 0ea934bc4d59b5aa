"""What the tuners minimise, and the views they minimise it on."""

from __future__ import annotations

import math

from torch import Tensor

from .._errors import InputError
from .._numeric import by_entropy


def confident_views(logits_BVK: Tensor, rho: float) -> Tensor:
    """Indices `(B,n)` of the n = max(1, int(rho V)) views with the lowest entropy; the weak view competes (Eq. 2)."""
    V = logits_BVK.shape[1]
    n = max(1, int(V * rho))
    return by_entropy(logits_BVK)[:, :n]


def marginal_entropy(logits_BnK: Tensor) -> Tensor:
    """Eq. 2: entropy `(B,)` of the mean probability of the selected views, in log space."""
    n = logits_BnK.shape[1]
    log_mean = logits_BnK.log_softmax(dim=-1).logsumexp(dim=1) - math.log(n)
    return -(log_mean.exp() * log_mean).sum(dim=-1)


def check_tuning(steps: int, lr: float, rho: float, weight: float | None = None) -> None:
    """Settings that every tuner shares."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise InputError(f"steps must be a whole number >= 0, not {steps!r}.")
    if not (0 <= lr < float("inf")):
        raise InputError(f"lr must be a finite number >= 0, not {lr!r}.")
    if not (0 < rho <= 1):
        raise InputError(f"rho is the share of views kept and must lie in (0, 1], not {rho!r}.")
    if weight is not None and not (-float("inf") < weight < float("inf")):
        raise InputError(f"weight must be finite, not {weight!r}.")
