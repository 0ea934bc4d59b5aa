"""Verdicts on labels drawn with known truth: calibrated, over-confident, and with a temperature."""

from __future__ import annotations

import numpy as np
import pytest

from cots.evaluate import check


def drawn(n: int, seed: int, power: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities p^power, normalised, and labels drawn from p."""
    rng = np.random.default_rng(seed)
    truth = rng.dirichlet([0.5] * 4, size=n)
    labels = (truth.cumsum(1) > rng.random((n, 1))).argmax(1)
    stated = truth**power + 1e-12
    return stated / stated.sum(1, keepdims=True), labels


def test_calibrated_probabilities_hold_and_sharpened_ones_do_not():
    held = [check(*drawn(400, seed)) for seed in range(10)]
    assert sum(found.holds for found in held) >= 8
    assert held[0].verdict.startswith("The confidence holds")
    sharp = check(*drawn(400, 0, power=3.0))
    assert not sharp.holds
    assert "points too high" in sharp.verdict
    assert sharp.interval[0] < sharp.accuracy < sharp.interval[1]
    assert "No verdict" in check(*drawn(100, 0)).verdict


def test_certain_and_always_right_holds():
    """Neither the error nor what chance allows is above zero."""
    labels = np.arange(300) % 3
    found = check(np.eye(3)[labels], labels)
    assert (found.reliability.value, found.chance) == (0, 0)
    assert found.holds


def test_a_temperature_is_fitted_on_one_half_and_judged_on_the_other():
    found = check(*drawn(1000, 1, power=3.0), temperature=True)
    assert found.temperature == pytest.approx(3.0, rel=0.25)
    assert found.n == 500
    assert found.holds
    assert any(line.startswith("Temperature") for line in found.lines())


def test_a_threshold_and_sets_are_reported():
    found = check(*drawn(600, 2), risk=0.3)
    assert found.error.threshold is not None
    assert found.error.bound <= 0.3
    assert any(line.startswith("Threshold") for line in found.lines())
    none = check(*drawn(250, 2), risk=0.01)
    assert none.error.threshold is None
    assert any(line.startswith("No threshold: ") for line in none.lines())
    assert none.sets_on_these.coverage >= 0.9
    assert none.needed > 250


def test_sets_of_at_most_one_class_are_said_to_be_of_little_use():
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 4, 400)
    answers = np.where(rng.random(400) < 0.95, labels, (labels + 1) % 4)
    table = np.full((400, 4), 0.1)
    table[np.arange(400), answers] = 0.7 - 1e-3 * rng.random(400)
    table /= table.sum(1, keepdims=True)
    little = "Sets of at most one class are of little use; use --sets raps, or a higher --coverage."
    one = check(table, labels, method="lac")
    assert one.sets_on_these.mean_size <= 1
    assert one.sets_on_these.empty > 0
    assert one.lines()[-1] == little
    assert f"{one.sets_on_these.empty:.1%} empty (these abstain)." in one.lines()[-2]
    larger = check(table, labels, coverage=0.99)
    assert larger.sets_on_these.mean_size > 1
    assert little not in larger.lines()
    assert check(table, labels, method="aps").sets_on_these.empty == 0
