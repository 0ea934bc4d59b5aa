"""CoTS, confidence-based temperature scaling: the paper's Eq. (5)."""

from torch import Tensor

from .._arrays import take
from ._api import Calibrated, calibrator
from ._solver import Fit, fit_tau
from .ensemble import select


@calibrator("cots", title="CoTS", cite="the CoTS paper, Eq. 5", place=30, headline=True)
def cots(
    adapted_BVK: Tensor,
    zero_shot_BVK: Tensor,
    *,
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
    """CoTS: p = softmax(z_adapted[0] / tau), with tau fitted to the zero-shot confidences of confident strong views.

    tau = arg min 1/|Omega| * sum over i in Omega of (max softmax(z_adapted[i] / tau) - max softmax(z_zs[i]))^2

    solver: "adam", on log tau from log t0, `steps` steps at rate `lr`, last iterate (the paper); "exact", a search.
    views, k, rho: Omega, see `select`. loss: "l2" (the paper), "l1", "huber" (with `huber_delta`) or "kl".
    """
    fit = Fit(solver=solver, loss=loss, huber_delta=huber_delta, steps=steps, lr=lr, t0=t0)
    omega_Bn = select(adapted_BVK, views=views, k=k, rho=rho)
    tau_B = fit_tau(take(adapted_BVK, omega_Bn), take(zero_shot_BVK, omega_Bn), fit)  # Eq. (5)
    return Calibrated.scaled(adapted_BVK, tau_B, omega_Bn)
