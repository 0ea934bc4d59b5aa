"""Error control: a confidence threshold with a guaranteed bound on the error rate above it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from .._errors import InputError
from ..metrics._inputs import Values, top_label_inputs
from ..metrics._intervals import beta_cdf, upper_bound

SHARES = tuple(share / 10 for share in range(10, 0, -1))  # of samples accepted by each candidate threshold
_MOST = 1_000_000  # upper limit when estimating the number of labels needed


@dataclass(frozen=True, kw_only=True)
class ErrorControl:
    """A threshold above which, with probability `certainty`, the error rate is at most `risk`.

    accepted, errors: counts among the `n` labelled samples.
    """

    risk: float
    certainty: float
    threshold: float
    n: int
    accepted: int
    errors: int

    @property
    def coverage(self) -> float:
        """The share of the labelled samples that the threshold accepts."""
        return self.accepted / self.n

    @property
    def bound(self) -> float:
        """The upper bound of the error rate at or above the threshold, with probability `certainty`."""
        return upper_bound(self.errors, self.accepted, (1 - self.certainty) / len(SHARES))

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        return cls(**data)


def control_error(confidence: Values, correct: Values, risk: float = 0.05, certainty: float = 0.95) -> ErrorControl:
    """The lowest of ten candidate thresholds with an error rate of at most `risk` above it.

    Candidates accept the most confident 10%, 20%, ..., 100% of the labelled samples. Given the first sample that a
    candidate rejects, those above it are independent draws, so their errors are binomial and the Clopper-Pearson bound
    at level (1 - certainty) / 10 holds for each; by the union bound, all ten hold with probability `certainty`. If no
    candidate qualifies, an InputError says how many labels would be needed.

    >>> import numpy as np
    >>> confidence = np.linspace(0.5, 1, 400)
    >>> found = control_error(confidence, confidence > 0.7)
    >>> round(found.threshold, 2), found.accepted, found.errors, round(found.bound, 3)
    (0.7, 240, 0, 0.022)
    """
    for name, value in (("risk", risk), ("certainty", certainty)):
        if not 0 < value < 1:
            raise InputError(f"{name} must lie between 0 and 1, such as 0.05 or 0.95, not {value!r}.")
    values, right, _ = top_label_inputs(confidence, correct)
    found = _candidates(values, right)
    good = _qualify(found, risk, certainty)
    if not good.any():
        raise InputError(_too_few(found, len(values), risk, certainty))
    threshold, accepted, errors = found[int(good.argmax())]
    return ErrorControl(
        risk=risk, certainty=certainty, threshold=threshold, n=len(values), accepted=accepted, errors=errors
    )


def _candidates(values: np.ndarray, right: np.ndarray) -> list[tuple[float, int, int]]:
    """(threshold, accepted, errors), lowest threshold first; samples tied with a rejected one are rejected too."""
    order, found = np.sort(values)[::-1], []
    for share in SHARES:
        kept = math.floor(share * len(values) + 1e-9)
        # The smallest number above the first rejected sample, so that "at least the threshold" excludes it.
        threshold = 0.0 if kept == len(values) else float(np.nextafter(order[kept], np.inf))
        inside = values >= threshold
        found.append((threshold, int(inside.sum()), int((~right[inside]).sum())))
    return found


def _qualify(found: list[tuple[float, int, int]], risk: float, certainty: float, times: int = 1) -> np.ndarray:
    """Whether the Clopper-Pearson bound is at most `risk`, for `times` as many samples."""
    accepted, errors = (times * np.array([row[i] for row in found], dtype=np.float64) for i in (1, 2))
    wrong_all = errors >= accepted  # also where nothing is accepted
    chance = 1.0 - beta_cdf(np.full(len(found), risk), errors + 1.0, np.maximum(accepted - errors, 1.0))
    return ~wrong_all & (chance <= (1 - certainty) / len(SHARES))


def _too_few(found: list[tuple[float, int, int]], n: int, risk: float, certainty: float) -> str:
    """Why no threshold qualifies, with the number of labels that would suffice at the same error rates."""
    wanted = f"{risk:.1%} errors with {certainty:.0%} certainty"
    low, high = 1, max(1, _MOST // n)  # times as many labels
    if not _qualify(found, risk, certainty, high).any():
        return f"No threshold guarantees {wanted}: even the most confident predictions are wrong more often."
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _qualify(found, risk, certainty, middle).any() else (middle + 1, high)
    return f"{n} labels are too few to guarantee {wanted}; about {low * n} would be needed at these error rates."
