"""AdamW on batches of independent samples."""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(kw_only=True)
class AdamW:
    """The update of torch.optim.AdamW, elementwise, so one call updates a whole batch of samples.

    The first step is value * (1 - lr * weight_decay) - lr * g / (|g| + eps): nearly a sign step.
    """

    lr: float
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    _moments: tuple[Tensor, Tensor] | None = field(default=None, init=False)
    _count: int = field(default=0, init=False)

    def step(self, value: Tensor, gradient: Tensor) -> Tensor:
        b1, b2 = self.betas
        first, second = (1 - b1) * gradient, (1 - b2) * gradient.square()
        if self._moments is not None:
            first, second = b1 * self._moments[0] + first, b2 * self._moments[1] + second
        self._moments = first, second
        self._count += 1
        first_hat = first / (1 - b1**self._count)
        second_hat = second / (1 - b2**self._count)
        return value * (1 - self.lr * self.weight_decay) - self.lr * first_hat / (second_hat.sqrt() + self.eps)
