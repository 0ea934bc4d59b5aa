"""What all metrics share: weights, kinds of input, results, examples."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import pkgutil

import numpy as np
import pytest
import torch
from support.metrics import classifier, top

import cots.metrics as metrics
from cots.metrics import (
    accuracy,
    adaptive_ece,
    brier_multiclass,
    brier_top_label,
    classwise_ece,
    confidence_gap,
    ece,
    mce,
    nll,
    risk_coverage,
)

ON_CONFIDENCE = [ece, mce, risk_coverage, confidence_gap, brier_top_label]


ON_PROBABILITIES = [adaptive_ece, classwise_ece, brier_multiclass, nll]


@pytest.mark.parametrize("metric", [ece, mce, risk_coverage, confidence_gap, brier_top_label], ids=lambda m: m.__name__)
def test_integer_weights_repeat_samples(metric):
    confidence, correct = top(10, n=60)
    confidence = confidence.round(2)  # ties, and values on edges
    stack = np.random.default_rng(0).integers(0, 4, (7, 60))
    repeated = [float(metric(confidence.repeat(row), correct.repeat(row))) for row in stack]
    assert metric(confidence, correct, weights=stack).value == pytest.approx(repeated, abs=1e-13)
    alone = metric(confidence, correct, weights=stack[0])
    assert float(alone) == pytest.approx(repeated[0], abs=1e-13)
    assert float(metric(confidence, correct, weights=np.full(60, 0.3))) == pytest.approx(
        float(metric(confidence, correct)), abs=1e-13
    )


def test_weighted_bins_and_curves_are_those_of_repeated_samples():
    confidence, correct = top(11, n=60)
    weights = np.arange(60) % 3
    for name in ("counts", "mean_confidence", "accuracy"):
        repeated = getattr(ece(confidence.repeat(weights), correct.repeat(weights)), name)
        np.testing.assert_allclose(getattr(ece(confidence, correct, weights=weights), name), repeated, atol=1e-13)
    curve = risk_coverage(confidence, correct, weights=weights)
    repeated = risk_coverage(confidence.repeat(weights), correct.repeat(weights))
    shown = np.isin(curve.thresholds, repeated.thresholds)
    np.testing.assert_allclose(curve.risk[shown], repeated.risk, atol=1e-13)
    np.testing.assert_allclose(curve.coverage[shown], repeated.coverage, atol=1e-13)


def test_a_row_of_zero_weights_has_no_figure():
    for metric in (ece, mce, risk_coverage, brier_top_label):
        value = metric([0.5, 0.7], [True, False], weights=[[0, 0], [1, 1]]).value
        assert np.isnan(value).tolist() == [True, False]


@pytest.mark.parametrize("metric", ON_CONFIDENCE + ON_PROBABILITIES, ids=lambda m: m.__name__)
def test_arrays_lists_and_tensors_give_the_same_float64_figure(metric):
    first, second = top(8) if metric in ON_CONFIDENCE else classifier(8)
    expected = metric(first, second)
    assert type(float(expected)) is type(expected.value) is float
    assert expected.n == 400
    assert float(metric(first.tolist(), second.tolist())) == expected.value
    graph = torch.from_numpy(first).requires_grad_()
    assert float(metric(graph, torch.from_numpy(second))) == expected.value
    half = torch.from_numpy(first).half()
    assert float(metric(half, second)) == pytest.approx(expected.value, abs=0.02)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("metric", ON_CONFIDENCE + ON_PROBABILITIES, ids=lambda m: m.__name__)
def test_tensors_on_a_gpu(metric):
    first, second = top(8) if metric in ON_CONFIDENCE else classifier(8)
    on_gpu = metric(torch.from_numpy(first).cuda(), torch.from_numpy(second).cuda())
    assert float(on_gpu) == float(metric(first, second))


@pytest.mark.parametrize("correct", [[True, False], [1, 0], [1.0, 0.0], torch.tensor([1, 0], dtype=torch.uint8)])
def test_correct_may_be_bool_or_zero_and_one(correct):
    assert float(ece([0.75, 0.75], correct)) == 0.25
    assert float(accuracy(correct)) == 0.5


def test_results_are_frozen_readable_and_format_as_numbers():
    result = ece([0.8, 0.8], [True, False])
    assert repr(result) == str(result) == "BinnedScore(ece=0.3000, n=2, bins=20)"
    assert f"{result:.1%}" == "30.0%"
    assert f"{result}" == repr(result)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.value = 0.0  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        result.counts[0] = 7


def test_inputs_are_left_as_they_are():
    probabilities, labels = classifier(9)
    before = probabilities.copy()
    confidence = probabilities.max(axis=1)
    for metric in ON_PROBABILITIES:
        metric(probabilities, labels)
    for metric in ON_CONFIDENCE:
        metric(confidence, labels == 0)
    assert np.array_equal(probabilities, before)
    assert probabilities.flags.writeable
    assert confidence.flags.writeable
    assert labels.flags.writeable


MODULES = ["cots.metrics", *(f"cots.metrics.{module.name}" for module in pkgutil.iter_modules(metrics.__path__))]


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples_run(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0


def test_every_public_function_has_a_formula_or_example_and_is_exported():
    finder = doctest.DocTestFinder()
    for name in metrics.__all__:
        public = getattr(metrics, name)
        if callable(public) and not isinstance(public, type):
            assert any(test.examples for test in finder.find(public, name)), f"{name} has no example"
