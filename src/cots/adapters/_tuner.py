"""The context tuner: TPT and its regularised relatives run this loop with different terms.

Shape letters: B samples, V views, n selected views, K classes, D embedding width, M context tokens, W text width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._adam import AdamW
from .._errors import InputError
from ..accelerate import accelerator
from ..prompts import Task
from ._api import Adapted, adapter
from ._batch import Batch, Objective, check_tuning, entropy_objective


@dataclass(frozen=True, kw_only=True)
class TextTerm:
    """A regulariser of the text features, added to the entropy loss as weight * value.

    value: text features `(..., K, D)` -> `(...)`. At the first step all samples have the same text features, so value
    and gradient are constants of the task. relative: scale by entropy / value, both detached (SoC).
    """

    name: str
    value: Callable[[Tensor], Tensor]
    weight: float
    relative: bool = False

    def scale(self, loss_B: Tensor, value_B: Tensor) -> Tensor:
        """The factor of the term, per sample."""
        if not self.relative:
            return torch.full_like(loss_B, self.weight)
        value_B = value_B.detach().expand_as(loss_B)
        safe = torch.where(value_B > 0, value_B, 1.0)
        return torch.where(value_B > 0, self.weight * loss_B.detach() / safe, 0.0)

    def at_start(self, task: Task) -> tuple[Tensor, Tensor]:
        """Value, and gradient `(M,W)` with respect to the context, at the task's initial context."""

        def compute() -> tuple[Tensor, Tensor]:
            with torch.enable_grad():
                text = task.text_features.clone().requires_grad_()
                value = self.value(text)
                # With one class, a term can be a constant.
                cotangent = torch.autograd.grad(value, text)[0] if value.requires_grad else torch.zeros_like(text)
            return value.detach(), task.pull_back(cotangent[None])[0]

        return task.constant(("text term", self.name), compute)


def text_term(name: str, *, weight: float, relative: bool = False, **described: Any):
    """Register TPT with a regulariser of the text features; the decorated function computes and documents the term.

    weight: the default. relative: see `TextTerm`. described: as for `cots.adapter`.
    """

    def add(value: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        default = weight

        def tuner(
            batch: Batch, *, weight: float = default, steps: int = 1, lr: float = 5e-3, rho: float = 0.1
        ) -> Adapted:
            term = TextTerm(name=name, value=value, weight=weight, relative=relative)
            return tune_context(batch, steps=steps, lr=lr, rho=rho, term=term)

        tuner.__doc__ = value.__doc__
        adapter(name, tunes_text=True, one_template=True, **described)(tuner)
        return value

    return add


def tune_context(
    batch: Batch, *, steps: int, lr: float, rho: float, objective: Objective | None = None, term: TextTerm | None = None
) -> Adapted:
    """Tune the context of each sample on its confident views; returns the logits of all views before and after.

    objective: replaces the entropy of Eq. 2. term: added to the loss.
    """
    task, before = batch.task, batch.zero_shot
    check_tuning(steps, lr, rho, term.weight if term else 0.0)
    check_context(task)
    if steps == 0 or len(before) == 0:
        return untuned(batch)
    selected, weak = batch.selected(rho), before[:, 0]
    # The entropy gradient is the same for TPT and for every relative with a term on the text features.
    loss, first = batch.entropy_gradient(rho) if objective is None else batch.gradient(selected, objective)
    objective = objective or entropy_objective
    if term is not None:
        value, constant = term.at_start(task)
        first = first + term.scale(loss, value)[:, None, None] * constant
    tokens = accelerator().batch_limit("tuned tokens" if steps == 1 else "gradient tokens", task.device)
    size = max(1, tokens // task.tower.tokens_per_sample)

    def tuned(rows: slice) -> Tensor:
        """Text features after `steps` updates, of which the first uses the gradient at the start."""
        optimiser, gradient = AdamW(lr=lr), first[rows]
        context = optimiser.step(task.initial_context.expand_as(gradient), gradient)
        for _ in range(steps - 1):
            with torch.enable_grad():
                leaf = context.detach().clone().requires_grad_()
                text = task.features_under(leaf)
                loss = objective(task.logit_scale * selected[rows] @ text.mT, weak[rows])
                if term is not None:
                    value = term.value(text)
                    loss = loss + term.scale(loss, value) * value
                gradient = torch.autograd.grad(loss.sum(), leaf)[0]
            context = optimiser.step(context, gradient)
        return task.tuned_features(context)

    return under_text(batch, tuned, size)


def check_context(task: Task) -> None:
    """Refuse a template without words to tune."""
    if task.initial_context.shape[0] == 0:
        raise InputError(f"template {task.template!r} has no word before {{}}, so there is no context to tune.")


def untuned(batch: Batch) -> Adapted:
    """The result without a step, or without a sample."""
    before = batch.zero_shot

    def tuned_text() -> Tensor:
        return batch.task.text_features.expand(len(before), -1, -1)

    return Adapted(zero_shot_logits=before, logits=before.clone(), tuned_text=tuned_text)


def under_text(batch: Batch, tuned: Callable[[slice], Tensor], size: int) -> Adapted:
    """The result under the text features `tuned(rows)` `(B,K,D)` of the samples in `rows`, at most `size` at a time."""
    parts = [slice(i, i + size) for i in range(0, len(batch), size)]

    def tuned_text() -> Tensor:
        return torch.cat([tuned(rows) for rows in parts])

    logits = torch.cat([batch.task.logit_scale * batch.features[rows] @ tuned(rows).mT for rows in parts])
    return Adapted(zero_shot_logits=batch.zero_shot, logits=logits, tuned_text=tuned_text)
