"""A confidence threshold with a bound on the error rate above it, from labels."""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np

from .._errors import InputError
from ..metrics.inputs import Values, top_label_inputs
from ..metrics.intervals import beta_cdf, upper_bound

SHARES = tuple(share / 10 for share in range(10, 0, -1))  # of samples accepted by each candidate threshold
_MOST = 1_000_000  # labels: upper limit when estimating how many are needed


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


def lowest_threshold(confidence: Values, correct: Values, risk: float, certainty: float) -> float | None:
    """The threshold of `control_error` without its other figures, for many resamples."""
    values, right, _ = top_label_inputs(confidence, correct)
    thresholds, accepted, errors = _candidates(values, right)
    good = _qualify(accepted, errors, risk, certainty)
    return float(thresholds[good.argmax()]) if good.any() else None


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
