"""The sentences of the demo, each with a paired 95% interval.

The confidences of a photo under all methods are resampled together, so the interval is that of a difference.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..metrics import Interval, bootstrap, risk_coverage
from ..metrics.inputs import mean_of
from ._score import Scored


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
