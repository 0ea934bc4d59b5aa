"""The context tuner: TPT and its regularised relatives are this loop with another term.

Shape letters: B samples, V views, n selected views, K classes, D embedding width, M context tokens, W text width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .._errors import InputError
from .._numeric import take
from ..prompts import Task
from ._api import Adapted, zero_shot_logits
from ._objective import check_tuning, confident_views, marginal_entropy
from ._optim import AdamW

# Logits of the selected views and view 0's zero-shot logits -> loss of each sample.
Objective = Callable[[Tensor, Tensor], Tensor]

# Packed text tokens held at a time; about 0.4 MB of activations each for a ViT-B/16-sized tower.
TOKEN_BUDGET = {"cpu": 4096, "cuda": 16384}


@dataclass(frozen=True, kw_only=True)
class TextTerm:
    """A regulariser on the text features alone, added to the entropy loss as weight * value.

    value: text features `(..., K, D)` -> `(...)`. At the first step the text features are the same for every sample,
    so value and gradient are constants of the task.
    relative: scale by the sample's entropy over the term's own value, both detached (SoC).
    """

    name: str
    value: Callable[[Tensor], Tensor]
    weight: float
    relative: bool = False

    def scale(self, loss_B: Tensor, value_B: Tensor) -> Tensor:
        if not self.relative:
            return torch.full_like(loss_B, self.weight)
        value_B = value_B.detach().expand_as(loss_B)
        safe = torch.where(value_B > 0, value_B, 1.0)
        return torch.where(value_B > 0, self.weight * loss_B.detach() / safe, 0.0)

    def at_start(self, task: Task) -> tuple[Tensor, Tensor]:
        """Value and gradient `(K,D)` at the task's initial text features."""

        def compute() -> tuple[Tensor, Tensor]:
            text = task.text_features.clone().requires_grad_()
            with torch.enable_grad():
                value = self.value(text)
                gradient = torch.autograd.grad(value, text, materialize_grads=True)[0] if value.requires_grad else None
            return value.detach(), torch.zeros_like(text) if gradient is None else gradient

        return task.constant(("text term", self.name), compute)


def tune_context(
    features_BVD: Tensor,
    task: Task,
    *,
    steps: int,
    lr: float,
    rho: float,
    objective: Objective | None = None,
    term: TextTerm | None = None,
) -> Adapted:
    """Tune the context of each sample on its own confident views; logits of all views before and after."""
    check_tuning(steps, lr, rho, term.weight if term else None)
    if task.initial_context.shape[0] == 0:
        raise InputError(f"template {task.template!r} has no word before {{}}: there is no context to tune.")
    before = zero_shot_logits(features_BVD, task)
    # Once selected the views stay, however many steps follow.
    chosen = confident_views(before, rho)
    after = before.clone()
    if steps > 0:
        budget = TOKEN_BUDGET.get(task.device.type, TOKEN_BUDGET["cpu"])
        size = max(1, budget // task.tower.tokens_per_sample)
        for rows in torch.arange(len(before)).split(size):
            rows = slice(int(rows[0]), int(rows[-1]) + 1)
            selected = take(features_BVD[rows], chosen[rows])
            text = _tuned_text(selected, before[rows, 0], task, steps, lr, objective or _entropy, term)
            after[rows] = task.logit_scale * features_BVD[rows] @ text.mT
    return Adapted(zero_shot_logits=before, logits=after)


def _entropy(logits_BnK: Tensor, weak_BK: Tensor) -> Tensor:
    return marginal_entropy(logits_BnK)


def _tuned_text(
    selected_BnD: Tensor,
    weak_BK: Tensor,
    task: Task,
    steps: int,
    lr: float,
    objective: Objective,
    term: TextTerm | None,
) -> Tensor:
    B = len(selected_BnD)
    context = task.initial_context.expand(B, -1, -1)
    optimiser = AdamW(lr=lr)

    def loss_of(text_BKD: Tensor) -> Tensor:
        return objective(task.logit_scale * selected_BnD @ text_BKD.mT, weak_BK)

    for step in range(steps):
        if step == 0:
            with torch.enable_grad():
                text = task.text_features.expand(B, -1, -1).clone().requires_grad_()
                loss = loss_of(text)
                cotangent = torch.autograd.grad(loss.sum(), text)[0]
            if term is not None:
                value, gradient = term.at_start(task)
                cotangent = cotangent + term.scale(loss, value)[:, None, None].detach() * gradient
            gradient = task.pull_back(cotangent)
        else:
            with torch.enable_grad():
                leaf = context.detach().clone().requires_grad_()
                text = task.features_under(leaf)
                loss = loss_of(text)
                if term is not None:
                    value = term.value(text)
                    loss = loss + term.scale(loss, value) * value
                gradient = torch.autograd.grad(loss.sum(), leaf)[0]
        context = optimiser.step(context, gradient)
    with torch.no_grad():
        return task.features_under(context)
