"""What the metrics accept, turned into float64 arrays once; what they refuse, named with the remedy."""

from __future__ import annotations

import operator
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from .._arrays import check_finite
from .._errors import InputError

Values: TypeAlias = ArrayLike | Tensor
Floats: TypeAlias = NDArray[np.float64]

_PRECISIONS = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def precision_of(value: object) -> torch.dtype:
    """The floating type `value` arrived in; whole numbers, lists and anything wider than float32 count as float64."""
    dtype = getattr(value, "dtype", None)
    return _PRECISIONS.get(str(dtype).removeprefix("torch."), torch.float64)


def in_precision(values: Floats, precision: torch.dtype) -> Floats:
    """`values` rounded to `precision`, as float64."""
    return torch.from_numpy(values).to(precision).double().numpy()


def numbers(value: Any, name: str) -> Floats:
    """`value` as a float64 array of finite numbers with at least one sample."""
    if isinstance(value, Tensor):
        if value.is_complex():
            raise InputError(f"{name} must hold real numbers, not {value.dtype}.")
        # To the CPU before widening: some accelerators have no float64.
        array = value.detach().cpu().double().numpy()
    else:
        try:
            raw = np.asarray(value)
            # Text that happens to parse ("0.5") is more likely a column read wrongly than a number meant as one.
            if raw.dtype.kind in "USMmc":
                raise TypeError(f"it has type {raw.dtype}")
            array = raw.astype(np.float64, copy=False)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{name} must be a numeric array, list or torch tensor with rows of equal length: {error}."
            ) from None
    if array.size == 0:
        raise InputError(f"{name} is empty (shape {array.shape}); give at least one sample.")
    # numpy looks, torch only words the error: its threads cost more than the check when the cores are busy.
    if not np.isfinite(array).all():
        check_finite(torch.from_numpy(np.ascontiguousarray(array)), name)
    return array


def confidences(value: Any, name: str = "confidence") -> Floats:
    """One confidence in [0, 1] a sample."""
    array = numbers(value, name)
    if array.ndim != 1:
        raise InputError(
            f"{name} must hold one number a sample, shape (samples,), not {array.shape}. "
            "For a table of class probabilities take top_label(probabilities) first."
        )
    return _unit_interval(array, name, precision_of(value))


def probability_table(value: Any, name: str = "probabilities") -> Floats:
    """Class probabilities (samples, classes), each row summing to one."""
    array = _table(value, name)
    precision = precision_of(value)
    array = _unit_interval(array, name, precision)
    sums = array.sum(axis=1)
    # Rounding a row to float16 moves its sum by up to 5e-4, also when it has been widened since; bfloat16 is coarser.
    off = np.abs(sums - 1.0) > max(1e-3, torch.finfo(precision).eps)
    if off.any():
        row = int(off.argmax())
        raise InputError(
            f"{name} must sum to one over the classes; row {row} sums to {sums[row]:.6g} "
            f"({int(off.sum())} such row(s)). Pass the softmax over all classes, or logits= to nll."
        )
    return array


def logit_table(value: Any, name: str = "logits") -> Floats:
    """Finite logits (samples, classes)."""
    return _table(value, name)


def outcomes(value: Any, name: str = "correct") -> NDArray[np.bool_]:
    """One right (True, 1) or wrong (False, 0) a sample."""
    array = numbers(value, name)
    if array.ndim != 1:
        raise InputError(f"{name} must hold one True or False a sample, shape (samples,), not {array.shape}.")
    other = (array != 0) & (array != 1)
    if other.any():
        at = int(other.argmax())
        raise InputError(
            f"{name} must hold True/False or 1/0; index {at} is {array[at]:g}. Pass predictions == labels, "
            "and mind the order: confidence first, then correct."
        )
    return array.astype(np.bool_)


def class_labels(value: Any, classes: int, name: str = "labels") -> NDArray[np.int64]:
    """One class index in 0..classes-1 a sample."""
    if value is None:
        raise InputError(f"{name} must be given: the index of the true class of every sample.")
    array = numbers(value, name)
    if array.ndim != 1:
        raise InputError(
            f"{name} must hold one class index a sample, shape (samples,), not {array.shape}. "
            "For one-hot rows pass their argmax over the last axis."
        )
    broken = array != np.floor(array)
    if broken.any():
        at = int(broken.argmax())
        raise InputError(f"{name} must be whole numbers, the index of the true class; index {at} is {array[at]:g}.")
    outside = (array < 0) | (array >= classes)
    if outside.any():
        at = int(outside.argmax())
        raise InputError(
            f"{name} must lie in 0..{classes - 1} for {classes} classes; index {at} is {int(array[at])}. "
            "Count classes from 0 and drop samples without a label."
        )
    return array.astype(np.int64)


def same_samples(**arrays: np.ndarray) -> int:
    """The number of samples, when all arrays agree on it."""
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise InputError(f"{' and '.join(lengths)} must describe the same samples, but {told}.")
    return next(iter(lengths.values()))


def whole_number(value: Any, name: str, least: int) -> int:
    """`value` as an int of at least `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least:
        raise InputError(f"{name} must be a whole number of at least {least}, not {value!r}.")
    return number


def _table(value: Any, name: str) -> Floats:
    array = numbers(value, name)
    if array.ndim != 2:
        raise InputError(
            f"{name} must have shape (samples, classes), not {array.shape}. "
            "For one score a sample in a two-class task stack [1 - score, score] along the last axis."
        )
    return array


def _unit_interval(array: Floats, name: str, precision: torch.dtype) -> Floats:
    # A softmax or a mixture of softmaxes may end a rounding error above one; that is no reason to refuse it.
    slack = max(1e-6, torch.finfo(precision).eps)
    low, high = float(array.min()), float(array.max())
    if low < -slack or high > 1.0 + slack:
        where = np.unravel_index(int(array.argmax() if high > 1.0 + slack else array.argmin()), array.shape)
        raise InputError(
            f"{name} must lie in [0, 1]; index {[int(i) for i in where]} is {array[where]:g}. "
            "These look like logits or percentages; pass probabilities, or logits= to nll."
        )
    return np.clip(array, 0.0, 1.0) if low < 0.0 or high > 1.0 else array
