"""Tensors in, tensors out; arrays in, arrays out; bad numbers found and named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ._errors import InputError


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
        raise InputError(f"{name} must hold real numbers, not {tensor.dtype}.")
    return tensor if tensor.dtype == torch.float64 else tensor.float()


@contextmanager
def own_modes() -> Iterator[None]:
    """Decorator or context: leave the caller's torch.inference_mode and torch.autocast.

    Tensors made in the former can enter no gradient; the latter would choose another precision than the backbone's,
    and what a task keeps would keep it.

    >>> with torch.inference_mode(), own_modes():
    ...     torch.ones(1).is_inference()
    False
    """
    with ExitStack() as modes:
        if torch.is_inference_mode_enabled():
            modes.enter_context(torch.inference_mode(False))
            modes.enter_context(torch.no_grad())  # the former alone would turn gradients on
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                modes.enter_context(torch.autocast(kind, enabled=False))
        yield


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
            f"{name} holds {int(bad.sum())} value(s) that are not finite; the first is {value} at index {where}. "
            "Check the model's precision (float16 overflows above 65504) or drop that sample."
        )


def refuse_changes(method: str, inputs: Mapping[str, Tensor]) -> Callable[[], None]:
    """A check, to be called after `method` ran, that it wrote nothing into `inputs`: other methods read the same.

    >>> import torch
    >>> logits = torch.ones(2)
    >>> check = refuse_changes("calibrator 'mine'", {"logits": logits})
    >>> logits /= 2
    >>> check()
    Traceback (most recent call last):
    cots._errors.InputError: calibrator 'mine' changes its logits in place...
    """
    before = {name: _version(tensor) for name, tensor in inputs.items()}

    def check() -> None:
        for name, tensor in inputs.items():
            if _version(tensor) != before[name]:
                raise InputError(
                    f"{method} changes its {name} in place, which other methods read too: work on a copy "
                    "(x = x / 2 instead of x /= 2, or x.clone())."
                )

    return check


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # those of inference_mode count no versions


def to_host(*tensors: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """Begin to copy tensors to the CPU; calling what comes back waits for these copies, not for later work of a GPU.

    >>> import torch
    >>> to_host(torch.ones(2))()
    (tensor([1., 1.]),)
    """
    copies = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)
    events = {t.device: torch.cuda.current_stream(t.device).record_event() for t in tensors if t.device.type == "cuda"}

    def wait() -> tuple[Tensor, ...]:
        for event in events.values():
            event.synchronize()
        return copies

    return wait
