"""The demo's conclusions from figures: what tuning and calibration do to the confidence, and what labels buy.

Each conclusion about two methods has a paired 95% interval: the figures of a photo under both are resampled together,
so the interval is that of a difference. An interval that includes zero is reported as such.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..conformal import ErrorControl, control_error, lowest_threshold
from ..metrics import Interval, binomial_interval, bootstrap
from ..metrics.inputs import mean_of
from ._score import Scored


def gap_claim(title: str, scored: Scored, **draws: Any) -> str:
    """Whether the confidence of a method matches its accuracy."""
    gap = _gap(scored, draws)
    found = "calibrated within chance"
    if gap.low > 0:
        found = "over-confident"
    elif gap.high < 0:
        found = "under-confident"
    stated, right = _percent(scored.mean_confidence), _percent(scored.correct.mean())
    return f"{title} is {found}: {stated} sure, {right} right, gap {_points(gap)}."


def confidence_claim(zero: Scored, tuned: Scored, calibrated: Scored, changed: int, **draws: Any) -> str:
    """The share of the confidence added by TPT that CoTS removes; changed: number of predictions CoTS changes."""
    added = bootstrap(_difference, zero.confidence, tuned.confidence, **draws)
    if added.low <= 0:
        what = "took confidence away" if added.high < 0 else "did not clearly add confidence"
        return f"On these photos tuning {what} ({_points(added)}), so there is none to take back."
    share = bootstrap(_taken_back, zero.confidence, tuned.confidence, calibrated.confidence, **draws)
    answers = "the same answers" if not changed else f"{changed} answer{'s' if changed > 1 else ''} changed"
    low, high = share.low, share.high
    if low > 0:
        found = f"takes back {_whole(share.value)} of that"
    elif high < 0:
        found = f"adds another {_whole(-share.value)} of that"
        low, high = -high, -low
    else:
        found = "takes back a share that is within chance"
    interval = f"[{100 * low:.0f}, {100 * high:.0f}]"
    return f"Tuning added {_points(added)} of confidence; CoTS, with {answers}, {found} {interval}."


def accuracy_claim(title: str, before: Scored, after: Scored, than: str, **draws: Any) -> str:
    """Whether a method is right more often than another."""
    gain = bootstrap(_difference, before.correct.astype(float), after.correct.astype(float), **draws)
    if gain.low > 0:
        return f"{title} is right more often than {than}: {_points(gain)}."
    if gain.high < 0:
        return f"{title} is right less often than {than}: {_points(gain)}."
    return f"{title} is right as often as {than}, within chance: {_points(gain)}."


def remaining_claim(zero: Scored, calibrated: Scored, **draws: Any) -> str:
    """What CoTS leaves of the gap between confidence and accuracy, and where that comes from."""
    left = _gap(calibrated, draws)
    if left.low <= 0 <= left.high:
        return f"What CoTS leaves of the gap is within chance: {_points(left)}."
    if left.low > 0 and _gap(zero, draws).low > 0:
        return f"What CoTS leaves of the gap is zero-shot's own, and only labels can correct it: {_points(left)}."
    return f"CoTS leaves a gap: {_points(left)}."


@dataclass(frozen=True, kw_only=True)
class Acted:
    """A threshold from labelled photos, applied to other photos.

    promise: the threshold with its risk and certainty; without a threshold, no photo is kept.
    n, kept, wrong: numbers of other photos.
    """

    risk: float
    labels: int
    promise: ErrorControl = field(repr=False)
    n: int
    kept: int
    wrong: int

    @property
    def error_rate(self) -> float:
        return self.wrong / max(1, self.kept)

    @property
    def interval(self) -> tuple[float, float]:
        """Exact 95% interval of the error rate."""
        return binomial_interval(self.wrong, self.kept) if self.kept else (0.0, 1.0)

    @property
    def verdict(self) -> str:
        """Whether the promise was kept or broken, or the interval of the error rate includes it."""
        return _verdict(self.promise.risk, self.interval)

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Promised risk, share kept, share wrong with its interval, verdict."""
        if self.promise.threshold is None:
            return "none", "0%", "–", "–"
        low, high = self.interval
        wrong = f"{_percent(self.error_rate)} [{100 * low:.1f}, {100 * high:.1f}]"
        return _whole(self.promise.risk), _whole(self.kept / self.n), wrong, self.verdict

    def as_dict(self) -> dict[str, Any]:
        """The figures in JSON types; without a promise, risk and threshold are None."""
        threshold = self.promise.threshold
        risk = None if threshold is None else self.promise.risk
        counts = {"labels": self.labels, "photos": self.n, "kept": self.kept, "wrong": self.wrong}
        return {"risk": risk, "threshold": threshold, **counts, "interval": self.interval, "verdict": self.verdict}


def act(scored: Scored, labelled: np.ndarray, risk: float = 0.05, certainty: float = 0.95) -> Acted:
    """Choose a threshold on the labelled photos (a mask) and keep the others at or above it.

    If the labels do not support `risk`, the smallest risk that they do support is promised instead.
    """
    confidence, correct = scored.confidence[labelled], scored.correct[labelled]
    promise = control_error(confidence, correct, risk, certainty)
    if promise.threshold is None and promise.offered_risk is not None:
        promise = control_error(confidence, correct, promise.offered_risk, certainty)
    kept = np.zeros(len(scored), dtype=bool)
    if promise.threshold is not None:
        kept = ~labelled & (scored.confidence >= promise.threshold)
    n, wrong = int((~labelled).sum()), int((kept & ~scored.correct).sum())
    return Acted(risk=risk, labels=len(scored) - n, promise=promise, n=n, kept=int(kept.sum()), wrong=wrong)


def labels_claim(kind: str, scored: Scored, acted: Acted, labelled: np.ndarray) -> str:
    """What labels buy: the promise of the confidence and that of a threshold from labels, on the same photos."""
    kept, wrong = believed(scored.confidence[~labelled], scored.correct[~labelled], acted.risk)
    said = f"{kind.capitalize()}: taken at its word, CoTS's confidence promises at most {_whole(acted.risk)} errors"
    said += f" on {_whole(kept / acted.n)} of the photos"
    if kept:
        said += f"; {_percent(wrong / kept)} of these are wrong, {_judged(acted.risk, binomial_interval(wrong, kept))}"
    if acted.promise.threshold is None:
        return f"{said}. {acted.labels} labelled photos support no promise."
    promise, share, rate, _ = acted.cells
    said += f". {acted.labels} labelled photos promise "
    said += "the same" if acted.promise.risk == acted.risk else f"no better than {promise} errors"
    said += f" on {share} of the others"
    return f"{said}; {rate} of these are wrong, {_judged(acted.promise.risk, acted.interval)}."


def used_claim(
    scored: Mapping[str, Scored], acted: Mapping[str, Acted], labelled: np.ndarray, *, seed: int, resamples: int
) -> str:
    """What the table of all methods shows: broken promises, who uses most photos, and CoTS beside TPT.

    Both keyed by "TPT", "CoTS" and the titles of others. CoTS and TPT give the same answers. The interval is of a
    bootstrap that draws the labelled and the other photos again and chooses each threshold again at its promised risk.
    """
    broken = [title for title, one in acted.items() if one.verdict == "broken"]
    said = f"With labels, the promise of {' and '.join(broken)} is broken"
    if not broken:
        said = "With labels, no promise is broken, whichever confidence the threshold is for"
    most = max(acted, key=lambda title: acted[title].kept)
    if len({one.promise.risk for one in acted.values()}) > 1:
        return f"{said}; the promises differ, so the shares of photos used do not compare."
    if not acted[most].kept:
        return f"{said}; no photo is used."
    difference = (acted["CoTS"].kept - acted["TPT"].kept) / acted["TPT"].n
    rng, labels, others = np.random.default_rng(seed), np.flatnonzero(labelled), np.flatnonzero(~labelled)
    drawn = np.empty(resamples)
    for i in range(resamples):
        known, new = rng.choice(labels, len(labels)), rng.choice(others, len(others))
        tuned = _used(scored["TPT"], acted["TPT"].promise, known, new)
        drawn[i] = _used(scored["CoTS"], acted["CoTS"].promise, known, new) - tuned
    low, high = np.quantile(drawn, (0.025, 0.975))
    found = "as many as TPT, within chance"
    if low > 0:
        found = "more than TPT"
    elif high < 0:
        found = "fewer than TPT"
    interval = f"{100 * difference:+.0f} points [{100 * low:+.0f}, {100 * high:+.0f}]"
    share = _whole(acted[most].kept / acted[most].n)
    return f"{said}. {most} uses the most photos, {share}. CoTS uses {found}: {interval}."


def _used(scored: Scored, promise: ErrorControl, labels: np.ndarray, others: np.ndarray) -> float:
    """The share of the other photos that a threshold from the labelled ones uses."""
    confidence, correct = scored.confidence[labels], scored.correct[labels]
    threshold = lowest_threshold(confidence, correct, promise.risk, promise.certainty)
    return 0.0 if threshold is None else float((scored.confidence[others] >= threshold).mean())


def believed(confidence: np.ndarray, correct: np.ndarray, errors: float) -> tuple[int, int]:
    """Number of photos kept and number wrong, if the most confident are kept up to a mean 1 - c of `errors`."""
    order = np.argsort(-confidence, kind="stable")
    # The mean of 1 - c over kept photos never falls, so the qualifying photos come first.
    stated = (1 - confidence[order].astype(np.float64)).cumsum()
    kept = int((stated <= errors * np.arange(1, len(order) + 1)).sum())
    return kept, int((~correct[order[:kept]]).sum())


def _judged(promised: float, interval: tuple[float, float]) -> str:
    verdict = _verdict(promised, interval)
    return f"which is {verdict} of {_whole(promised)}" if verdict == "within chance" else f"so the promise is {verdict}"


def _verdict(promised: float, interval: tuple[float, float]) -> str:
    if interval[1] <= promised:
        return "kept"
    if interval[0] > promised:
        return "broken"
    return "within chance"


def _gap(scored: Scored, draws: Mapping[str, Any]) -> Interval:
    return bootstrap(_difference, scored.correct.astype(float), scored.confidence, **draws)


def _difference(before: np.ndarray, after: np.ndarray, *, weights: Any = None) -> Any:
    return mean_of(after - before, weights)


def _taken_back(zero: np.ndarray, tuned: np.ndarray, calibrated: np.ndarray, *, weights: Any = None) -> Any:
    return mean_of(tuned - calibrated, weights) / mean_of(tuned - zero, weights)


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def _whole(value: float) -> str:
    return f"{100 * value:.0f}%"


def _points(interval: Interval) -> str:
    """`-0.2 points [-1.0, +0.6]`"""
    value, low, high = (f"{round(100 * x, 1) + 0.0:+.1f}" for x in (interval.value, interval.low, interval.high))
    return f"{value} points [{low}, {high}]"
