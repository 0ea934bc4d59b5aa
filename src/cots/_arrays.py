"""Tensors and arrays: conversion and checks, and the numbers that more than one stage needs."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ._errors import InputError

# Gaps beyond this are all "probability zero" at any temperature, and their products must not overflow float32.
_WIDEST = 1e18


def as_tensor(value: Any, name: str) -> Tensor:
    """`value` as a floating tensor of at least float32 (float64 stays float64), detached from any graph."""
    if isinstance(value, Tensor):
        tensor = value.detach()
    else:
        try:
            # A copy: read-only arrays and negative strides have no tensor of their own.
            tensor = torch.from_numpy(np.array(value))
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} must be a torch tensor or a numeric array: {error}") from None
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise InputError(f"{name} must contain real numbers, not {tensor.dtype}.")
    return tensor if tensor.dtype == torch.float64 else tensor.float()


@contextmanager
def own_modes() -> Iterator[None]:
    """Decorator or context: leave the caller's torch.inference_mode and torch.autocast.

    Tensors made in the former can enter no gradient; the latter would choose another precision than the backbone's,
    and what a task keeps would keep it.
    """
    with ExitStack() as modes:
        if torch.is_inference_mode_enabled():
            modes.enter_context(torch.inference_mode(False))
            modes.enter_context(torch.no_grad())  # the former alone would turn gradients on
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                modes.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def one_thread_each(on_cpu: bool) -> Iterator[ThreadPoolExecutor]:
    """Threads for whole batches: on a CPU, torch's own threads spend much of their time waiting for each other."""
    before = torch.get_num_threads()
    try:
        if on_cpu:
            torch.set_num_threads(1)
        with ThreadPoolExecutor(before if on_cpu else 1) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)


def like(tensor: Tensor, example: Any) -> Any:
    """`tensor` as the kind (torch or numpy) that `example` is."""
    return tensor if isinstance(example, Tensor) else tensor.detach().cpu().numpy()


def check_finite(tensor: Tensor, name: str) -> None:
    """Raise an error that says where the first NaN or infinite value is."""
    bad = ~torch.isfinite(tensor)
    if bool(bad.any()):
        where = [int(i) for i in bad.nonzero()[0]]
        value = float(tensor[tuple(where)])
        raise InputError(
            f"{name} has {int(bad.sum())} value(s) that are not finite; the first is {value} at index {where}. "
            "Check the model's precision (float16 overflows above 65504) or drop that sample."
        )


def refuse_changes(method: str, inputs: Mapping[str, Tensor]) -> Callable[[], None]:
    """A check, to be called after `method` ran, that it did not change `inputs` in place: other methods read them."""
    before = {name: _version(tensor) for name, tensor in inputs.items()}

    def check() -> None:
        for name, tensor in inputs.items():
            if _version(tensor) != before[name]:
                raise InputError(
                    f"{method} changes its {name} in place, which other methods read too; work on a copy "
                    "(x = x / 2 instead of x /= 2, or x.clone())."
                )

    return check


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # those of inference_mode count no versions


def to_host(*tensors: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """Start copying tensors to the CPU; calling the result waits for these copies, not for later work of a GPU."""
    copies = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)
    events = {t.device: torch.cuda.current_stream(t.device).record_event() for t in tensors if t.device.type == "cuda"}

    def wait() -> tuple[Tensor, ...]:
        for event in events.values():
            event.synchronize()
        return copies

    return wait


def gaps(logits: Tensor) -> Tensor:
    """max_j z_j - z_k, never negative: the softmax sees nothing else, and differences of large logits stay exact."""
    return (logits.amax(-1, keepdim=True) - logits).clamp(max=_WIDEST)


def entropy(logits: Tensor) -> Tensor:
    """H(softmax(z)) in nats, over the last axis: log s + E_p[d] with d = max z - z and s = sum exp(-d).

    Both terms are sums of non-negative numbers, so that the order of nearly certain views is not lost to rounding.
    """
    d = gaps(logits)
    e = (-d).exp()
    s = e.sum(-1)
    return s.log() + (e * d).sum(-1) / s


def by_entropy(logits_BVK: Tensor) -> Tensor:
    """View indices, lowest entropy first; of equal entropies the lower index first."""
    return entropy(logits_BVK).argsort(dim=-1, stable=True)


def take(values_BVx: Tensor, index_Bn: Tensor) -> Tensor:
    """The selected views of each sample: (B,V,x) and indices (B,n) -> (B,n,x)."""
    return values_BVx.gather(1, index_Bn[:, :, None].expand(-1, -1, values_BVx.shape[2]))


def mean_similarity(text_features: Any) -> float:
    """alpha of Eq. (6): the mean cosine between the features (K,D) of different classes, of the untuned prompt.

    alpha = 1 / (K(K-1)) * sum over i != j of t_i . t_j = (|sum_i t_i|^2 - K) / (K(K-1)), with t normalised here,
    in float64; 1 for a single class.

    >>> round(mean_similarity([[1.0, 0.0], [3.0, 4.0]]), 6)
    0.6
    """
    t_KD = as_tensor(text_features, "text_features").double()
    if t_KD.ndim != 2 or 0 in t_KD.shape:
        raise InputError(f"text_features must be (K, D), one row per class, not {tuple(t_KD.shape)}.")
    check_finite(t_KD, "text_features")
    t_KD = t_KD / t_KD.abs().amax(1, keepdim=True)  # squares of very large or small features stay representable
    if bool((t_KD != t_KD).any()):
        row = int((t_KD != t_KD).any(1).nonzero()[0])
        raise InputError(f"text_features[{row}] is all zeros and has no direction; re-encode that class name.")
    t_KD = t_KD / t_KD.norm(dim=1, keepdim=True)
    classes = len(t_KD)
    if classes == 1:
        return 1.0
    mean = (float(t_KD.sum(0).square().sum()) - classes) / (classes * (classes - 1))
    return min(1.0, max(-1.0, mean))
