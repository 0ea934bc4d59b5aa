"""Tensors and arrays: conversion, checks, .npz and .safetensors files, and quantities that several stages need."""

import json
import threading
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ._errors import InputError, check_one_of, check_unused

# Larger gaps mean probability zero at any temperature, and their products must not overflow float32.
_WIDEST = 1e18
# What numpy raises for files that are damaged, encrypted, pickled, not numeric, or compressed in an unknown way.
_UNREADABLE = (ValueError, TypeError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
SUM_SLACK = 1e-3  # of probabilities; above the rounding error of half precision
ROWS = ("views", "samples")  # what the rows of two-dimensional logits can be, by the index of the missing axis
_threads_changed = threading.Lock()


def as_tensor(value: Any, name: str) -> Tensor:
    """`value` as a floating tensor of at least float32 (float64 stays float64), detached from any graph."""
    if isinstance(value, Tensor):
        tensor = value.detach()
    else:
        try:
            # A copy, because torch accepts neither read-only arrays nor negative strides.
            tensor = torch.from_numpy(np.array(value))
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} must be a torch tensor or a numeric array: {error}") from None
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise InputError(f"{name} must contain real numbers, not {tensor.dtype}.")
    return tensor if tensor.dtype == torch.float64 else tensor.float()


@contextmanager
def default_modes() -> Iterator[None]:
    """Decorator or context: torch's default modes instead of the caller's inference_mode and autocast.

    Tensors made in inference mode cannot take part in gradients. Autocast would choose another precision than the
    backbone's, and cached values of a task would keep it.
    """
    with ExitStack() as modes:
        if torch.is_inference_mode_enabled():
            modes.enter_context(torch.inference_mode(False))
            modes.enter_context(torch.no_grad())  # leaving inference mode turns gradients on
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                modes.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def one_thread_each(on_cpu: bool) -> Iterator[ThreadPoolExecutor]:
    """Threads for whole batches: on a CPU, torch's own threads spend much of their time waiting for each other.

    torch's number of threads belongs to the process, so a second user meanwhile gets one thread and changes nothing.
    """
    if not on_cpu or not _threads_changed.acquire(blocking=False):
        with ThreadPoolExecutor(1) as pool:
            yield pool
        return
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with ThreadPoolExecutor(before) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)
        _threads_changed.release()


Arrays = TypeVar("Arrays", Tensor, np.ndarray)  # torch or numpy, like what was given


def like(tensor: Tensor, example: Any) -> Any:
    """`tensor` as torch or numpy, like `example`."""
    return tensor if isinstance(example, Tensor) else tensor.detach().cpu().numpy()


def check_finite(tensor: Tensor, name: str) -> None:
    """Refuse NaN and infinite values; the error names the first."""
    bad = ~torch.isfinite(tensor)
    if bool(bad.any()):
        where = [int(i) for i in bad.nonzero()[0]]
        value = float(tensor[tuple(where)])
        raise InputError(
            f"{name} has {int(bad.sum())} value(s) that are not finite; the first is {value} at index {where}. "
            "Check the model's precision (float16 overflows above 65504) or drop that sample."
        )


@contextmanager
def unchanged(method: str, inputs: Mapping[str, Tensor]) -> Iterator[None]:
    """Raise an error if `method` changes `inputs`, which other methods read, in place."""
    before = {name: _version(tensor) for name, tensor in inputs.items()}
    yield
    for name, tensor in inputs.items():
        if _version(tensor) != before[name]:
            raise InputError(
                f"{method} changes its {name} in place, which other methods read too; work on a copy "
                "(x = x / 2 instead of x /= 2, or x.clone())."
            )


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # inference tensors have no version counter


def to_host(*tensors: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """Start copying tensors to the CPU; calling the result waits for these copies, not for later work on the GPU."""
    copies = tuple(tensor.to("cpu", non_blocking=True) for tensor in tensors)
    events = {t.device: torch.cuda.current_stream(t.device).record_event() for t in tensors if t.device.type == "cuda"}

    def wait() -> tuple[Tensor, ...]:
        for event in events.values():
            event.synchronize()
        return copies

    return wait


def gaps(logits: Tensor) -> Tensor:
    """max_j z_j - z_k >= 0: all that a softmax depends on, and exact for large logits."""
    return (logits.amax(-1, keepdim=True) - logits).clamp(max=_WIDEST)


def entropy(logits: Tensor) -> Tensor:
    """H(softmax(z)) in nats, over the last axis: log s + E_p[d] with d = max z - z and s = sum exp(-d).

    Both terms are sums of non-negative numbers, so rounding does not change the order of nearly certain views.
    """
    d = gaps(logits)
    e = (-d).exp()
    s = e.sum(-1)
    return s.log() + (e * d).sum(-1) / s


def by_entropy(logits_BVK: Tensor) -> Tensor:
    """View indices, lowest entropy first; ties in order of index."""
    return entropy(logits_BVK).argsort(dim=-1, stable=True)


def take(values_BVx: Tensor, index_Bn: Tensor) -> Tensor:
    """The selected views of each sample: (B,V,x) and indices (B,n) -> (B,n,x)."""
    return values_BVx.gather(1, index_Bn[:, :, None].expand(-1, -1, values_BVx.shape[2]))


def missing_axis(dimensions: int, rows: str | None) -> int | None:
    """The axis that logits lack to be (samples, views, classes): None, 0 (samples) or 1 (views), as `rows` says."""
    if dimensions == 3:
        check_unused("rows", rows, None, "logits of shape (samples, views, classes)")
        return None
    if rows is None:
        raise InputError(
            "Two-dimensional logits can be views of one sample or samples with one view each; "
            "pass rows='views' or rows='samples' (--rows on the command line)."
        )
    check_one_of("rows", rows, ROWS)
    return ROWS.index(rows)


def looks_like_probabilities(**logits: Tensor) -> str | None:
    """A warning if all rows of one of the arrays sum to one and have no negative value."""

    def sum_to_one(rows: Tensor) -> bool:
        return bool(((rows.sum(1) - 1).abs() <= SUM_SLACK).all())

    for name, values in logits.items():
        rows = values.flatten(0, -2)
        # The first row is enough to rule out nearly all logits.
        if len(rows) and rows.shape[1] > 1 and sum_to_one(rows[:1]) and sum_to_one(rows) and bool((rows >= 0).all()):
            return f"The rows of {name} sum to one, like probabilities; pass logits, such as their logarithm."
    return None


def mean_similarity(text_features: Any) -> float:
    """alpha of Eq. (6): the mean cosine between the text features (K,D) of different classes, before tuning.

    alpha = 1 / (K(K-1)) * sum over i != j of t_i . t_j = (|sum_i t_i|^2 - K) / (K(K-1)), in float64, with t normalised
    here; 1 for a single class.

    >>> round(mean_similarity([[1.0, 0.0], [3.0, 4.0]]), 6)
    0.6
    """
    t_KD = as_tensor(text_features, "text_features").double()
    if t_KD.ndim != 2 or 0 in t_KD.shape:
        raise InputError(f"text_features must be (K, D), one row per class, not {tuple(t_KD.shape)}.")
    check_finite(t_KD, "text_features")
    t_KD = t_KD / t_KD.abs().amax(1, keepdim=True)  # keeps squares of very large or small features representable
    if bool((t_KD != t_KD).any()):
        row = int((t_KD != t_KD).any(1).nonzero()[0])
        raise InputError(f"text_features[{row}] is all zeros and has no direction; re-encode that class name.")
    t_KD = t_KD / t_KD.norm(dim=1, keepdim=True)
    classes = len(t_KD)
    if classes == 1:
        return 1.0
    mean = (float(t_KD.sum(0).square().sum()) - classes) / (classes * (classes - 1))
    return min(1.0, max(-1.0, mean))


_WRITE = "Write numeric arrays with numpy.savez or safetensors."


def read_arrays(file: Path, texts: Collection[str] = ()) -> tuple[dict[str, Tensor], dict[str, tuple[str, ...]]]:
    """The numeric arrays of a .npz or .safetensors file, and its `texts`: string arrays, or JSON lists in the metadata.

    The arrays of a .safetensors file are memory-mapped.
    """
    name, arrays, words = str(file), {}, {}
    if file.suffix != ".safetensors" and file.is_file() and not zipfile.is_zipfile(file):
        raise InputError(f"{name} cannot be read (it is no .npz or .safetensors file, or incomplete). {_WRITE}")
    try:
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as opened:
                metadata = opened.metadata() or {}
                for name in set(texts) & metadata.keys():
                    words[name] = tuple(map(str, json.loads(metadata[name])))
                return {name: opened.get_tensor(name) for name in opened.keys()}, words  # noqa: SIM118
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as archive:
            for name in archive.files:
                array = np.asarray(archive[name])
                if name in texts and array.dtype.kind == "U":
                    words[name] = tuple(map(str, array.ravel()))
                elif array.dtype.kind not in "fiu":
                    raise TypeError(f"it has type {array.dtype}")
                else:
                    arrays[name] = torch.from_numpy(array)
    except (SafetensorError, *_UNREADABLE) as error:
        reason = "it holds Python objects" if "allow_pickle" in str(error) else error
        raise InputError(f"{name} cannot be read ({reason}). {_WRITE}") from None
    return arrays, words
