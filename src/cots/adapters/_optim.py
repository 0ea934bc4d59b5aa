"""AdamW on plain tensors: the same update for every sample of a batch, each with its own moments."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


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
