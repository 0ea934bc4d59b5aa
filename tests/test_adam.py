import pytest
import torch

from cots._adam import AdamW


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("eps", [1e-8, 1e-3])
def test_every_row_takes_the_steps_of_torch(weight_decay, eps):
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    rows = [row.clone().requires_grad_() for row in value]
    expected = [torch.optim.AdamW([row], lr=0.05, weight_decay=weight_decay, eps=eps) for row in rows]
    optimiser = AdamW(lr=0.05, weight_decay=weight_decay, eps=eps)
    for _ in range(10):
        gradient = torch.randn(3, 4, dtype=torch.float64, generator=generator)
        value = optimiser.step(value, gradient)
        for row, oracle, part in zip(rows, expected, gradient, strict=True):
            row.grad = part
            oracle.step()
    torch.testing.assert_close(value, torch.stack(rows).detach(), rtol=1e-12, atol=1e-12)
