"""Prediction sets by split conformal prediction: LAC, APS and RAPS, with one threshold or one per class."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._checked import read_json, write_json
from .._errors import InputError, check_one_of, whole_number
from ..metrics import binomial_interval
from ..metrics.inputs import (
    Floats,
    Values,
    class_labels,
    probability_table,
    same_samples,
    table_inputs,
)

METHODS = ("lac", "aps", "raps")


@dataclass(frozen=True, kw_only=True)
class ConformalSets:
    """Fitted prediction sets: `sets(probabilities)` contains the true class with probability `coverage` or more.

    thresholds: the largest accepted score of each class, infinite if there are too few labels to exclude any class.
    counts: labelled samples per class. With `per_class`, the coverage holds for each class separately.
    """

    method: str
    coverage: float
    per_class: bool
    counts: tuple[int, ...] = field(repr=False)
    penalty: float = 0.01
    free: int = 5
    thresholds: tuple[float, ...] = field(repr=False)

    @property
    def n(self) -> int:
        """Number of labelled samples."""
        return sum(self.counts)

    def sets(self, probabilities: Values) -> Any:
        """Whether each class is in the set of each sample, booleans (samples, classes); torch or numpy, like the input.

        A set can be empty if no class is likely enough.
        """
        table_SK = probability_table(probabilities)
        if table_SK.shape[1] != len(self.thresholds):
            raise InputError(
                f"probabilities have {table_SK.shape[1]} classes; these sets were fitted on {len(self.thresholds)}."
            )
        inside = scores(table_SK, self.method, self.penalty, self.free) <= np.asarray(self.thresholds)
        return torch.from_numpy(inside).to(probabilities.device) if isinstance(probabilities, Tensor) else inside

    def decide(self, probabilities: Floats) -> NDArray[np.bool_]:
        """`sets` as a policy applies them, where an empty set abstains.

        A set of "lac" is empty if no class is likely enough, and stays so. One of "aps" or "raps" is empty if the model
        is so sure that the best class alone exceeds the threshold; it gets that class, which can only add coverage.
        """
        inside = self.sets(probabilities)
        if self.method != "lac":
            empty = ~inside.any(1)
            inside[empty, probabilities[empty].argmax(1)] = True
        return inside

    def to_dict(self) -> dict[str, Any]:
        """The fields in JSON types; an infinite threshold is None."""
        return asdict(self) | {"thresholds": [None if math.isinf(limit) else limit for limit in self.thresholds]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        limits = [math.inf if limit is None else limit for limit in data["thresholds"]]
        return msgspec.convert({**data, "thresholds": limits}, cls)

    def save(self, file: str | Path) -> None:
        """Write the sets as JSON with a checksum."""
        write_json(Path(file), self.to_dict())

    @classmethod
    def load(cls, file: str | Path) -> Self:
        """Read sets that `save` wrote."""
        try:
            return cls.from_dict(read_json(Path(file), remedy="Write it again with ConformalSets.save."))
        except (FileNotFoundError, msgspec.ValidationError, KeyError, TypeError) as error:
            raise InputError(f"{file} is not a file of prediction sets ({error}). Use ConformalSets.save.") from None


def fit(
    probabilities: Values,
    labels: Values,
    coverage: float = 0.9,
    *,
    method: str = "lac",
    per_class: bool = False,
    penalty: float = 0.01,
    free: int = 5,
) -> ConformalSets:
    """Fit prediction sets on labelled samples that were not used to fit the model.

        threshold = the ceil((n + 1) coverage)-th smallest score of the labelled samples, infinite if n is too small

    method: the score of a class with probability p. "lac": 1 - p, the smallest sets. "aps": the total probability of
    the classes at least as likely, for sets that grow where the model is unsure. "raps": "aps" plus `penalty` for each
    class that ranks below the first `free`. per_class: one threshold per class (Mondrian).
    """
    check_one_of("method", method, METHODS)
    whole_number("free", free)
    if not 0 < coverage < 1:
        raise InputError(f"coverage must lie between 0 and 1, such as 0.9, not {coverage!r}.")
    if not penalty >= 0:
        raise InputError(f"penalty must be a number >= 0, not {penalty!r}.")
    table_SK, truth = table_inputs(probabilities, labels)
    of_label = scores(table_SK, method, penalty, free)[np.arange(len(truth)), truth]
    classes = table_SK.shape[1]
    if per_class:
        limits = [_quantile(of_label[truth == k], coverage) for k in range(classes)]
    else:
        limits = [_quantile(of_label, coverage)] * classes
    return ConformalSets(
        method=method, coverage=coverage, per_class=per_class, penalty=penalty, free=free, thresholds=tuple(limits),
        counts=tuple(np.bincount(truth, minlength=classes).tolist()),
    )  # fmt: skip


def scores(table_SK: Floats, method: str, penalty: float, free: int) -> Floats:
    """The score of every class of every sample; likely classes score low."""
    if method == "lac":
        return 1.0 - table_SK
    order_SK = np.argsort(-table_SK, axis=1, kind="stable")
    total_SK = np.cumsum(np.take_along_axis(table_SK, order_SK, 1), axis=1)
    if method == "raps":
        total_SK = total_SK + penalty * np.maximum(0, np.arange(1, table_SK.shape[1] + 1) - free)
    scores_SK = np.empty_like(table_SK)
    np.put_along_axis(scores_SK, order_SK, total_SK, 1)
    return scores_SK


def _quantile(values: Floats, coverage: float) -> float:
    rank = math.ceil((len(values) + 1) * coverage - 1e-9)
    return math.inf if rank > len(values) else float(np.sort(values)[rank - 1])


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Share of sets that contain the true class, with its exact 95% interval; mean size; share of empty sets.

    per_class: the coverage of each class, NaN for classes without samples.
    """

    coverage: float
    interval: tuple[float, float]
    mean_size: float
    empty: float
    per_class: NDArray[np.float64]
    n: int

    def __repr__(self) -> str:
        interval = "95% [{:.3f}, {:.3f}]".format(*self.interval)
        return f"Coverage(coverage={self.coverage:.3f}, {interval}, mean_size={self.mean_size:.2f}, n={self.n})"


def evaluate(sets: Any, labels: Values) -> Coverage:
    """Coverage and size of prediction sets (samples, classes) on labelled samples that were not used to fit them."""
    inside = np.asarray(sets.cpu() if isinstance(sets, Tensor) else sets, dtype=bool)
    if inside.ndim != 2:
        raise InputError(f"sets must have shape (samples, classes), not {inside.shape}.")
    truth = class_labels(labels, inside.shape[1])
    n = same_samples(sets=inside, labels=truth)
    hit = inside[np.arange(n), truth]
    size = inside.sum(1)
    with np.errstate(invalid="ignore"):
        by_class = np.bincount(truth, hit, inside.shape[1]) / np.bincount(truth, minlength=inside.shape[1])
    return Coverage(
        coverage=float(hit.mean()), interval=binomial_interval(int(hit.sum()), n), mean_size=float(size.mean()),
        empty=float((size == 0).mean()), per_class=by_class, n=n,
    )  # fmt: skip
