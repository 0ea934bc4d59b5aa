"""Monitoring without labels: whether the signals of a classifier have changed.

It shows when to look at the photos, not whether predictions are right: confidence can stay the same while accuracy
falls, and vice versa.
"""

import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._errors import InputError, whole_number

SIGNALS: tuple[str, ...] = ("confidence", "agreement", "in_list")  # fields of a Prediction
WINDOW = 200  # predictions per comparison
FALSE_ALARMS = 0.001  # maximum share of unchanged windows that raise the flag
KEPT = 1000  # predictions in the reference of a policy


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A summary of the last window of predictions, and its comparison with the reference.

    n: predictions so far. confidence, agreement: means. none_of_these: share. reference: number of predictions in the
    reference, 0 while they are being collected. windows: number compared so far. changed: the signals in which the last
    complete window differs from the reference.
    """

    n: int
    confidence: float
    agreement: float
    none_of_these: float
    reference: int
    windows: int
    changed: tuple[str, ...]

    @property
    def drift(self) -> bool:
        return bool(self.changed)


class Watch:
    """Keeps the last `window` predictions and compares each complete window with the reference.

        watch = Watch(policy.reference)
        watch.add(prediction)
        watch.seen().drift

    reference: values of each signal, from `reference_of`; default: the first `window` predictions. Windows do not
    overlap, and an unchanged one raises the flag with a probability of at most 1 in 1,000. Thread-safe.
    """

    def __init__(self, reference: Mapping[str, Sequence[float]] | None = None, window: int = WINDOW) -> None:
        self.window = whole_number("window", window, 2)
        self._reference = None if reference is None else _sorted(reference)
        self._last: deque[tuple[float, ...]] = deque(maxlen=window)
        self._lock = threading.Lock()
        self._n = self._in_window = self._windows = 0
        self._changed: tuple[str, ...] = ()

    def add(self, prediction: Any) -> None:
        """Add a `Prediction`; one with an error is ignored."""
        if prediction.error is not None:
            return
        row = (*(getattr(prediction, name) for name in SIGNALS), float(prediction.none_of_these))
        with self._lock:
            self._last.append(row)
            self._n += 1
            self._in_window += 1
            if self._in_window < self.window:
                return
            self._in_window = 0
            values = dict(zip(SIGNALS, np.array(self._last).T, strict=False))
            if self._reference is None:
                self._reference = _sorted(values)
                return
            self._windows += 1
            self._changed = changed(self._reference, values)

    def seen(self) -> Seen:
        with self._lock:
            means = np.array(self._last).mean(0) if self._last else np.full(len(SIGNALS) + 1, np.nan)
            return Seen(
                n=self._n, confidence=float(means[0]), agreement=float(means[1]), none_of_these=float(means[3]),
                reference=0 if self._reference is None else len(self._reference["confidence"]),
                windows=self._windows, changed=self._changed,
            )  # fmt: skip


def _sorted(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.sort(values[name]) for name in SIGNALS}


def reference_of(predictions: Sequence[Any]) -> dict[str, list[float]]:
    """The sorted values of each signal, at most `KEPT` evenly spaced ones."""
    good = [one for one in predictions if one.error is None]
    if not good:
        raise InputError("A reference needs at least one prediction without an error.")
    spread = np.unique(np.linspace(0, len(good) - 1, min(KEPT, len(good))).round().astype(int))
    reference = {}
    for name in SIGNALS:
        values = np.sort([getattr(one, name) for one in good])
        reference[name] = values[spread].tolist()
    return reference


def changed(
    reference: Mapping[str, Any], window: Mapping[str, Any], false_alarms: float = FALSE_ALARMS
) -> tuple[str, ...]:
    """The signals whose distribution differs, by the two-sample Kolmogorov-Smirnov test.

    A signal counts as changed if the bound 2 exp(-2 D^2 nm / (n + m)) on the probability of a distance D is below
    false_alarms / number of signals, so that all signals together raise at most that many. Ties make it rarer.
    """
    names = []
    for name in SIGNALS:
        a, b = np.sort(reference[name]), np.sort(window[name])
        bound = 2 * math.exp(-2 * distance(a, b) ** 2 * len(a) * len(b) / (len(a) + len(b)))
        if bound < false_alarms / len(SIGNALS):
            names.append(name)
    return tuple(names)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference between the empirical distribution functions of two sorted samples."""
    values = np.concatenate([a, b])
    return float(
        np.abs(np.searchsorted(a, values, "right") / len(a) - np.searchsorted(b, values, "right") / len(b)).max()
    )


def lines(seen: Seen, window: int = WINDOW) -> list[str]:
    """What `cots check --unlabelled` prints."""
    recent = f"the last {window} of " if seen.n > window else ""
    texts = [
        f"{recent}{seen.n} photos: mean confidence {seen.confidence:.1%}, {seen.agreement:.1%} of the views agree with "
        f"the answer, {seen.none_of_these:.1%} of the photos seem to show none of the classes."
    ]
    if not seen.windows:
        remedy = f"{window} photos" if seen.reference else f"{2 * window} photos, or {window} and --policy"
        texts.append(f"No comparison with a reference yet: it takes {remedy}.")
    elif seen.drift:
        names = ", ".join(
            {"agreement": "agreement of views", "in_list": "none of these"}.get(n, n) for n in seen.changed
        )
        texts.append(f"Changed since the reference of {seen.reference} photos: {names}. Look at these photos.")
    else:
        texts.append(f"No change against the reference of {seen.reference} photos.")
    return [*texts, "This shows when to look at the photos, not whether the predictions are right."]
