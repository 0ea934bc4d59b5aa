"""Which views fit the temperature: the set Omega of Eq. (5)."""

from __future__ import annotations

import torch
from torch import Tensor

from .._errors import InputError
from .._numeric import by_entropy
from ._settings import choice, fraction, no_effect, whole

POOLS = ("top_strong", "top", "all_strong", "weak")


def select(adapted_BVK: Tensor, *, views: str = "top_strong", k: int | None = None, rho: float = 0.1) -> Tensor:
    """Omega (B,n): the views that fit the temperature, lowest entropy after adaptation first.

    `views`: "top_strong" (the paper), the k strong views with the lowest entropy, k = max(1, int((V-1) * rho));
    "top", the same with view 0 competing, k = max(1, int(V * rho)); "all_strong"; "weak", view 0 alone.
    With V = 1 there is no strong view and view 0 takes its place.
    """
    choice("views", views, POOLS)
    fraction("rho", rho)
    if views in ("weak", "all_strong"):
        no_effect("k", k, None, f"views={views!r}")
        no_effect("rho", rho, 0.1, f"views={views!r}")
    elif k is not None:
        no_effect("rho", rho, 0.1, f"k={k!r}")
    total = adapted_BVK.shape[1]
    first = 0 if views == "top" or total == 1 else 1
    if views == "weak":
        return torch.zeros(len(adapted_BVK), 1, dtype=torch.long, device=adapted_BVK.device)
    available = total - first
    if views == "all_strong":
        k = available
    elif k is None:
        k = max(1, int(available * rho))
    whole("k", k, 1)
    if k > available:
        kind = "views" if first == 0 else "strong views"
        raise InputError(f"k={k} is more than the {available} {kind} available; give k={available} or less.")
    # Selection sees the strong views alone, so its indices start at 0 for view 1: shift them back.
    return (by_entropy(adapted_BVK[:, first:]) + first)[:, :k].contiguous()
