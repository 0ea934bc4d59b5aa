"""Promises beside outcomes: two-sided verdicts, and the kinds of sets that `check` chooses."""

from __future__ import annotations

import numpy as np
import pytest

from cots.conformal import fit
from cots.evaluate import check
from cots.evaluate._trial import Outcome


@pytest.mark.parametrize(
    ("count", "at_most", "verdict"),
    [
        (10, True, "The promise held."),
        (14, True, "Beyond the promise by no more than chance explains."),
        (30, True, "The promise did not hold: label some of these photos and run cots check again."),
        (185, False, "The promise held."),
        (175, False, "Beyond the promise by no more than chance explains."),
        (150, False, "The promise did not hold: label some of these photos and run cots check again."),
    ],
)
def test_verdicts_are_two_sided(count, at_most, verdict):
    outcome = Outcome(promised=0.05 if at_most else 0.9, count=count, n=200, at_most=at_most)
    assert outcome.verdict == verdict
    assert outcome.line("Errors").endswith(
        f"{count} of 200, {count / 2:.1f}% (95% interval "
        f"{100 * outcome.interval[0]:.1f}% to {100 * outcome.interval[1]:.1f}%). "
        f"{verdict}"
    )


def draw(rng: np.random.Generator, n: int, sharpness: float) -> tuple[np.ndarray, np.ndarray]:
    """Calibrated probabilities of ten classes, and labels drawn from them."""
    logits = sharpness * rng.standard_normal((n, 10))
    table = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return table, (table.cumsum(1) > rng.random((n, 1))).argmax(1)


def test_the_chosen_sets_cover_also_where_the_choice_is_open():
    """At a mean confidence near the coverage, where either kind is chosen: 300 draws of 200 labels each."""
    rng, chosen, hits = np.random.default_rng(0), [], []
    mean = np.mean([draw(rng, 4000, 6.0)[0].max(1).mean() for _ in range(5)])
    for _ in range(300):
        table, labels = draw(rng, 200, 6.0)
        kind = "raps" if table.max(1).mean() >= mean else "lac"
        found = check(table, labels, coverage=float(mean))
        assert found.sets.method == kind
        assert found.sets == fit(table, labels, float(mean), method=kind)
        new, truth = draw(rng, 200, 6.0)
        hits.append(found.sets.decide(new)[np.arange(200), truth].mean())
        chosen.append(kind)
    assert 0.3 < np.mean([kind == "raps" for kind in chosen]) < 0.7
    assert np.mean(hits) >= mean - 3 * np.std(hits) / 300**0.5
