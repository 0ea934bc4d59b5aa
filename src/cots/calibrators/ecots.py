"""E-CoTS, the weak-strong ensemble at the temperature of CoTS: the paper's Eq. (7)."""

from torch import Tensor

from .._arrays import take
from ._api import Calibrated, calibrator
from ._solver import Fit, fit_tau
from .ensemble import select, weak_strong


@calibrator("ecots", title="E-CoTS", cite="the CoTS paper, Eq. 7", place=40, headline=True)
def ecots(
    adapted_BVK: Tensor,
    zero_shot_BVK: Tensor,
    *,
    alpha: float | None = None,
    solver: str = "adam",
    views: str = "top_strong",
    k: int | None = None,
    rho: float = 0.1,
    loss: str = "l2",
    huber_delta: float = 0.1,
    steps: int = 50,
    lr: float = 0.1,
    t0: float = 1.0,
) -> Calibrated:
    """E-CoTS: view 0 and the mean of the strong views in Omega, each at the temperature of CoTS, mixed by alpha.

    p = alpha * softmax(z_adapted[0] / tau) + (1 - alpha) / |Omega| * sum over i in Omega of softmax(z_adapted[i] / tau)

    alpha: the mean similarity of the text features (`task.alpha`, `mean_similarity`; the paper) or a fixed number.
    The other settings are those of `cots`; the same Omega is used for the temperature and the mean.
    """
    fit = Fit(solver=solver, loss=loss, huber_delta=huber_delta, steps=steps, lr=lr, t0=t0)
    omega_Bn = select(adapted_BVK, views=views, k=k, rho=rho)
    tau_B = fit_tau(take(adapted_BVK, omega_Bn), take(zero_shot_BVK, omega_Bn), fit)  # Eq. (5)
    return weak_strong(adapted_BVK, tau_B, omega_Bn, alpha)  # Eq. (7)
