"""Penalty: keep the logits within the zero-shot range while tuning (Murugesan et al., ECCV 2024)."""

import torch
from torch import Tensor

from ._api import Adapted, adapter
from ._batch import Batch, check_tuning, marginal_entropy
from ._tuner import tune_context


@adapter(
    "penalty",
    title="Penalty", cite="Murugesan et al., ECCV 2024", place=60, tunes_text=True, one_template=True, under_tda=True,
)  # fmt: skip
def penalty(batch: Batch, *, weight: float = 10.0, steps: int = 1, lr: float = 5e-3, rho: float = 0.1) -> Adapted:
    """TPT with a hinge on logits that leave the weak view's zero-shot range.

    L = L_TPT + weight * mean over selected views and classes of relu(z - max_zs) + relu(min_zs - z); the bounds are
    those of view 0 before adaptation, detached (the authors' code: the most confident view, not detached). weight: 10
    on all sets.
    """
    check_tuning(steps, lr, rho, weight)

    def objective(logits_BnK: Tensor, weak_BK: Tensor) -> Tensor:
        low = weak_BK.amin(dim=-1)[:, None, None]
        high = weak_BK.amax(dim=-1)[:, None, None]
        # The weak view itself must not exceed its own bounds because a different product rounds differently.
        slack = 16 * torch.finfo(weak_BK.dtype).eps * torch.maximum(low.abs(), high.abs())
        outside = (logits_BnK - high - slack).relu() + (low - logits_BnK - slack).relu()
        return marginal_entropy(logits_BnK) + weight * outside.mean(dim=(1, 2))

    return tune_context(batch, steps=steps, lr=lr, rho=rho, objective=objective)
