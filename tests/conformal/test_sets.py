"""Prediction sets: coverage over random splits, scores by hand, JSON, errors."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch

from cots import InputError, conformal

METHODS = ("lac", "aps", "raps")


@functools.cache
def world(n: int, seed: int = 0, classes: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Over-confident probabilities and labels drawn from flatter ones: the guarantee must not need calibration."""
    rng = np.random.default_rng(seed)
    truth = rng.dirichlet([0.4] * classes, size=n)
    labels = (truth.cumsum(1) > rng.random((n, 1))).argmax(1)
    stated = truth**2 + 1e-9
    return stated / stated.sum(1, keepdims=True), labels


@pytest.mark.parametrize("method", METHODS)
def test_marginal_coverage_over_a_thousand_splits(method):
    """Mean coverage lies between 1 - a and 1 - a + 1/(n + 1), within the binomial error of 1,000 splits."""
    table, labels = world(200_000)
    rng, n, m, splits = np.random.default_rng(1), 50, 50, 1000
    covered = 0.0
    for _ in range(splits):
        rows = rng.integers(0, len(labels), n + m)
        sets = conformal.fit(table[rows[:n]], labels[rows[:n]], 0.9, method=method)
        covered += sets.sets(table[rows[n:]])[np.arange(m), labels[rows[n:]]].mean()
    expected = math.ceil((n + 1) * 0.9) / (n + 1)
    # The coverage of one split varies with its labelled half (Beta) and its new half (binomial).
    error = math.sqrt(expected * (1 - expected) * (1 / (n + 2) + 1 / m) / splits)
    assert covered / splits == pytest.approx(expected, abs=4 * error)


def test_class_conditional_coverage():
    table, labels = world(60_000, classes=3)
    sets = conformal.fit(table[:3000], labels[:3000], 0.8, per_class=True)
    found = conformal.evaluate(sets.sets(table[3000:]), labels[3000:])
    np.testing.assert_allclose(found.per_class, 0.8, atol=0.05)
    assert found.interval[0] < found.coverage < found.interval[1]
    few = conformal.fit(table[:3], [0, 0, 1], 0.8, per_class=True)
    assert few.thresholds == (math.inf,) * 3
    assert few.sets(table[:5]).all(), "too few labels leave no class out"


def test_scores_by_hand():
    table = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    labels = [1, 2]
    for method, of_label in (("lac", (0.7, 0.2)), ("aps", (0.8, 0.8)), ("raps", (0.9, 0.8))):
        sets = conformal.fit(table, labels, 0.6, method=method, penalty=0.1, free=1)
        assert sets.thresholds == pytest.approx((max(of_label),) * 3)
    assert sets.sets(torch.tensor(table)).tolist() == [[True, True, False], [False, False, True]]
    found = conformal.evaluate([[True, True, False], [False, False, False]], [1, 2])
    assert (found.coverage, found.mean_size, found.empty, found.n) == (0.5, 1.0, 0.5, 2)
    assert found.per_class.tolist()[1:] == [1.0, 0.0]
    assert math.isnan(found.per_class[0])


def test_saved_sets_come_back(tmp_path):
    table, labels = world(40)
    for per_class in (False, True):
        sets = conformal.fit(table, labels, method="raps", per_class=per_class)
        sets.save(tmp_path / "sets.json")
        assert conformal.ConformalSets.load(tmp_path / "sets.json") == sets
    (tmp_path / "sets.json").write_text("{}")
    with pytest.raises(InputError, match="is not a file of prediction sets"):
        conformal.ConformalSets.load(tmp_path / "sets.json")


def test_bad_inputs_are_named():
    table, labels = world(10)
    for given, message in (
        ({"coverage": 1.0}, "coverage must lie between 0 and 1"),
        ({"method": "laq"}, "Did you mean 'lac'"),
        ({"penalty": -1.0}, "penalty must be a number >= 0"),
    ):
        with pytest.raises(InputError, match=message):
            conformal.fit(table, labels, **given)
    with pytest.raises(InputError, match="have 2 classes; these sets were fitted on 6"):
        conformal.fit(table, labels).sets([[0.5, 0.5]])
    with pytest.raises(InputError, match="shape"):
        conformal.evaluate([True], [0])
