"""TPS: test-time prototype shifting (Sui et al., WACV 2025)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from .._adam import AdamW
from .._arrays import take
from ._api import Adapted, adapter
from ._batch import Batch, check_tuning, confident_views, marginal_entropy
from ._tuner import under_text, untuned

VALUE_BUDGET = 2**26  # shift values held at a time


@adapter("tps", title="TPS", cite="Sui et al., WACV 2025", place=90, tunes_text=True)
def tps(batch: Batch, *, steps: int = 1, lr: float = 5e-3, rho: float = 0.1, reselect: bool = True) -> Adapted:
    """Shift each class prototype instead of the prompt; the text tower is not run again.

    t_k' = normalise(t_k + s_k), s_k = 0 at the start of every episode, tuned by AdamW on the loss of TPT (Eq. 2).
    reselect: select the confident views again before every step, as published; otherwise only before the first.
    """
    check_tuning(steps, lr, rho)
    if steps == 0 or len(batch.features) == 0:
        return untuned(batch)
    task = batch.task
    selected, size = batch.selected(rho), max(1, VALUE_BUDGET // task.text_features.numel())

    def shifted(rows: slice) -> Tensor:
        """Prototypes after `steps` updates."""
        features_BVD, selected_BnD = batch.features[rows], selected[rows]
        shift = torch.zeros_like(task.text_features).expand(len(selected_BnD), -1, -1)
        optimiser = AdamW(lr=lr)
        for step in range(steps):
            if step and reselect:
                text = F.normalize(task.text_features + shift, dim=-1)
                selected_BnD = take(features_BVD, confident_views(task.logit_scale * features_BVD @ text.mT, rho))
            with torch.enable_grad():
                leaf = shift.detach().clone().requires_grad_()
                text = F.normalize(task.text_features + leaf, dim=-1)
                loss = marginal_entropy(task.logit_scale * selected_BnD @ text.mT)
                gradient = torch.autograd.grad(loss.sum(), leaf)[0]
            shift = optimiser.step(shift, gradient)
        return F.normalize(task.text_features + shift, dim=-1)

    return under_text(batch, shifted, size)
