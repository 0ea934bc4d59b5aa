"""`cots.adapt`: view features in, zero-shot and adapted logits of all views out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .._arrays import as_tensor, check_finite, like, own_modes, refuse_changes
from .._errors import InputError
from .._registry import Registry
from ..prompts import Task

ADAPTERS = Registry("adapter", "cots.adapters")


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """Logits of all views before and after adaptation, `(V,K)` or `(B,V,K)`, already multiplied by the logit scale.

    `state` is what an online method carries to the next call (None for the episodic ones).
    """

    zero_shot_logits: Any
    logits: Any
    state: Any = None


def adapter(name: str, *, takes: str = "features"):
    """Register an adaptation method: `function(inputs, task, *, settings...) -> Adapted`.

    inputs are view features `(B,V,D)`, or pixels `(B,V,3,H,W)` with `takes="pixels"`, on the task's device and in its
    floating type. Keyword-only parameters are the method's settings. Results must not depend on the other samples.

    >>> import cots
    >>> @cots.adapter("halved")
    ... def halved(features, task, *, factor=0.5):
    ...     logits = task.logit_scale * features @ task.text_features.T
    ...     return cots.Adapted(zero_shot_logits=logits, logits=factor * logits)
    >>> from cots.adapters import ADAPTERS; ADAPTERS.unregister("halved")
    """
    if takes not in {"features", "pixels"}:
        raise InputError(f"takes must be 'features' or 'pixels', not {takes!r}.")
    return ADAPTERS.register(name, takes=takes)


@own_modes()
def adapt(name: str, inputs: Any, task: Task, **settings: Any) -> Adapted:
    """Adapt to each sample by the named method; episodes are independent and batched.

    inputs: L2-normalised view features `(V,D)` or `(B,V,D)`, view 0 being the weak one (`ttl` takes pixels). Torch or
    numpy in, the same kind out. Settings are the method's own, such as `steps`, `lr`, `rho` and `weight`.

    >>> import cots, torch
    >>> task = cots.Task(cots.load("random:ViT-B-32"), ["cat", "dog", "car"])
    >>> views = torch.nn.functional.normalize(torch.randn(16, 512), dim=-1)
    >>> adapted = cots.adapt("tpt", views, task, steps=1)
    >>> adapted.zero_shot_logits.shape, adapted.logits.shape
    (torch.Size([16, 3]), torch.Size([16, 3]))
    """
    function = ADAPTERS.get(name)
    ADAPTERS.check_settings(name, settings)
    takes = ADAPTERS.tag(name, "takes", "features")
    tensor = as_tensor(inputs, takes).to(device=task.device, dtype=task.dtype)
    if tensor.is_inference():
        tensor = tensor.clone()
    sample_dims = 2 if takes == "features" else 4
    single = tensor.ndim == sample_dims
    if single:
        tensor = tensor[None]
    _check_inputs(tensor, takes, task, sample_dims)
    unchanged = refuse_changes(f"adapter {name!r}", {takes: tensor})
    result = function(tensor, task, **settings)
    unchanged()
    if not isinstance(result, Adapted):
        raise InputError(f"adapter {name!r} must return cots.Adapted, not {type(result).__name__}.")
    zero_shot, logits = result.zero_shot_logits, result.logits
    expected = (*tensor.shape[:2], task.text_features.shape[0])
    _check_logits(name, "zero_shot_logits", zero_shot, expected)
    _check_logits(name, "logits", logits, expected)
    if single:
        zero_shot, logits = zero_shot[0], logits[0]
    return replace(result, zero_shot_logits=like(zero_shot, inputs), logits=like(logits, inputs))


def zero_shot_logits(features_BVD: Tensor, task: Task) -> Tensor:
    """Eq. 1: z = v . t / tau_clip for every view and class."""
    return task.logit_scale * features_BVD @ task.text_features.T


def _check_logits(name: str, which: str, value: Any, expected: tuple[int, ...]) -> None:
    got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
    if got != expected:
        raise InputError(
            f"adapter {name!r} must return {which} of shape {expected}, (samples, views, classes), as a torch tensor, "
            f"not {got}."
        )


def _check_inputs(tensor: Tensor, takes: str, task: Task, sample_dims: int) -> None:
    shape = tuple(tensor.shape)
    if takes == "features":
        width = task.text_features.shape[1]
        if tensor.ndim != 3 or shape[2] != width or shape[1] == 0:
            raise InputError(
                f"features must have shape (V, {width}) or (B, V, {width}) for {task.backbone.name} with V >= 1, not "
                f"{shape if tensor.ndim != 3 else shape[-2:] if shape[0] == 1 else shape}."
            )
    elif tensor.ndim != sample_dims + 1 or shape[1] == 0:
        raise InputError(f"pixels must have shape (V,3,H,W) or (B,V,3,H,W) with V >= 1, not {shape}.")
    check_finite(tensor, takes)
    if takes == "features" and tensor.numel():
        norm = torch.linalg.vector_norm(tensor, dim=-1)
        worst = (norm - 1).abs().flatten().argmax()
        # Half-precision caches are off by some 1e-3; unnormalised encoder outputs by far more.
        if abs(float(norm.flatten()[worst]) - 1) > 0.02:
            raise InputError(
                f"features must be L2-normalised; a view has length {float(norm.flatten()[worst]):.4g}. "
                "backbone.encode_images gives normalised features; otherwise divide by the norm of the last axis."
            )
