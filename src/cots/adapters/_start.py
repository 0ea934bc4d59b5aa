"""Start: the checked inputs of a batch and the work that several adapters share; the loss and views of the tuners.

Shape letters: B samples, V views, n selected views, K classes, D embedding width, M context tokens, W text width.
"""

import math
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor

from .._arrays import as_tensor, by_entropy, check_finite, own_modes, take
from .._errors import InputError, check_share, whole_number
from ..accelerate import accelerator
from ..prompts import Task

T = TypeVar("T")

# Logits of the selected views and zero-shot logits of view 0 -> loss per sample.
Objective = Callable[[Tensor, Tensor], Tensor]

# Features cached in half precision are off by about 1e-3, unnormalised encoder outputs by far more.
NORM_TOLERANCE = 0.02


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


def check_tuning(steps: int, lr: float, rho: float, weight: float = 0.0) -> None:
    """Check the settings that all tuners share."""
    whole_number("steps", steps)
    if not (0 <= lr < float("inf")):
        raise InputError(f"lr must be a finite number >= 0, not {lr!r}.")
    check_share("rho", rho)
    if not (-float("inf") < weight < float("inf")):
        raise InputError(f"weight must be finite, not {weight!r}.")


class Start:
    """A batch of samples before adaptation.

    Zero-shot logits, confident views and the entropy gradient are the same for all adapters of a batch, so they are
    computed once, when first needed. With `timed`, `shared` has the seconds of each of them, `used` those requested
    since it was last cleared, and `setup` the seconds spent on constants of the task, which belong to no sample.
    checked: the inputs are known to be valid.
    """

    @own_modes()
    def __init__(
        self, inputs: Any, task: Task, takes: str = "features", *, timed: bool = False, checked: bool = False
    ) -> None:
        self.task, self.takes, self.given = task, takes, inputs
        tensor = as_tensor(inputs, takes).to(device=task.device, dtype=task.dtype)
        if tensor.is_inference():
            tensor = tensor.clone()
        self.single = tensor.ndim == (2 if takes == "features" else 4)
        self.inputs = tensor[None] if self.single else tensor
        if not checked:
            _check_inputs(self.inputs, takes, task)
        self.shared: dict[Hashable, float] = {}
        self.used: set[Hashable] = set()
        self.setup = 0.0
        self.clock = clock(task, timed)
        self._values: dict[Hashable, Any] = {}

    @property
    def zero_shot(self) -> Tensor:
        """Eq. 1: z = v . t / tau_clip for every view and class, `(B,V,K)`. Do not change it in place."""
        return self._share("zero-shot", lambda: self.task.logit_scale * self.inputs @ self.task.text_features.T)

    def selected(self, rho: float) -> Tensor:
        """Features `(B,n,D)` of the confident views (Eq. 2), the same for all steps."""
        before = self.zero_shot
        return self._share(("selected", rho), lambda: take(self.inputs, confident_views(before, rho)))

    def entropy_gradient(self, rho: float) -> tuple[Tensor, Tensor]:
        """Loss `(B,)` of Eq. 2 at the initial context, and its gradient `(B,M,W)` with respect to the context."""
        selected = self.selected(rho)
        return self._share(("entropy gradient", rho), lambda: self.gradient(selected, entropy_objective))

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

    def constant(self, compute: Callable[[], T]) -> T:
        """`compute()`, whose time is charged to no method, because it runs once per task."""
        started = self.clock()
        value = compute()
        self.setup += self.clock() - started
        return value

    @property
    def aside(self) -> float:
        """Seconds spent so far on shared work and on constants."""
        return sum(self.shared.values()) + self.setup

    def _share(self, key: Hashable, compute: Callable[[], T]) -> T:
        self.used.add(key)
        if key not in self._values:
            started, aside = self.clock(), self.aside
            value = compute()
            self.shared[key] = self.clock() - started - (self.aside - aside)
            self._values[key] = value
        return self._values[key]


def clock(task: Task, timed: bool = True) -> Callable[[], float]:
    """A clock in seconds that waits for the task's GPU; untimed, always 0 and without synchronisation."""

    def read() -> float:
        if task.device.type == "cuda":
            torch.cuda.synchronize(task.device)
        return time.perf_counter()

    return read if timed else lambda: 0.0


def entropy_objective(logits_BnK: Tensor, weak_BK: Tensor) -> Tensor:
    """TPT's loss, which ignores the weak view."""
    return marginal_entropy(logits_BnK)


def _check_inputs(tensor: Tensor, takes: str, task: Task) -> None:
    shape, width = tuple(tensor.shape), task.text_features.shape[1]
    if takes == "pixels" and (tensor.ndim != 5 or shape[1] == 0):
        raise InputError(f"pixels must have shape (V,3,H,W) or (B,V,3,H,W) with V >= 1, not {shape}.")
    if takes == "features" and (tensor.ndim != 3 or shape[2] != width or shape[1] == 0):
        raise InputError(
            f"features must have shape (V, {width}) or (B, V, {width}) for {task.backbone.name} with V >= 1, not "
            f"{shape if tensor.ndim != 3 else shape[-2:] if shape[0] == 1 else shape}."
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
