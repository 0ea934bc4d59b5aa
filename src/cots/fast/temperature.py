"""The temperature of Eq. (5) by kernels: all steps of the Adam solver, and the exact solver, for the squared loss."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..calibrators import Fit, Objective, halvings
from . import kernels


def fit_tau(objective: Objective, fit: Fit, plain: Callable[[Objective, Fit], Tensor]) -> Tensor:
    """What `plain` gives, by a kernel where there is one for this loss, precision and device."""
    curve, c = objective.curve, objective.target
    if fit.loss == "l2" and c.top.dtype == torch.float32 and kernels.usable(c.top):
        return kernels.adam(curve.beyond, curve.runner_up, c.top, c.miss, steps=fit.steps, lr=fit.lr, start=fit.start)
    return plain(objective, fit)


def search_tau(
    adapted: Tensor, zero_shot: Tensor, fit: Fit, adam: Tensor, plain: Callable[[Tensor, Tensor, Fit, Tensor], Tensor]
) -> Tensor:
    """What `plain` gives, likewise."""
    if fit.loss != "l2" or not kernels.usable(adam):
        return plain(adapted, zero_shot, fit, adam)
    return kernels.exact(adapted, zero_shot, adam, bits=halvings(fit, adam.dtype))
