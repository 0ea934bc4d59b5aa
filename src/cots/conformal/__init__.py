"""Guarantees from a few labels for the probabilities of any model: prediction sets and error bounds.

>>> import numpy as np
>>> from cots import conformal
>>> rng = np.random.default_rng(0)
>>> probabilities = rng.dirichlet([0.3] * 5, size=400)
>>> labels = np.array([rng.choice(5, p=p) for p in probabilities])
>>> sets = conformal.fit(probabilities[:300], labels[:300], coverage=0.9)
>>> conformal.evaluate(sets.sets(probabilities[300:]), labels[300:])
Coverage(coverage=0.820, 95% [0.731, 0.890], mean_size=1.99, n=100)

Both hold for new samples from the same distribution as the labelled ones; other photos, classes or settings need their
own labels.
"""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import msgspec
import numpy as np

from .._checked import read_json, write_json
from .._errors import InputError
from ..taxonomy import RankRule
from ._asking import AskedAccuracy, Draw, draw
from ._monitor import ErrorMonitor, ErrorRate
from ._risk import ErrorControl, control_error
from ._risk import lowest_threshold as lowest_threshold
from ._sequences import mean_interval, mean_lower_bound, rate_interval
from ._sets import ConformalSets, Coverage, evaluate, fit

__all__ = [
    "AskedAccuracy", "ConformalSets", "Coverage", "Draw", "ErrorControl", "ErrorMonitor", "ErrorRate", "Policy",
    "Setup", "control_error", "draw", "evaluate", "fit", "mean_interval", "mean_lower_bound", "rate_interval",
]  # fmt: skip

P = TypeVar("P")

KIND = "cots policy 1"
_THINNED = 1000
_HASHES = ("weights_hash", "context", "descriptions", "attributes")
_DECIDING = (*_HASHES, "classes", "method", "template", "views", "augmix", "settings", "solver")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What decides the predictions of a classifier.

    context, descriptions, attributes: hashes of context vectors in place of the template's words, and of sentences and
    words about the classes, or empty. settings: of the method. solver: of the temperature; "none" if it fits none.
    """

    model: str
    weights_hash: str
    classes: tuple[str, ...] = field(repr=False)
    method: str
    template: str | tuple[str, ...]
    context: str = ""
    descriptions: str = ""
    attributes: str = ""
    views: int | Literal["auto"]
    augmix: bool = True
    settings: dict[str, Any] = field(default_factory=dict, repr=False)
    solver: str = "adam"  # the only one when policies did not record it
    seed: int = 0
    precision: str = "float32"


@dataclass(frozen=True, kw_only=True)
class Policy(Setup):
    """Written by `cots check`; applied by `Classifier(policy=)`, `cots predict --policy` and `cots serve --policy`.

    It is valid for one setup. Another seed or precision changes single predictions slightly and causes a warning, and
    so does a policy without a threshold. n, accuracy, mean_confidence: of the labelled photos. error: the threshold
    below which the classifier abstains, if the labels support one, and its bound. sets: the prediction sets.
    temperature: applied to the probabilities before both; 1 for none. ranks: answers at the rank that is sure, in place
    of that threshold. none_below: the threshold of `in_list`, and flag, the promised share of photos of the classes
    below it. signals: those of a random sample of the labelled photos, for `cots.watch`. photos: hashes of the labelled
    photos, which cannot test the policy.
    """

    n: int
    accuracy: float
    mean_confidence: float
    temperature: float = 1.0
    error: ErrorControl | None = None
    sets: ConformalSets | None = None
    ranks: RankRule | None = None
    none_below: float | None = None
    flag: float | None = None
    signals: dict[str, list[float]] | None = field(default=None, repr=False)
    photos: tuple[str, ...] = field(default=(), repr=False)

    def refuse_other(self, setup: Setup) -> None:
        """Refuse a classifier with another setup, for which nothing was checked."""
        for name in _DECIDING:
            mine, theirs = getattr(self, name), getattr(setup, name)
            if mine != theirs:
                about = "" if name in ("classes", *_HASHES) else f" ({mine}, not {theirs})"
                raise InputError(
                    f"The policy was made with other {name.replace('_', ' ')}{about}, so its guarantees do not apply. "
                    "Run cots check with these settings."
                )

    @property
    def fitting_solver(self) -> str | None:
        """The solver of the temperature; None if the method fits none."""
        return None if self.solver == "none" else self.solver

    @property
    def threshold(self) -> float | None:
        """The confidence below which the classifier abstains; None without one."""
        return None if self.error is None else self.error.threshold

    def warnings(self, setup: Setup) -> list[str]:
        """What a user must know: no threshold, or a classifier that draws other views, or rounds differently."""
        messages = []
        if self.ranks is not None and self.ranks.threshold == 1:
            messages.append("The policy answers no photo: its labels make no rank sure enough.")
        elif self.threshold is None and self.ranks is None:
            reason = "" if self.error is None else f": {self.error.shortfall}"
            messages.append(f"The policy has no threshold, so it keeps unsure predictions{reason}.")
        other = []
        for name in ("seed", "precision"):
            mine, theirs = getattr(self, name), getattr(setup, name)
            if mine != theirs:
                other.append(f"{name} {mine}, not {theirs}")
        if other:
            messages.append(
                f"The policy was made with {' and '.join(other)}, so single predictions can differ slightly from those "
                "checked. Use the same settings, or run cots check with these."
            )
        return messages

    def apply(self, prediction: P) -> P:
        """Apply temperature, prediction set, abstention and none-of-these threshold to a `Prediction`.

        Below the threshold, or with an empty set, a prediction abstains: it has no label.
        """
        given: Any = prediction
        if given.error is not None:
            return prediction
        p = tempered(given.probabilities, self.temperature)
        confidence = max(float(p[k]) for k, name in enumerate(given.classes) if name == given.label)
        changes: dict[str, Any] = {"probabilities": p, "confidence": confidence}
        if self.sets is not None:
            inside = self.sets.decide(p[None].astype(np.float64))[0]
            order = np.argsort(-p, kind="stable")
            changes["label_set"] = tuple(given.classes[k] for k in order if inside[k])
            if not inside.any() and self.ranks is None:
                changes |= {"label": None, "abstained": True}
        if self.ranks is None and self.threshold is not None and confidence < self.threshold:
            changes |= {"label": None, "abstained": True}
        if self.none_below is not None:
            changes["none_of_these"] = given.in_list < self.none_below or bool(given.warnings)
        if self.temperature != 1.0:
            changes["confidence_range"] = None  # computed without the temperature
        found = replace(given, **changes)
        return found if self.ranks is None else self.ranks.apply(found)

    def save(self, file: str | Path) -> None:
        """Write the policy as JSON with a checksum."""
        sets = self.sets and self.sets.to_dict()
        write_json(Path(file), {"kind": KIND, **asdict(self), "sets": sets})

    @classmethod
    def load(cls, file: str | Path) -> Self:
        """Read a policy that `save` wrote."""
        try:
            data = read_json(Path(file), remedy="Write it again with cots check.")
            kind = data.pop("kind")
            if str(kind).startswith("cots presence"):
                raise ValueError("it is one of cots check --present; use it with --present")
            if kind != KIND:
                raise ValueError(f"its kind is not {KIND!r}")
            before = data.pop("reference", None)
            # Earlier versions kept evenly spaced order statistics of 1,000 photos or more, which no stream resembles.
            if before and len(before["confidence"]) < _THINNED:
                data.setdefault("signals", before)
            data["sets"] = data["sets"] and asdict(ConformalSets.from_dict(data["sets"]))
            return msgspec.convert(data, cls)
        except FileNotFoundError:
            raise InputError(f"{file}: no such file.") from None
        except (msgspec.ValidationError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{file} is not a policy ({error}); write one with cots check.") from None


def tempered(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """p^(1/T) / sum: the softmax of log p / T, over the last axis."""
    if temperature == 1.0:
        return probabilities
    with np.errstate(divide="ignore"):
        z = np.log(probabilities.astype(np.float64)) / temperature
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
