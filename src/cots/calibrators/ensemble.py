"""Omega, the views in an ensemble or a fit, and the weak-strong ensemble, Eq. (6)."""

import torch
from torch import Tensor

from .._arrays import by_entropy, take
from .._errors import InputError, check_one_of, check_share, check_unused, whole_number
from ._api import ALPHA_REMEDY, Calibrated, calibrator
from ._solver import scaled_softmax

POOLS = ("top_strong", "top", "all_strong", "weak")


@calibrator("ensemble", title="Ensemble", cite="the CoTS paper, Eq. 6", place=50)
def ensemble(
    adapted_BVK: Tensor,
    zero_shot_BVK: Tensor,
    *,
    alpha: float | None = None,
    views: str = "top_strong",
    k: int | None = None,
    rho: float = 0.1,
) -> Calibrated:
    """The weak-strong ensemble alone, Eq. (6): E-CoTS with tau = 1.

    p = alpha * softmax(z[0]) + (1 - alpha) * mean over Omega of softmax(z[i]), z the adapted logits.
    """
    omega_Bn = select(adapted_BVK, views=views, k=k, rho=rho)
    return weak_strong(adapted_BVK, adapted_BVK.new_ones(len(adapted_BVK)), omega_Bn, alpha)


def weak_strong(adapted_BVK: Tensor, tau_B: Tensor, omega_Bn: Tensor, alpha: float | None) -> Calibrated:
    """Eq. (6) and (7): view 0 and the mean of Omega, both at temperature tau, mixed by alpha.

    A negative alpha can make a probability negative; it is then set to zero and the rest rescaled to sum to one.
    """
    if adapted_BVK.shape[2] == 1:
        alpha = 1.0
    if alpha is None:
        raise InputError(f"The weak-strong ensemble needs its weight alpha: {ALPHA_REMEDY}.")
    weak_BK = scaled_softmax(adapted_BVK[:, 0], tau_B)
    strong_BK = scaled_softmax(take(adapted_BVK, omega_Bn), tau_B).mean(1)
    p_BK = alpha * weak_BK + (1 - alpha) * strong_BK
    if alpha < 0:
        p_BK = p_BK.clamp(min=0)
        p_BK = p_BK / p_BK.sum(1, keepdim=True)
    return Calibrated.of(p_BK, tau=tau_B, alpha=alpha, views=omega_Bn)


def select(adapted_BVK: Tensor, *, views: str = "top_strong", k: int | None = None, rho: float = 0.1) -> Tensor:
    """Omega (B,n): the views used to fit the temperature, lowest entropy after adaptation first.

    `views`: "top_strong" (the paper), the k strong views with the lowest entropy, k = max(1, int((V-1) * rho));
    "top", the same among all views, k = max(1, int(V * rho)); "all_strong"; "weak", only view 0.
    With V = 1 there is no strong view, and view 0 is used.
    """
    check_one_of("views", views, POOLS)
    check_share("rho", rho)
    if views in ("weak", "all_strong"):
        check_unused("k", k, None, f"views={views!r}")
        check_unused("rho", rho, 0.1, f"views={views!r}")
    elif k is not None:
        check_unused("rho", rho, 0.1, f"k={k!r}")
    if views == "weak":
        return torch.zeros(len(adapted_BVK), 1, dtype=torch.long, device=adapted_BVK.device)
    total = adapted_BVK.shape[1]
    first = 0 if views == "top" or total == 1 else 1
    available = total - first
    if views == "all_strong":
        k = available
    elif k is None:
        k = max(1, int(available * rho))
    if whole_number("k", k, 1) > available:
        kind = "views" if first == 0 else "strong views"
        raise InputError(f"k={k} exceeds the {available} available {kind}; use k={available} or less.")
    return (by_entropy(adapted_BVK[:, first:]) + first)[:, :k].contiguous()
