"""Several things in one photo: for each class, whether it is there, regardless of the other classes.

    scores = novelty.presence_scores(features, task)                   # (S, K); higher means more likely present
    rule = presence.fit(scores, labels, risk=0.1)                      # labels (S, K): which classes each photo shows
    rule.probabilities(scores), rule.present(scores)

Without labels there are only scores: they rank photos and classes, but their level is not identified, because nothing
says how often a class occurs. Probabilities are marginal, one per class: never multiply them.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from ._checked import read_json, write_json
from ._errors import InputError
from .conformal import Setup
from .metrics.inputs import Floats, Values, numbers

UNKNOWN_LEVEL = (
    "Without labels, scores say which classes are more likely present than others, not how likely: their level is not "
    "identified. Label 20 photos or more and run cots check --present."
)
ENOUGH = 20  # labelled photos; with fewer, neither slope nor thresholds mean much
KIND = "cots presence 1"
_HINT = "Pass one score per photo and class."
_SLOPE_DEVIATION, _STEPS, _CLOSE = 10.0, 100, 1e-9


@dataclass(frozen=True, kw_only=True)
class Presence:
    """What a photo shows. present: with a policy. probabilities: with a policy, or of a model with a bias (SigLIP)."""

    classes: tuple[str, ...] = field(repr=False)
    scores: Floats
    probabilities: Floats | None = None
    present: tuple[str, ...] | None = None

    def ranked(self, count: int) -> list[dict[str, Any]]:
        """The most likely classes, in JSON types."""
        values = self.scores if self.probabilities is None else self.probabilities
        found = []
        for k in np.argsort(-values, kind="stable")[:count].tolist():
            p = None if self.probabilities is None else float(self.probabilities[k])
            inside = None if self.present is None else self.classes[k] in self.present
            found.append({
                "class": self.classes[k], "score": float(self.scores[k]), "probability": p, "present": inside,
            })  # fmt: skip
        return found

    def words(self, count: int = 5) -> str:
        """The most likely classes, such as "dog 93%, cat 71%", or with their scores, "dog 3.1, cat 2.4"."""
        found = []
        for one in self.ranked(count):
            level = f"{one['score']:.1f}" if one["probability"] is None else f"{one['probability']:.0%}"
            found.append(f"{one['class']} {level}")
        return ", ".join(found)


@dataclass(frozen=True, kw_only=True)
class PresenceRule:
    """Probabilities and decisions from scores (samples, classes).

        p_k = sigmoid(slope * score_k + intercept_k);  class k is present if p_k >= threshold_k

    Of the classes that a photo shows, at most the share `risk` is missed, on average over photos and draws of the `n`
    labelled ones. `per_class`: the same for the photos that show a given class, for each class.
    """

    slope: float
    intercepts: tuple[float, ...] = field(repr=False)
    thresholds: tuple[float, ...] = field(repr=False)
    risk: float
    per_class: bool = False
    n: int

    def probabilities(self, scores: Values) -> Floats:
        return _sigmoid(self.slope * _scores(scores, len(self.intercepts)) + np.asarray(self.intercepts))

    def present(self, scores: Values) -> NDArray[np.bool_]:
        return self.probabilities(scores) >= np.asarray(self.thresholds)


def read_scores(
    scores: Values, classes: Sequence[str], rule: PresenceRule | None = None, sigmoid: bool = False
) -> list[Presence]:
    """What photos show. sigmoid: without a rule, the sigmoid of the scores counts as probability (SigLIP)."""
    table_SK = _scores(scores, len(classes))
    names = tuple(classes)
    if rule is None:
        levels = _sigmoid(table_SK) if sigmoid else [None] * len(table_SK)
        return [Presence(classes=names, scores=row, probabilities=p) for row, p in zip(table_SK, levels, strict=True)]
    found = []
    for row, p, inside in zip(table_SK, rule.probabilities(table_SK), rule.present(table_SK), strict=True):
        order = np.argsort(-p, kind="stable")
        present = tuple(names[k] for k in order if inside[k])
        found.append(Presence(classes=names, scores=row, probabilities=p, present=present))
    return found


def fit(scores: Values, labels: Values, risk: float = 0.1, *, per_class: bool = False, seed: int = 0) -> PresenceRule:
    """Fit probabilities on a random half of the labelled photos and thresholds on the other.

    Platt scaling with one slope for all classes; each intercept is shrunk to a common one (a normal prior of deviation
    1), so that a class with few labels gets the level of the others. The thresholds are the largest with

        (sum_i missed_i + 1) / (n + 1) <= risk      (conformal risk control)

    where missed_i is the share of the classes of photo i below their thresholds, over the n photos that show a class.
    With too few of them the threshold is 0, and every class counts as present.
    """
    if not 0 < risk < 1:
        raise InputError(f"risk must lie between 0 and 1, such as 0.1, not {risk!r}.")
    truth_SK = numbers(labels, "labels", "Pass 1 for each class that a photo shows, else 0.", 2)
    table_SK = _scores(scores, truth_SK.shape[1])
    if table_SK.shape != truth_SK.shape or not np.isin(truth_SK, (0, 1)).all():
        raise InputError(
            f"labels must be 0 or 1 for each photo and class, with the shape of the scores {table_SK.shape}."
        )
    n = len(table_SK)
    if n < ENOUGH:
        raise InputError(f"Presence needs {ENOUGH} labelled photos or more, not {n}. Label more photos.")
    order = np.random.default_rng(seed).permutation(n)
    first, rest = order[: n // 2], order[n // 2 :]
    slope, intercepts = platt(table_SK[first], truth_SK[first])
    shown = truth_SK[rest].astype(bool)
    p_SK = _sigmoid(slope * table_SK[rest] + intercepts)
    if per_class:
        limits = [_threshold(p_SK[:, k : k + 1], shown[:, k : k + 1], risk) for k in range(p_SK.shape[1])]
    else:
        limits = [_threshold(p_SK, shown, risk)] * p_SK.shape[1]
    return PresenceRule(
        slope=slope,
        intercepts=tuple(intercepts.tolist()),
        thresholds=tuple(limits),
        risk=risk,
        per_class=per_class,
        n=n,
    )


def platt(scores_SK: Floats, labels_SK: Floats) -> tuple[float, Floats]:
    """Slope a and intercepts b_k = b + d_k that minimise, by Newton's method,

        - sum_ik log sigmoid(+-(a z_ik + b + d_k)) + (a / 10)^2 / 2 + sum_k d_k^2 / 2

    The term of a keeps it finite if the scores separate the labels. The Hessian is diagonal in d.
    """
    a, b, d_K = 1.0, 0.0, np.zeros(scores_SK.shape[1])
    loss = _loss(scores_SK, labels_SK, a, b, d_K)
    for _ in range(_STEPS):
        p_SK = _sigmoid(a * scores_SK + b + d_K)
        r_SK, w_SK = p_SK - labels_SK, p_SK * (1 - p_SK)
        wz_SK = w_SK * scores_SK
        gradient = np.array([(r_SK * scores_SK).sum() + a / _SLOPE_DEVIATION**2, r_SK.sum()])
        gradient_K, diagonal_K = r_SK.sum(0) + d_K, w_SK.sum(0) + 1.0
        hessian = np.array([[(wz_SK * scores_SK).sum() + _SLOPE_DEVIATION**-2, wz_SK.sum()], [wz_SK.sum(), w_SK.sum()]])
        border_2K = np.stack([wz_SK.sum(0), w_SK.sum(0)])
        schur = hessian - (border_2K / diagonal_K) @ border_2K.T + 1e-12 * np.eye(2)
        step = np.linalg.solve(schur, gradient - border_2K @ (gradient_K / diagonal_K))
        step_K = (gradient_K - border_2K.T @ step) / diagonal_K
        size, before = 1.0, loss
        while size > 1e-6:
            there = a - size * step[0], b - size * step[1], d_K - size * step_K
            loss = _loss(scores_SK, labels_SK, *there)
            if loss <= before:
                a, b, d_K = there
                break
            size /= 2
        if size <= 1e-6 or before - loss < _CLOSE:
            break
    return float(a), b + d_K


def _loss(scores_SK: Floats, labels_SK: Floats, a: float, b: float, d_K: Floats) -> float:
    z_SK = a * scores_SK + b + d_K
    each = np.logaddexp(0.0, z_SK) - labels_SK * z_SK
    return float(each.sum() + (a / _SLOPE_DEVIATION) ** 2 / 2 + (d_K**2).sum() / 2)


def _sigmoid(z: Floats) -> Floats:
    return np.exp(-np.logaddexp(0.0, -z))


def _threshold(p_SK: Floats, shown_SK: NDArray[np.bool_], risk: float) -> float:
    """The largest threshold that keeps the promise on the photos that show a class, 0 if they are too few."""
    count_S = shown_SK.sum(1)
    samples, classes = np.nonzero(shown_SK)
    allowed = risk * ((count_S > 0).sum() + 1) - 1
    if allowed < 0:
        return 0.0
    values = p_SK[samples, classes]
    order = np.argsort(values, kind="stable")
    values, weights = values[order], 1.0 / count_S[samples[order]]
    # A threshold at a value misses what lies below it, not what is equal.
    missed = (weights.cumsum() - weights)[np.searchsorted(values, values)]
    return float(values[missed <= allowed + 1e-9].max())


def _scores(scores: Values, classes: int) -> Floats:
    table_SK = numbers(scores, "scores", _HINT, 2)
    if table_SK.shape[1] != classes:
        raise InputError(f"scores have {table_SK.shape[1]} classes, not {classes}. {_HINT}")
    return table_SK


def missed_share(present: NDArray[np.bool_], labels: NDArray[np.bool_]) -> float:
    """The mean share of the classes of a photo that are not found, over the photos that show a class; NaN for none."""
    shown = labels.any(1)
    if not shown.any():
        return math.nan
    return float(((labels & ~present)[shown].sum(1) / labels[shown].sum(1)).mean())


@dataclass(frozen=True, kw_only=True)
class PresencePolicy(Setup):
    """Written by `cots check --present`; valid for one model, class list and template."""

    rule: PresenceRule

    def refuse_other(self, setup: Setup) -> None:
        """Refuse a classifier with other settings."""
        for name in ("weights_hash", "classes", "template", "context", "descriptions", "attributes"):
            if getattr(self, name) != getattr(setup, name):
                raise InputError(
                    f"The policy was made with other {name.replace('_', ' ')}. Run cots check --present with these."
                )

    def save(self, file: str | Path) -> None:
        """Write the policy as JSON with a checksum."""
        write_json(Path(file), {"kind": KIND, **asdict(self)})

    @classmethod
    def load(cls, file: str | Path) -> Self:
        """Read a policy that `save` wrote."""
        remedy = "Write it with cots check --present."
        try:
            data = read_json(Path(file), remedy=remedy)
            if data.pop("kind") != KIND:
                raise ValueError(f"its kind is not {KIND!r}")
            return msgspec.convert(data, cls)
        except FileNotFoundError:
            raise InputError(f"{file}: no such file.") from None
        except (msgspec.ValidationError, ValueError, KeyError) as error:
            raise InputError(f"{file} is not a policy of presence ({error}). {remedy}") from None
