"""Error control: a confidence threshold with a guaranteed bound on the error rate above it; and the policy, which has
threshold and prediction sets fitted on a few labels, is saved as a file and applied to predictions.
"""

import math
from bisect import bisect_left
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from .._checked import read_json, write_json
from .._errors import InputError
from ..metrics._intervals import beta_cdf, upper_bound
from ..metrics._metric import Values, top_label_inputs
from ._sets import ConformalSets

P = TypeVar("P")

KIND = "cots policy 1"
SHARES = tuple(share / 10 for share in range(10, 0, -1))  # of samples accepted by each candidate threshold
_MOST = 1_000_000  # labels: upper limit when estimating how many are needed
_SETTINGS = ("weights_hash", "classes", "method", "template", "views", "augmix", "settings")


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
    thresholds, accepted, errors = _candidates(values, right)
    good = _qualify(accepted, errors, risk, certainty)
    if not good.any():
        raise InputError(_too_few(accepted, errors, len(values), risk, certainty))
    at = int(good.argmax())
    counts = {"n": len(values), "accepted": int(accepted[at]), "errors": int(errors[at])}
    return ErrorControl(risk=risk, certainty=certainty, threshold=float(thresholds[at]), **counts)


def _candidates(values: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Threshold, accepted, errors (3, candidates), lowest threshold first; samples tied with a rejected one are
    rejected too.
    """
    order, found = np.sort(values)[::-1], []
    for share in SHARES:
        kept = math.floor(share * len(values) + 1e-9)
        # The smallest number above the first rejected sample, so that "at least the threshold" excludes it.
        threshold = 0.0 if kept == len(values) else np.nextafter(order[kept], np.inf)
        inside = values >= threshold
        found.append((threshold, inside.sum(), (~right[inside]).sum()))
    return np.array(found, dtype=np.float64).T


def _qualify(accepted: np.ndarray, errors: np.ndarray, risk: float, certainty: float) -> np.ndarray:
    """Whether the Clopper-Pearson bound is at most `risk`; never where nothing is accepted."""
    chance = 1.0 - beta_cdf(np.full(len(errors), risk), errors + 1.0, np.maximum(accepted - errors, 1.0))
    return (errors < accepted) & (chance <= (1 - certainty) / len(SHARES))


def _too_few(accepted: np.ndarray, errors: np.ndarray, n: int, risk: float, certainty: float) -> str:
    """Why no threshold qualifies, with the number of labels that would suffice at the same error rates."""
    wanted = f"{risk:.1%} errors with {certainty:.0%} certainty"
    times = range(1, max(1, _MOST // n) + 1)  # as many labels
    enough = bisect_left(times, True, key=lambda t: _qualify(t * accepted, t * errors, risk, certainty).any())
    if enough == len(times):
        return f"No threshold guarantees {wanted}: even the most confident predictions are wrong more often."
    needed = times[enough] * n
    return f"{n} labels are too few to guarantee {wanted}; about {needed} would be needed at these error rates."


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Written by `cots check`; applied by `Classifier(policy=)`, `cots predict --policy` and `cots serve --policy`.

    It is valid for one classifier: weights, classes, method with its settings, template and views. Another seed or
    precision changes single predictions slightly and causes a warning. n, accuracy, mean_confidence: of the labelled
    photos. error: the threshold below which the classifier abstains, and its bound. sets: the prediction sets.
    temperature: applied to the probabilities before both; 1 for none. none_below: the threshold of `in_list`.
    reference: signals of the labelled photos, for `cots.watch`.
    """

    model: str
    weights_hash: str
    classes: tuple[str, ...] = field(repr=False)
    method: str
    template: str | tuple[str, ...]
    views: int
    augmix: bool = True
    settings: dict[str, Any] = field(default_factory=dict, repr=False)
    seed: int = 0
    precision: str = "float32"
    n: int
    accuracy: float
    mean_confidence: float
    temperature: float = 1.0
    error: ErrorControl | None = None
    sets: ConformalSets | None = None
    none_below: float | None = None
    reference: dict[str, list[float]] | None = field(default=None, repr=False)

    def refuse_other(self, **settings: Any) -> None:
        """Refuse a classifier with other settings, for which nothing was checked."""
        for name in _SETTINGS:
            mine, theirs = getattr(self, name), settings[name]
            if mine != theirs:
                about = "" if name in ("classes", "weights_hash") else f" ({mine}, not {theirs})"
                raise InputError(
                    f"The policy was made with other {name.replace('_', ' ')}{about}, so its guarantees do not apply. "
                    "Run cots check with these settings."
                )

    def warning(self, *, seed: int, precision: str) -> str | None:
        """A warning for a classifier that draws other views, or rounds differently, than the one checked."""
        pairs = {"seed": (self.seed, seed), "precision": (self.precision, precision)}
        other = [f"{name} {mine}, not {theirs}" for name, (mine, theirs) in pairs.items() if mine != theirs]
        if not other:
            return None
        return (
            f"The policy was made with {' and '.join(other)}, so single predictions can differ slightly from those "
            "checked. Use the same settings, or run cots check with these."
        )

    def apply(self, prediction: P) -> P:
        """Apply temperature, prediction set, abstention and none-of-these threshold to a `Prediction`."""
        given: Any = prediction
        if given.error is not None:
            return prediction
        p = tempered(given.probabilities, self.temperature)
        confidence = max(float(p[k]) for k, name in enumerate(given.classes) if name == given.label)
        changes: dict[str, Any] = {"probabilities": p, "confidence": confidence}
        if self.sets is not None:
            inside = self.sets.sets(p[None].astype(np.float64))[0]
            order = np.argsort(-p, kind="stable")
            changes["label_set"] = tuple(given.classes[k] for k in order if inside[k])
        if self.error is not None:
            changes["abstained"] = confidence < self.error.threshold
        if self.none_below is not None:
            changes["none_of_these"] = given.in_list < self.none_below
        if self.temperature != 1.0:
            changes["confidence_range"] = None  # computed without the temperature
        return replace(given, **changes)

    def save(self, file: str | Path) -> None:
        """Write the policy as JSON with a checksum."""
        sets = self.sets and self.sets.to_dict()
        write_json(Path(file), {"kind": KIND, **asdict(self), "sets": sets})

    @classmethod
    def load(cls, file: str | Path) -> Self:
        """Read a policy that `save` wrote."""
        try:
            data = read_json(Path(file), remedy="Write it again with cots check.")
            if data.pop("kind") != KIND:
                raise ValueError(f"its kind is not {KIND!r}")
            data["classes"] = tuple(data["classes"])
            data["template"] = data["template"] if isinstance(data["template"], str) else tuple(data["template"])
            data["error"] = data["error"] and ErrorControl(**data["error"])
            data["sets"] = data["sets"] and ConformalSets.from_dict(data["sets"])
            return cls(**data)
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{file} is not a policy ({error}); write one with cots check.") from None


def tempered(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """p^(1/T) / sum: the softmax of log p / T, over the last axis."""
    if temperature == 1.0:
        return probabilities
    with np.errstate(divide="ignore"):
        z = np.log(probabilities.astype(np.float64)) / temperature
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
