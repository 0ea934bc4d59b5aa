"""The error rate at every look: its intervals against their definitions, coverage by simulation, and the words."""

from __future__ import annotations

import numpy as np
import pytest

from cots import InputError
from cots.conformal import ErrorMonitor, mean_interval, rate_interval


def test_uniform_labels_count_and_the_others_do_not():
    monitor = ErrorMonitor(risk=0.05)
    for wrong in (None, False, True, None, False):
        monitor.add(wrong)
    seen = monitor.seen()
    assert (seen.acted, seen.checked, seen.errors) == (5, 3, 1)
    assert (seen.low, seen.high) == rate_interval(1, 3)
    assert ErrorMonitor(risk=0.05, acted=5, checked=3, errors=1).seen() == seen


def test_weighted_labels_are_divided_by_their_probability():
    monitor = ErrorMonitor(least=0.1)
    values = []
    for i in range(400):
        asked_with = 0.1 if i % 3 else 0.5
        wrong = None if i % 4 else i % 7 == 0
        monitor.add(wrong, None if wrong is None else asked_with)
        values.append(wrong / asked_with if wrong else 0.0)
    seen = monitor.seen()
    assert (seen.low, seen.high) == pytest.approx(mean_interval(values, most=10), abs=1e-9)
    assert (seen.acted, seen.checked) == (400, 100)


def test_the_rate_is_inside_at_every_look_in_most_runs():
    """Everything a user sees: the verdict after every label, stopping at the first that says broken."""
    rng, false, runs = np.random.default_rng(0), 0, 150
    for _ in range(runs):
        monitor, errors = ErrorMonitor(risk=0.1), 0
        for wrong in rng.random(120) < 0.1:
            monitor.add(bool(wrong))
            errors += wrong
            if wrong and monitor.seen().verdict == "broken":
                false += 1
                break
    assert false <= 13


@pytest.mark.parametrize(
    ("checked", "errors", "verdict"), [(0, 0, "open"), (80, 2, "open"), (400, 2, "kept"), (60, 20, "broken")]
)
def test_the_verdict_is_two_sided(checked, errors, verdict):
    seen = ErrorMonitor(risk=0.05, acted=1240, checked=checked, errors=errors).seen()
    assert seen.verdict == verdict
    ending = "still open" if verdict == "open" else verdict
    assert seen.text.startswith(f"acted on 1,240, checked {checked}, error ")
    assert seen.text.endswith(f"%, promise 5%: {ending}")
    without = ErrorMonitor(acted=1240, checked=checked, errors=errors).seen()
    assert "promise" not in without.text
    assert without.verdict == "open"


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ErrorMonitor(risk=5), r"risk must lie in \(0, 1\], such as 0.05, not 5"),
        (lambda: ErrorMonitor(level=95), "level must lie between 0 and 1"),
        (lambda: ErrorMonitor(checked=3), "errors <= checked <= acted"),
        (lambda: ErrorMonitor(least=0.1, acted=3), "counts of uniform labels"),
        (lambda: ErrorMonitor().add(True, 0.5), "asked_with is for weighted labels; pass least"),
        (lambda: ErrorMonitor(least=0.1).add(True), "asked_with must lie between least=0.1 and 1, not None"),
        (lambda: ErrorMonitor(least=0.1).add(True, 0.05), "not 0.05"),
    ],
)
def test_refusals(call, match):
    with pytest.raises(InputError, match=match):
        call()
