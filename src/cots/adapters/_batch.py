"""A batch of samples before adaptation, with the work that adapters share; the loss and views of the tuners.

Shape letters: B samples, V views, n selected views, K classes, D embedding width, M context tokens, W text width.
"""

import math
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor

from .._arrays import as_tensor, by_entropy, check_finite, take
from .._errors import InputError, check_share, whole_number
from ..accelerate import accelerator
from ..prompts import Task

T = TypeVar("T")

# Logits of the selected views and zero-shot logits of view 0 -> loss per sample.
Objective = Callable[[Tensor, Tensor], Tensor]

# Features cached in half precision are off by about 1e-3, unnormalised encoder outputs by far more.
NORM_TOLERANCE = 0.02


class Batch:
    """The samples that an adapter takes, and work that is the same for all adapters: done once, when first needed.

    - features: `(B,V,D)`, L2-normalised, view 0 the weak one
    - pixels: `(B,V,3,H,W)`, in place of features for adapters that take pixels
    - task: their task
    - shared: whether several adapters use this batch
    """

    features: Tensor
    pixels: Tensor

    def __init__(self, inputs: Tensor, task: Task, takes: str = "features", *, shared: bool = False) -> None:
        inputs = inputs.detach().to(device=task.device, dtype=task.dtype)
        if inputs.is_inference():
            inputs = inputs.clone()  # autograd cannot save inference tensors
        self.inputs, self.task, self.takes, self.shared = inputs, task, takes, shared
        setattr(self, takes, inputs)
        self._values: dict[Hashable, Any] = {}

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def zero_shot(self) -> Tensor:
        """Eq. 1: z = v . t / tau_clip for every view and class, `(B,V,K)`. Do not change it in place."""
        return self.once("zero-shot", lambda: self.task.logit_scale * self.features @ self.task.text_features.T)

    def selected(self, rho: float) -> Tensor:
        """Features `(B,n,D)` of the confident views (Eq. 2), the same for all steps."""
        before = self.zero_shot
        return self.once(("selected", rho), lambda: take(self.features, confident_views(before, rho)))

    def entropy_gradient(self, rho: float) -> tuple[Tensor, Tensor]:
        """Loss `(B,)` of Eq. 2 at the initial context, and its gradient `(B,M,W)` with respect to the context."""
        selected = self.selected(rho)
        return self.once(("entropy gradient", rho), self.gradient, selected, entropy_objective)

    def gradient(self, selected_BnD: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
        """Loss `(B,)` and gradient `(B,M,W)` of any objective at the initial context."""
        task, losses, gradients = self.task, [], []
        size = max(1, accelerator().batch_limit("gradient values", task.device) // task.text_features.numel())
        for selected, weak in zip(selected_BnD.split(size), self.zero_shot[:, 0].split(size), strict=True):
            with torch.enable_grad():
                text = task.text_features.expand(len(selected), -1, -1).clone().requires_grad_()
                loss = objective(task.logit_scale * selected @ text.mT, weak)
                cotangent = torch.autograd.grad(loss.sum(), text)[0]
            losses.append(loss.detach())
            gradients.append(task.pull_back(cotangent))
        return torch.cat(losses), torch.cat(gradients)

    def once(self, key: Hashable, compute: Callable[..., T], *arguments: Any) -> T:
        """`compute(*arguments)`, evaluated once per batch."""
        if key not in self._values:
            self._values[key] = compute(*arguments)
        return self._values[key]


def checked_batch(inputs: Any, task: Task, takes: str) -> Batch:
    """A batch from a caller's inputs, of one sample or several, or an error that names what is wrong with them."""
    tensor = as_tensor(inputs, takes).to(device=task.device, dtype=task.dtype)
    if tensor.ndim == (2 if takes == "features" else 4):
        tensor = tensor[None]
    shape, width = tuple(tensor.shape), task.text_features.shape[1]
    if takes == "pixels" and (tensor.ndim != 5 or shape[1] == 0):
        raise InputError(f"pixels must have shape (V,3,H,W) or (B,V,3,H,W) with V >= 1, not {shape}.")
    if takes == "features" and (tensor.ndim != 3 or shape[2] != width or shape[1] == 0):
        shown = shape if tensor.ndim != 3 or shape[0] != 1 else shape[1:]
        raise InputError(
            f"features must have shape (V, {width}) or (B, V, {width}) for {task.backbone.name} with V >= 1, not "
            f"{shown}."
        )
    check_finite(tensor, takes)
    if takes == "features" and tensor.numel():
        norm = torch.linalg.vector_norm(tensor, dim=-1)
        worst = float(norm.flatten()[(norm - 1).abs().flatten().argmax()])
        if abs(worst - 1) > NORM_TOLERANCE:
            raise InputError(
                f"features must be L2-normalised, but one view has length {worst:.4g}. "
                "Use backbone.encode_images, or divide by the norm of the last axis."
            )
    return Batch(tensor, task, takes)


def confident_views(logits_BVK: Tensor, rho: float) -> Tensor:
    """Indices `(B,n)` of the n = max(1, int(rho V)) views with the lowest entropy, including the weak view (Eq. 2)."""
    V = logits_BVK.shape[1]
    n = max(1, int(V * rho))
    return by_entropy(logits_BVK)[:, :n]


def marginal_entropy(logits_BnK: Tensor) -> Tensor:
    """Eq. 2: entropy `(B,)` of the mean probability of the selected views, in log space."""
    n = logits_BnK.shape[1]
    log_mean = logits_BnK.log_softmax(dim=-1).logsumexp(dim=1) - math.log(n)
    return -(log_mean.exp() * log_mean).sum(dim=-1)


def entropy_objective(logits_BnK: Tensor, weak_BK: Tensor) -> Tensor:
    """TPT's loss, which ignores the weak view."""
    return marginal_entropy(logits_BnK)


def check_tuning(steps: int, lr: float, rho: float, weight: float = 0.0) -> None:
    """Check the settings that all tuners share."""
    whole_number("steps", steps)
    if not (0 <= lr < float("inf")):
        raise InputError(f"lr must be a finite number >= 0, not {lr!r}.")
    check_share("rho", rho)
    if not (-float("inf") < weight < float("inf")):
        raise InputError(f"weight must be finite, not {weight!r}.")
