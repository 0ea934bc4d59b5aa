"""Guarantees from labels: prediction sets by split conformal prediction (LAC, APS and RAPS, with one threshold or one
per class), and a confidence threshold with a bound on the error rate above it.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
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
    top_label_inputs,
)
from ..metrics.intervals import beta_cdf, upper_bound

METHODS = ("lac", "aps", "raps")
SHARES = tuple(share / 10 for share in range(10, 0, -1))  # of samples accepted by each candidate threshold
_MOST = 1_000_000  # labels: upper limit when estimating how many are needed


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


@dataclass(frozen=True, kw_only=True)
class ErrorControl:
    """A threshold above which, with probability `certainty`, the error rate is at most `risk`.

    threshold: None if the labels support none. accepted, errors: counts among the `n` labelled samples. smallest_risk:
    the smallest risk that the labels support, 1 for none. needed: about how many labels `risk` takes at these error
    rates; None if no number suffices.
    """

    risk: float
    certainty: float
    threshold: float | None
    n: int
    accepted: int
    errors: int
    smallest_risk: float = 1.0
    needed: int | None = None

    @property
    def coverage(self) -> float:
        """The share of the labelled samples that the threshold accepts."""
        return self.accepted / self.n

    @property
    def bound(self) -> float:
        """The upper bound of the error rate at or above the threshold, with probability `certainty`."""
        return upper_bound(self.errors, self.accepted, (1 - self.certainty) / len(SHARES))

    @property
    def offered_risk(self) -> float | None:
        """`smallest_risk` rounded up to whole per cent; None if that is 100%."""
        percent = math.ceil(100 * self.smallest_risk)
        return percent / 100 if percent < 100 else None

    @property
    def shortfall(self) -> str:
        """What the labels support instead, if they support no threshold."""
        if self.offered_risk is None:
            offer = f"these {self.n} labels support none"
        else:
            offer = f"these {self.n} labels support at most {self.offered_risk:.0%} errors"
        if self.needed is None:
            return f"{offer}; for {100 * self.risk:.3g}% even the most confident predictions are wrong too often"
        more = self.needed - self.n
        step = 10 ** max(0, len(str(more)) - 2)  # two digits
        return f"{offer}; about {-(-more // step) * step:,} more for {100 * self.risk:.3g}%"


def control_error(confidence: Values, correct: Values, risk: float = 0.05, certainty: float = 0.95) -> ErrorControl:
    """The lowest of ten candidate thresholds with an error rate of at most `risk` above it.

    Candidates accept the most confident 10%, 20%, ..., 100% of the labelled samples. Given the first sample that a
    candidate rejects, those above it are independent draws, so their errors are binomial and the Clopper-Pearson bound
    at level (1 - certainty) / 10 holds for each; by the union bound, all ten hold with probability `certainty`. They
    hold together, so `risk` may be chosen after a look at them: the smallest, `smallest_risk`, is valid as well.

    >>> import numpy as np
    >>> confidence = np.linspace(0.5, 1, 400)
    >>> control = control_error(confidence, confidence > 0.7)
    >>> round(control.threshold, 2), control.accepted, control.errors, round(control.bound, 3)
    (0.7, 240, 0, 0.022)
    >>> control_error(confidence[:50], confidence[:50] > 0).shortfall
    'these 50 labels support at most 11% errors; about 54 more for 5%'
    """
    for name, value in (("risk", risk), ("certainty", certainty)):
        if not 0 < value < 1:
            raise InputError(f"{name} must lie between 0 and 1, such as 0.05 or 0.95, not {value!r}.")
    values, right, _ = top_label_inputs(confidence, correct)
    thresholds, accepted, errors = _candidates(values, right)
    good = _qualify(accepted, errors, risk, certainty)
    result = ErrorControl(
        risk=risk, certainty=certainty, threshold=None, n=len(values), accepted=0, errors=0,
        smallest_risk=_smallest_risk(accepted, errors, certainty),
    )  # fmt: skip
    if not good.any():
        return replace(result, needed=_labels_needed(accepted, errors, len(values), risk, certainty))
    at = int(good.argmax())
    counts = {"accepted": int(accepted[at]), "errors": int(errors[at]), "needed": len(values)}
    return replace(result, threshold=float(thresholds[at]), **counts)


def _candidates(values: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Threshold, accepted, errors (3, candidates), lowest threshold first; ties with a rejected sample are rejected."""
    order = np.sort(values)[::-1]
    kept = np.floor(np.array(SHARES) * len(values) + 1e-9).astype(int)
    # The smallest number above the first rejected sample, so that "at least the threshold" excludes it; 0 without one.
    thresholds = np.append(np.nextafter(order, np.inf), 0.0)[kept]
    inside = values[:, None] >= thresholds
    return np.stack([thresholds, inside.sum(0), (inside & ~right[:, None]).sum(0)])


def _qualify(accepted: np.ndarray, errors: np.ndarray, risk: float, certainty: float) -> np.ndarray:
    """Whether the Clopper-Pearson bound is at most `risk`; never where nothing is accepted."""
    allowed = (1 - certainty) / len(SHARES)
    qualified = [
        wrong < kept and 1.0 - beta_cdf(risk, wrong + 1.0, kept - wrong) <= allowed
        for kept, wrong in zip(accepted.tolist(), errors.tolist(), strict=True)
    ]
    return np.array(qualified)


def _smallest_risk(accepted: np.ndarray, errors: np.ndarray, certainty: float) -> float:
    """The smallest bound of the candidates."""
    smallest = 1.0
    for at in range(len(accepted)):
        one = slice(at, at + 1)
        if smallest == 1.0 or _qualify(accepted[one], errors[one], smallest, certainty)[0]:
            smallest = min(smallest, upper_bound(errors[at], accepted[at], (1 - certainty) / len(SHARES)))
    return smallest


def _labels_needed(accepted: np.ndarray, errors: np.ndarray, n: int, risk: float, certainty: float) -> int | None:
    """How many labels with these shares accepted and wrong would support `risk`."""

    def enough(labels: int) -> bool:
        return bool(_qualify(labels / n * accepted, labels / n * errors, risk, certainty).any())

    labels = range(n, max(n, _MOST) + 1)
    at = bisect_left(labels, True, key=enough)
    return labels[at] if at < len(labels) else None
