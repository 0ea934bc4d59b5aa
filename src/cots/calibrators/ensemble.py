"""The weak-strong ensemble, Eq. (6)."""

from torch import Tensor

from .._arrays import take
from .._errors import InputError
from ._api import ALPHA_REMEDY, Calibrated, calibrator
from ._calibrated import scaled_softmax
from ._objective import select


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
