"""What the tuners minimise, on which views, and with which optimiser."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .._arrays import by_entropy
from .._checks import share, whole_number
from .._errors import InputError


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


def check_tuning(steps: int, lr: float, rho: float, weight: float = 0.0) -> None:
    """Check the settings that every tuner shares."""
    whole_number("steps", steps)
    if not (0 <= lr < float("inf")):
        raise InputError(f"lr must be a finite number >= 0, not {lr!r}.")
    share("rho", rho)
    if not (-float("inf") < weight < float("inf")):
        raise InputError(f"weight must be finite, not {weight!r}.")


@dataclass(kw_only=True)
class AdamW:
    """The update of torch.optim.AdamW, elementwise, so a batch of episodes is one call.

    On the first step it is value * (1 - lr * weight_decay) - lr * g / (|g| + eps): nearly a sign step.
    """

    lr: float
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    _moments: tuple[Tensor, Tensor] | None = field(default=None, init=False)
    _count: int = field(default=0, init=False)

    def step(self, value: Tensor, gradient: Tensor) -> Tensor:
        b1, b2 = self.betas
        first, second = self._moments or (torch.zeros_like(gradient), torch.zeros_like(gradient))
        first = b1 * first + (1 - b1) * gradient
        second = b2 * second + (1 - b2) * gradient.square()
        self._moments = first, second
        self._count += 1
        first_hat = first / (1 - b1**self._count)
        second_hat = second / (1 - b2**self._count)
        return value * (1 - self.lr * self.weight_decay) - self.lr * first_hat / (second_hat.sqrt() + self.eps)
