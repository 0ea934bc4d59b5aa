"""TPS: test-time prototype shifting (Sui et al., WACV 2025)."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from .._arrays import take
from ..prompts import Task
from ._api import Adapted, adapter
from ._start import Start, check_tuning, confident_views, marginal_entropy
from ._tuner import AdamW

VALUE_BUDGET = 2**26  # shift values held at a time


@adapter("tps", title="TPS", cite="Sui et al., WACV 2025", place=90, tunes_text=True)
def tps(start: Start, *, steps: int = 1, lr: float = 5e-3, rho: float = 0.1, reselect: bool = True) -> Adapted:
    """Shift each class prototype instead of the prompt; the text tower is not run again.

    t_k' = normalise(t_k + s_k), s_k = 0 at the start of every episode, tuned by AdamW on the loss of TPT (Eq. 2).
    reselect: select the confident views again before every step, as published; otherwise only before the first.
    """
    check_tuning(steps, lr, rho)
    task, before = start.task, start.zero_shot
    if steps == 0:
        same = lambda: task.text_features.expand(len(before), -1, -1)  # noqa: E731
        return Adapted(zero_shot_logits=before, logits=before.clone(), tuned_text=same)
    size = max(1, VALUE_BUDGET // task.text_features.numel())

    def texts() -> Iterator[Tensor]:
        pairs = zip(start.inputs.split(size), start.selected(rho).split(size), strict=True)
        return (_shifted(*pair, task, steps, lr, rho if reselect else None) for pair in pairs)

    pairs = zip(start.inputs.split(size), texts(), strict=True)
    after = [task.logit_scale * features @ text.mT for features, text in pairs]
    return Adapted(zero_shot_logits=before, logits=torch.cat(after), tuned_text=lambda: torch.cat([*texts()]))


def _shifted(
    features_BVD: Tensor, selected_BnD: Tensor, task: Task, steps: int, lr: float, rho: float | None
) -> Tensor:
    """Prototypes `(B,K,D)` after `steps` updates; with `rho`, views are selected again from the second step on."""
    shift = torch.zeros_like(task.text_features).expand(len(selected_BnD), -1, -1)
    optimiser = AdamW(lr=lr)
    for step in range(steps):
        if step and rho is not None:
            text = F.normalize(task.text_features + shift, dim=-1)
            selected_BnD = take(features_BVD, confident_views(task.logit_scale * features_BVD @ text.mT, rho))
        with torch.enable_grad():
            leaf = shift.detach().clone().requires_grad_()
            text = F.normalize(task.text_features + leaf, dim=-1)
            loss = marginal_entropy(task.logit_scale * selected_BnD @ text.mT)
            gradient = torch.autograd.grad(loss.sum(), leaf)[0]
        shift = optimiser.step(shift, gradient)
    return F.normalize(task.text_features + shift, dim=-1)
