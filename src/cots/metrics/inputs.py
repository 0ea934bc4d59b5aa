"""Inputs of metrics as checked float64 arrays; an error names the array, the problem and the remedy."""

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from .._arrays import check_finite
from .._errors import InputError

Values: TypeAlias = ArrayLike | Tensor
Floats: TypeAlias = NDArray[np.float64]

_TABLE_HINT = "For one score per sample in a two-class task, stack [1 - score, score] along the last axis."
_PRECISIONS = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def precision_of(value: object) -> torch.dtype:
    """The floating dtype of `value`; integers, lists and anything wider than float32 count as float64."""
    return _PRECISIONS.get(str(getattr(value, "dtype", None)).removeprefix("torch."), torch.float64)


def numbers(value: Any, name: str, hint: str, ndim: int = 1) -> Floats:
    """`value` as a float64 array of finite numbers, (samples,) or (samples, classes); `hint`: how to fix the shape."""
    if isinstance(value, Tensor):
        if value.is_complex():
            raise InputError(f"{name} must be real, not {value.dtype}.")
        # To the CPU before widening: some accelerators have no float64.
        array = value.detach().cpu().double().numpy()
    else:
        try:
            raw = np.asarray(value)
            # Text that parses as a number ("0.5") is more likely a misread column.
            if raw.dtype.kind in "USMmc":
                raise TypeError(f"it has type {raw.dtype}")
            array = raw.astype(np.float64, copy=False)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{name} must be a numeric array, list or torch tensor with rows of equal length: {error}."
            ) from None
    if array.ndim != ndim and array.shape != (0,):
        shape = "one value per sample, shape (samples,)" if ndim == 1 else "shape (samples, classes)"
        raise InputError(f"{name} must have {shape}, not {array.shape}. {hint}")
    if array.size == 0:
        raise InputError(f"{name} is empty (shape {array.shape}); pass at least one sample.")
    # Checked with numpy: on busy cores, torch's threads cost more than the check. torch only writes the error.
    if not np.isfinite(array).all():
        check_finite(torch.from_numpy(np.ascontiguousarray(array)), name)
    return array


def top_label_inputs(confidence: Any, correct: Any, weights: Any = None) -> tuple[Floats, NDArray[np.bool_], Any]:
    """One confidence in [0, 1] and one outcome per sample, and the weights, if any."""
    scores, hits = confidences(confidence), outcomes(correct)
    n = same_samples(confidence=scores, correct=hits)
    return scores, hits, sample_weights(weights, n)


def confidences(value: Any) -> Floats:
    """One confidence in [0, 1] per sample."""
    return _shares(value, "confidence", "For class probabilities, take top_label(probabilities) first.")


def table_inputs(table: Any, labels: Any, name: str = "probabilities") -> tuple[Floats, NDArray[np.int64]]:
    """Class probabilities, or logits, (samples, classes) and one label per sample."""
    table_SK = numbers(table, name, _TABLE_HINT, 2) if name == "logits" else probability_table(table)
    truth = class_labels(labels, table_SK.shape[1])
    same_samples(**{name: table_SK, "labels": truth})
    return table_SK, truth


def probability_table(value: Any) -> Floats:
    """Class probabilities (samples, classes), each row summing to one."""
    array = _shares(value, "probabilities", _TABLE_HINT, 2)
    sums = array.sum(axis=1)
    # Rounding a row to float16 changes its sum by up to 5e-4, even if it was widened later; bfloat16 is coarser.
    off = np.abs(sums - 1.0) > max(1e-3, torch.finfo(precision_of(value)).eps)
    if off.any():
        row = int(off.argmax())
        raise InputError(
            f"probabilities must sum to one over the classes; row {row} sums to {sums[row]:.6g} "
            f"({int(off.sum())} such row(s)). Pass the softmax over all classes, or logits= to nll."
        )
    return array


def outcomes(
    value: Any, name: str = "correct", meaning: str = "predictions == labels", first: str = "confidence"
) -> NDArray[np.bool_]:
    """Right (True, 1) or wrong (False, 0) per sample; the other parameters are words of the error messages."""
    array = numbers(value, name, f"Pass {meaning}.")
    remedy = f"Pass {meaning}, and mind the order: {first} first, then {name}."
    _refuse_where((array != 0) & (array != 1), array, f"{name} must be True/False or 1/0", remedy)
    return array.astype(np.bool_)


def class_labels(value: Any, classes: int) -> NDArray[np.int64]:
    """One class index in 0..classes-1 per sample."""
    if value is None:
        raise InputError("labels are required: the index of the true class of every sample.")
    array = numbers(value, "labels", "For one-hot rows, pass their argmax over the last axis.")
    rule = f"labels must be whole numbers in 0..{classes - 1} for {classes} classes"
    wrong = (array != np.floor(array)) | (array < 0) | (array >= classes)
    _refuse_where(wrong, array, rule, "Count classes from 0 and drop samples without a label.")
    return array.astype(np.int64)


def sample_weights(value: Any, n: int) -> Floats | None:
    """Non-negative weights of n samples: one row (n,), or a stack of rows (B,n)."""
    if value is None:
        return None
    array = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value, dtype=np.float64)
    if array.ndim not in (1, 2) or array.shape[-1] != n:
        raise InputError(f"weights must have one value per sample, shape ({n},) or (rows, {n}), not {array.shape}.")
    if not (array.min(initial=0.0) >= 0.0 and np.isfinite(array.sum())):
        raise InputError("weights must be finite and not negative.")
    return array


def mean_of(per_sample: Floats, weights: Any = None) -> Any:
    """The mean over samples, or one weighted mean per row of `weights`."""
    rows = sample_weights(weights, len(per_sample))
    if rows is None:
        return per_sample.mean()
    with np.errstate(invalid="ignore"):
        return rows @ per_sample / rows.sum(axis=-1)


def same_samples(**arrays: np.ndarray | Tensor) -> int:
    """The number of samples; an error if the arrays differ in it."""
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        sizes = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise InputError(f"{' and '.join(lengths)} must describe the same samples, but {sizes}.")
    return next(iter(lengths.values()))


def _refuse_where(wrong: NDArray[np.bool_], array: Floats, rule: str, remedy: str) -> None:
    if wrong.any():
        at = int(wrong.argmax())
        raise InputError(f"{rule}; index {at} is {array[at]:g}. {remedy}")


def _shares(value: Any, name: str, hint: str, ndim: int = 1) -> Floats:
    """Numbers in [0, 1]; a softmax or a mixture of softmaxes may exceed one by a rounding error."""
    array = numbers(value, name, hint, ndim)
    slack = max(1e-6, torch.finfo(precision_of(value)).eps)
    low, high = float(array.min()), float(array.max())
    if low < -slack or high > 1.0 + slack:
        where = np.unravel_index(int(array.argmax() if high > 1.0 + slack else array.argmin()), array.shape)
        raise InputError(
            f"{name} must be in [0, 1]; index {[int(i) for i in where]} is {array[where]:g}. "
            "These look like logits or percentages; pass probabilities, or logits= to nll."
        )
    return np.clip(array, 0.0, 1.0) if low < 0.0 or high > 1.0 else array
