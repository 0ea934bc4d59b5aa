"""What all metrics share: their description and registry, the result, and inputs as checked float64 arrays."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from .._arrays import check_finite
from .._errors import InputError
from .._registry import Info, Registry

Values: TypeAlias = ArrayLike | Tensor
Floats: TypeAlias = NDArray[np.float64]

INPUTS = ("confidence", "correct", "probabilities", "labels")
_TABLE_HINT = "For one score per sample in a two-class task, stack [1 - score, score] along the last axis."
_PRECISIONS = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, kw_only=True)
class Metric(Info):
    """A registered metric: its name, format and direction.

    better: +1 (higher), -1 (lower) or 0 (nearest to zero). scale: from the value to the printed unit (100 for %).
    digits, interval_digits: decimals of a figure and of its interval. bins: the kind of bins of a binned metric.
    """

    short: str = ""
    better: int = -1
    scale: float = 100.0
    digits: int = 2
    interval_digits: int = 1
    bins: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "short", self.short or self.name)

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """All parameters of the function."""
        return tuple(inspect.signature(self.function).parameters)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns of a run that the metric uses."""
        return tuple(name for name in self.arguments if name in INPUTS)

    @property
    def resampled(self) -> bool:
        """Whether the metric takes weights, which bootstrap intervals require."""
        return "weights" in self.arguments

    @property
    def explained(self) -> str:
        """The first line of the function's docstring, without the name."""
        return (self.summary.partition(": ")[2] or self.summary).rstrip(".")

    @property
    def unit(self) -> str:
        return "%" if self.scale == 100.0 else "nats"

    @property
    def direction(self) -> str:
        return {1: "higher is better", -1: "lower is better", 0: "nearest to 0 is best"}[self.better]

    def __call__(self, columns: dict[str, Any], bins: int = 20, weights: Any = None) -> Any:
        """Evaluate the metric on `columns`, a mapping that contains its `inputs`."""
        given = {name: columns[name] for name in self.inputs}
        given |= {name: bins for name in ("bins", "ranges") if name in self.arguments}
        return self.function(**given) if weights is None else self.function(**given, weights=weights)

    def show(self, value: float | None, *, interval: bool = False, signed: bool = False) -> str:
        """`value` in the metric's unit, or a dash for a missing one."""
        if value is None or math.isnan(value):
            return "–"
        sign = "+" if signed or self.better == 0 else ""
        text = f"{self.scale * value:{sign}.{self.interval_digits if interval else self.digits}f}"
        return text.replace("-", "\N{MINUS SIGN}") if float(text) else text.lstrip("+-")

    def clip(self, ends: tuple[float, float]) -> tuple[float, float]:
        """An interval clipped to the metric's range: errors are at least 0, shares at most 1."""
        least, most = -math.inf if self.better == 0 else 0.0, 1.0 if self.better == 1 else math.inf
        return max(least, ends[0]), min(most, ends[1])

    def goodness(self, value: float) -> float:
        """A number that is larger if `value` is better."""
        return self.better * value if self.better else -abs(value)


METRICS = Registry("metric", "cots.metrics", Metric)


def metric(name: str, **described: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a metric: `function(columns..., [bins], [weights]) -> Score or number`, described by fields of `Metric`.

    Its parameters name its inputs: any of confidence, correct, probabilities and labels. A `bins` parameter gets the
    report's number of bins. With a `weights` parameter it gets bootstrap intervals: it is then called with an array
    (B,S), one row per resample, and returns B values; a metric of probabilities must return a MeanScore.

    >>> from cots.metrics import accuracy
    >>> @metric("error", title="Error rate", short="error")
    ... def error(correct, *, weights=None):
    ...     "Error rate: the share of wrong answers."
    ...     return 1 - accuracy(correct, weights=weights).value
    >>> METRICS.info("error").show(error([True, False]))
    '50.00'
    >>> METRICS.unregister("error")
    """
    return METRICS.register(name, **described)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Score:
    """The result of a metric: `float(score)` is the fraction, `n` the number of samples.

    For a stack of weights, `value` is an array with one figure per row.

    >>> score = Score(name="ece", value=0.05, n=100)
    >>> score, float(score), f"{score:.1%}"
    (Score(ece=0.0500, n=100), 0.05, '5.0%')
    """

    name: str
    value: Any
    n: int

    def __post_init__(self) -> None:
        if np.ndim(self.value) == 0:
            object.__setattr__(self, "value", float(self.value))
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def __float__(self) -> float:
        return float(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec) if spec else repr(self)

    def __repr__(self) -> str:
        value = f"{self.value:.4f}" if np.ndim(self.value) == 0 else f"array of {len(self.value)}"
        return f"{type(self).__name__}({self.name}={value}, n={self.n}{self._detail()})"

    def _detail(self) -> str:
        return ""


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
    scores = _shares(confidence, "confidence", "For class probabilities, take top_label(probabilities) first.")
    hits = outcomes(correct)
    n = same_samples(confidence=scores, correct=hits)
    return scores, hits, sample_weights(weights, n)


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
