"""Conclusions from figures: the verdict of `cots check` with its guarantees, and the sentences of the demo.

Each conclusion of the demo has a paired 95% interval: the confidences of a photo under all methods are resampled
together, so the interval is that of a difference.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._errors import InputError
from ..calibrators import fit_temperature
from ..conformal import ConformalSets, Coverage, ErrorControl, control_error, evaluate, fit, tempered
from ..metrics import BinnedScore, Interval, binomial_interval, bootstrap, ece, noise_floor, risk_coverage, top_label
from ..metrics.inputs import mean_of
from ._score import Scored, halves

ENOUGH = 200  # labelled photos; fewer support no guarantee
FIRM = 0.02  # half the width of a precise interval of the accuracy


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The verdict on labelled photos, with the threshold and the prediction sets that they support.

    chance: the 95% quantile of the ECE of a calibrated model on such photos. needed: number of labels for an accuracy
    interval of +-2 points. error: None if no threshold is supported; refused: the reason. sets_on_these: coverage and
    size of the sets on the photos they were fitted on.
    """

    n: int
    accuracy: float
    interval: tuple[float, float]
    mean_confidence: float
    reliability: BinnedScore = field(repr=False)
    chance: float
    needed: int
    temperature: float
    error: ErrorControl | None
    refused: str | None
    sets: ConformalSets = field(repr=False)
    sets_on_these: Coverage

    @property
    def holds(self) -> bool:
        """Whether these photos are consistent with the stated confidence."""
        low, high = self.interval
        return low <= self.mean_confidence <= high and self.reliability.value <= self.chance

    @property
    def verdict(self) -> str:
        if self.n < ENOUGH:
            return f"No verdict: {self.n} photos are too few. Label at least {ENOUGH}."
        if self.holds:
            return f"The confidence holds: nothing in these {self.n} photos contradicts it."
        gap = self.mean_confidence - self.accuracy
        found = f"it is {100 * abs(gap):.1f} points too {'high' if gap > 0 else 'low'}."
        if self.interval[0] <= self.mean_confidence <= self.interval[1]:
            found = "it is right on average, but not at every level. See the diagram."
        return f"The confidence does not hold: {found}"

    def lines(self) -> list[str]:
        """The output of `cots check`."""
        low, high = self.interval
        found = [
            f"accuracy {self.accuracy:.1%} (95% interval {low:.1%} to {high:.1%}), mean confidence "
            f"{self.mean_confidence:.1%}, ECE {self.reliability.value:.1%} (chance alone: up to {self.chance:.1%})",
            self.verdict,
        ]
        if self.needed > self.n:
            found.append(f"For an interval of ±{100 * FIRM:g} points, label {self.needed:,} photos.")
        if self.temperature != 1.0:
            found.append(f"Temperature {self.temperature:.3f}, fitted on the other half of the photos.")
        if self.error is None:
            found.append(f"No threshold: {self.refused}")
        else:
            e = self.error
            found.append(
                f"Threshold {e.threshold:.2%}: at most {e.risk:.0%} of the predictions at or above it are wrong, with "
                f"{e.certainty:.0%} certainty. It accepts {e.coverage:.0%} of these photos, with {e.errors} errors in "
                f"{e.accepted}; the bound on the error rate is {e.bound:.1%}."
            )
        found.append(
            f"Sets: {self.sets.coverage:.0%} of new photos have their class in the set; mean size here: "
            f"{self.sets_on_these.mean_size:.2f} classes."
        )
        return found


def check(
    probabilities: np.ndarray,
    labels: np.ndarray,
    *,
    risk: float = 0.05,
    certainty: float = 0.95,
    coverage: float = 0.9,
    method: str = "lac",
    temperature: bool = False,
    bins: int = 20,
) -> Checked:
    """Check probabilities (samples, classes) against labels.

    temperature: fit one on a random half of the samples and use it for the other half, so that threshold and sets keep
    their guarantees.
    """
    tau, rows = 1.0, np.arange(len(labels))
    if temperature:
        if len(labels) < 2:
            raise InputError("A temperature needs at least two labelled photos.")
        first, rows = halves(len(labels))
        with np.errstate(divide="ignore"):
            logits = np.maximum(np.log(np.asarray(probabilities[first], dtype=np.float64)), -700.0)
        tau = float(fit_temperature(logits, labels[first]))
    table, truth = tempered(np.asarray(probabilities, dtype=np.float64)[rows], tau), np.asarray(labels)[rows]
    confidence, prediction = top_label(table)
    correct = prediction == truth
    n, hits = len(truth), int(correct.sum())
    error, refused = None, None
    try:
        error = control_error(confidence, correct, risk, certainty)
    except InputError as reason:
        refused = str(reason)
    sets = fit(table, truth, coverage, method=method)
    share = (hits + 1) / (n + 2)
    return Checked(
        n=n, accuracy=hits / n, interval=binomial_interval(hits, n), mean_confidence=float(confidence.mean()),
        reliability=ece(confidence, correct, bins), chance=noise_floor(confidence)[1],
        needed=math.ceil(1.96**2 * share * (1 - share) / FIRM**2), temperature=tau, error=error, refused=refused,
        sets=sets, sets_on_these=evaluate(sets.sets(table), truth),
    )  # fmt: skip


def confidence_claim(zero: Scored, tuned: Scored, calibrated: Scored, changed: int, **draws: Any) -> str:
    """The share of the confidence added by TPT that CoTS removes; changed: number of predictions CoTS changes."""
    added = bootstrap(_difference, zero.confidence, tuned.confidence, **draws)
    first = f"TPT claims {_percent(tuned.mean_confidence)} and is right {_percent(tuned.correct.mean())}"
    if added.low <= 0:
        what = "took confidence away" if added.high < 0 else "did not clearly add confidence"
        return f"{first}; on these photos tuning {what} ({_points(added)}), so there is none to take back."
    share = bootstrap(_taken_back, zero.confidence, tuned.confidence, calibrated.confidence, **draws)
    answers = "the same answers" if not changed else f"{changed} answer{'s' if changed > 1 else ''} changed"
    second = f"CoTS claims {_percent(calibrated.mean_confidence)} with {answers}"
    interval = f"95% interval {_percent(share.low)} to {_percent(share.high)}"
    if share.low > 0:
        found = f"it takes back {_percent(share.value)} of the confidence that tuning added ({interval})"
    elif share.high < 0:
        more = f"95% interval {_percent(-share.high)} to {_percent(-share.low)}"
        found = f"it adds another {_percent(-share.value)} of the confidence that tuning added ({more})"
    else:
        found = f"whether it takes back any of the confidence that tuning added is not clear ({interval})"
    return f"{first}; {second}: {found}."


def accuracy_claim(zero: Scored, tuned: Scored, **draws: Any) -> str:
    """Whether TPT gained accuracy."""
    gain = bootstrap(_difference, zero.correct.astype(float), tuned.correct.astype(float), **draws)
    if gain.low > 0:
        return f"Tuning also gained accuracy: {_points(gain)}."
    if gain.high < 0:
        return f"Tuning cost accuracy: {_points(gain)}."
    return f"Tuning gained no clear accuracy: {_points(gain)}."


def trust_claim(tuned: Scored, calibrated: Scored, errors: float = 0.1, **draws: Any) -> str:
    """Coverage and error rate if photos are kept by stated confidence, up to an expected error rate of `errors`."""
    (kept, wrong), (kept_after, wrong_after) = (
        believed(one.confidence, one.correct, errors=errors) for one in (tuned, calibrated)
    )
    change = _change(lambda c, a, w: believed(c, a, errors=errors, weights=w)[1], tuned, calibrated, draws)
    verdict = _verdict(change, "CoTS leaves fewer errors", "CoTS leaves more errors")
    broken = " Neither keeps the promise." if min(wrong, wrong_after) > errors else ""
    return (
        f"Keep the photos whose stated confidence promises at most {_percent(errors)} errors. With TPT you keep "
        f"{_percent(kept)} of the photos and {_percent(wrong)} of these are wrong; with CoTS you keep "
        f"{_percent(kept_after)} and {_percent(wrong_after)} are wrong: {verdict} ({_points(change)}).{broken}"
    )


def coverage_claim(tuned: Scored, calibrated: Scored, errors: float = 0.1, **draws: Any) -> str:
    """Coverage at a given error rate, with the best threshold for these photos."""

    def coverage(confidence: np.ndarray, correct: np.ndarray, weights: Any = None) -> Any:
        curve = risk_coverage(confidence, correct, weights=weights)
        return np.where(curve.risk <= errors, curve.coverage, 0.0).max(axis=-1)

    before, after = (coverage(one.confidence, one.correct) for one in (tuned, calibrated))
    change = _change(coverage, tuned, calibrated, draws)
    verdict = _verdict(change, "CoTS keeps fewer", "CoTS keeps more")
    return (
        f"With labels to choose the threshold by, at most {_percent(errors)} errors: you keep {100 * after:.1f}% of "
        f"the photos instead of {100 * before:.1f}%: {verdict} ({_points(change)})."
    )


def believed(confidence: np.ndarray, correct: np.ndarray, *, errors: float, weights: Any = None) -> tuple[Any, Any]:
    """The share of photos kept and their error rate, if the most confident photos are kept up to a mean 1 - c of
    `errors`.

    With `weights` (B,S), one value of each per row; the error rate is 0 if nothing is kept.
    """
    order = np.argsort(-confidence, kind="stable")
    rows = np.ones(len(confidence)) if weights is None else np.asarray(weights)[..., order]
    kept = rows.cumsum(-1)
    stated = (rows * (1 - confidence[order])).cumsum(-1)
    # The mean of 1 - c over kept photos never falls, so the qualifying photos come first.
    inside = rows * (stated <= errors * kept)
    share = inside.sum(-1)
    wrong = (inside * ~correct[order]).sum(-1) / np.maximum(share, 1e-12)
    return share / kept[..., -1], wrong


def _difference(before: np.ndarray, after: np.ndarray, *, weights: Any = None) -> Any:
    return mean_of(after - before, weights)


def _taken_back(zero: np.ndarray, tuned: np.ndarray, calibrated: np.ndarray, *, weights: Any = None) -> Any:
    return mean_of(tuned - calibrated, weights) / mean_of(tuned - zero, weights)


def _change(figure: Callable[..., Any], tuned: Scored, calibrated: Scored, draws: Mapping[str, Any]) -> Interval:
    """How CoTS changes a figure of (confidence, correct, weights)."""

    def difference(c: np.ndarray, a: np.ndarray, d: np.ndarray, b: np.ndarray, *, weights: Any = None) -> Any:
        return figure(d, b, weights) - figure(c, a, weights)

    return bootstrap(difference, tuned.confidence, tuned.correct, calibrated.confidence, calibrated.correct, **draws)


def _verdict(change: Interval, below: str, above: str) -> str:
    return below if change.high < 0 else above if change.low > 0 else "a difference that may be chance"


def _percent(value: float) -> str:
    return f"{100 * value:.0f}%"


def _points(interval: Interval) -> str:
    """`-0.2 points, 95% interval -1.0 to +0.6`"""
    value, low, high = (f"{round(100 * x, 1) + 0.0:+.1f}" for x in (interval.value, interval.low, interval.high))
    return f"{value} points, 95% interval {low} to {high}"
