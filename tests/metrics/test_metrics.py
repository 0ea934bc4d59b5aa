"""Metrics against hand-worked cases, naive loops from the definitions, and other libraries where definitions agree."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import math
import pkgutil

import numpy as np
import pytest
import torch
from scipy import stats
from torchmetrics.functional.classification import multiclass_calibration_error

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
    top_label,
)


def classifier(seed: int, n: int = 400, classes: int = 7, sharpness: float = 1.5):
    """Float64 probabilities and labels of a classifier that is right about half of the time, and over-confident."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    logits = rng.normal(size=(n, classes)) + 1.5 * np.eye(classes)[labels]
    return torch.from_numpy(sharpness * logits).softmax(-1).numpy(), labels


def top(seed: int, **settings):
    probabilities, labels = classifier(seed, **settings)
    confidence, prediction = top_label(probabilities)
    return confidence, prediction == labels


# The definitions, one sample at a time.


def in_bin(value: float, m: int, bins: int) -> bool:
    return m / bins < value <= (m + 1) / bins or (m == 0 and value == 0)


def naive_gaps(confidence, correct, bins):
    """(|B|, |acc - conf|) of each bin that is not empty."""
    gaps = []
    for m in range(bins):
        inside = [(c, a) for c, a in zip(confidence, correct, strict=True) if in_bin(c, m, bins)]
        if inside:
            conf = sum(c for c, _ in inside) / len(inside)
            acc = sum(bool(a) for _, a in inside) / len(inside)
            gaps.append((len(inside), abs(acc - conf)))
    return gaps


def naive_ece(confidence, correct, bins):
    return sum(size / len(confidence) * gap for size, gap in naive_gaps(confidence, correct, bins))


def naive_adaptive(probabilities, labels, ranges):
    """Sort and split; samples of equal probability share their hits."""
    n, classes = probabilities.shape
    total, terms = 0.0, 0
    for c in range(classes):
        score = probabilities[:, c]
        share = [np.mean([labels[j] == c for j in range(n) if score[j] == score[i]]) for i in range(n)]
        for part in np.array_split(np.argsort(score), min(ranges, n)):
            total += abs(np.mean([share[i] for i in part]) - np.mean(score[part]))
            terms += 1
    return total / terms


def naive_aurc(confidence, correct):
    risks = []
    for threshold in confidence:
        accepted = [not a for c, a in zip(confidence, correct, strict=True) if c >= threshold]
        risks.append(sum(accepted) / len(accepted))
    return sum(risks) / len(risks)


# Hand-worked cases: edges of bins.


def filled(result) -> list[int]:
    return [m for m, count in enumerate(result.counts) if count]


@pytest.mark.parametrize(
    ("confidence", "bin_index"),
    [
        (0.0, 0),
        (1e-300, 0),
        (0.05, 0),
        (np.nextafter(0.05, 1), 1),
        (0.15, 2),
        (np.nextafter(0.15, 1), 3),
        (np.nextafter(0.15, 0), 2),
        (0.95, 18),
        (np.nextafter(0.95, 1), 19),
        (1.0, 19),
    ],
)
def test_bins_are_open_below_and_closed_above(confidence, bin_index):
    for metric in (ece, mce):
        assert filled(metric([confidence], [True], bins=20)) == [bin_index]


@pytest.mark.parametrize("bins", [1, 3, 7, 10, 15, 20, 49, 100])
def test_every_decimal_edge_lies_in_the_bin_below_it(bins):
    for m in range(1, bins + 1):
        assert filled(ece([m / bins], [True], bins=bins)) == [m - 1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_value_is_binned_by_its_float64_whatever_it_was_stored_in(dtype):
    """0.15 in float32 is 0.15000000596, above the edge 3/20: arrays, tensors and widened copies agree."""
    shares = torch.tensor([m / 20 for m in range(21)], dtype=torch.float64).to(dtype)
    right = torch.ones(21, dtype=torch.bool)
    expected = [sum(in_bin(float(share), m, 20) for share in shares) for m in range(20)]
    assert ece(shares, right).counts.tolist() == ece(shares.double(), right).counts.tolist() == expected
    if dtype != torch.bfloat16:
        assert ece(shares.numpy(), right).counts.tolist() == expected
    table = torch.stack([shares, 1 - shares.double()], dim=1).to(dtype)
    assert classwise_ece(table, torch.zeros(21)).counts[0].tolist() == expected
    assert filled(ece(torch.tensor([0.15]), [True])) == [3]


def test_ece_and_mce_by_hand():
    # In [0, 0.05] one at 0, wrong; in (0.75, 0.8] two at 0.8, one of them right; in (0.95, 1] one at 1, wrong.
    confidence, correct = [0.8, 0.8, 1.0, 0.0], [True, False, False, False]
    result = ece(confidence, correct, bins=20)
    assert float(result) == pytest.approx(2 / 4 * 0.3 + 1 / 4 * 1.0, abs=1e-15)
    assert float(mce(confidence, correct)) == 1.0
    assert filled(result) == [0, 15, 19]
    assert result.mean_confidence[15] == pytest.approx(0.8)
    assert result.accuracy[[0, 15, 19]].tolist() == [0.0, 0.5, 0.0]
    assert result.gap[[0, 15, 19]] == pytest.approx([0.0, 0.3, 1.0])
    empty = result.counts == 0
    assert np.isnan(result.mean_confidence[empty]).all()
    assert np.isnan(result.accuracy[empty]).all()
    assert result.edges.tolist() == [m / 20 for m in range(21)]


def test_confidence_all_zero_and_all_one():
    assert float(ece([0.0, 0.0], [False, False])) == 0.0
    assert float(ece([0.0, 0.0], [True, True])) == 1.0
    assert float(ece([1.0, 1.0], [True, True])) == 0.0
    assert float(mce([1.0, 1.0, 1.0, 1.0], [True, False, False, False])) == 0.75


def test_classwise_by_hand():
    # Class 0: 0.9 hit, 0.6 miss -> |1-.9|/2 + |0-.6|/2 = .35; class 1: 0.1 miss, 0.3 hit -> .4; class 2: 0, 0.1 -> .05.
    result = classwise_ece([[0.9, 0.1, 0.0], [0.6, 0.3, 0.1]], [0, 1])
    assert result.per_class == pytest.approx([0.35, 0.4, 0.05])
    assert float(result) == pytest.approx(0.8 / 3)
    assert result.counts.shape == (3, 20)
    assert result.counts.sum(axis=1).tolist() == [2, 2, 2]


def test_adaptive_by_hand():
    # Class 0 sorted: .2 .4 | .6, hits 0 1 | 1, gaps |.5-.3| and |1-.6|.
    # Class 1 sorted: .4 .6 | .8, hits 0 0 | 1, gaps |0-.5| and |1-.8|.
    result = adaptive_ece([[0.6, 0.4], [0.2, 0.8], [0.4, 0.6]], [0, 1, 0], ranges=2)
    assert result.per_class == pytest.approx([0.3, 0.35])
    assert float(result) == pytest.approx(0.325)
    assert result.counts.tolist() == [[2, 1], [2, 1]]
    assert result.edges == pytest.approx(np.array([[0.2, 0.4, 0.6], [0.4, 0.6, 0.8]]))


def test_adaptive_with_fewer_samples_than_ranges_has_one_sample_a_range():
    result = adaptive_ece([[0.9, 0.1], [0.4, 0.6]], [0, 0], ranges=20)
    assert result.counts.tolist() == [[1, 1], [1, 1]]
    assert float(result) == pytest.approx((0.1 + 0.6 + 0.1 + 0.6) / 4)


def test_adaptive_shares_the_hits_of_ties_between_ranges():
    # All probabilities equal, half the labels each: every range must see half of its samples hit, in any order.
    tie = np.full((4, 2), 0.5)
    for labels in ([0, 0, 1, 1], [1, 0, 0, 1]):
        result = adaptive_ece(tie, labels, ranges=2)
        assert float(result) == 0.0
        assert result.accuracy.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_scores_by_hand():
    confidence, correct = [0.9, 0.6, 0.5], [True, False, True]
    assert float(accuracy(correct)) == pytest.approx(2 / 3)
    assert float(confidence_gap(confidence, correct)) == pytest.approx(2 / 3 - 2 / 3)
    assert float(confidence_gap([0.9, 0.9], [True, False])) == pytest.approx(0.4)
    assert float(confidence_gap([0.2, 0.2], [True, False])) == pytest.approx(-0.3)
    assert float(brier_top_label(confidence, correct)) == pytest.approx((0.01 + 0.36 + 0.25) / 3)
    assert float(brier_multiclass([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]], [2, 1])) == pytest.approx((0.38 + 2.0) / 2)
    assert float(nll([[0.2, 0.3, 0.5], [0.25, 0.5, 0.25]], [2, 0])) == pytest.approx(1.5 * math.log(2))


@pytest.mark.parametrize(
    ("dtype", "power"), [(torch.float64, 1074), (torch.float32, 149), (torch.bfloat16, 133), (torch.float16, 24)]
)
def test_nll_of_a_zero_probability_is_that_of_the_smallest_positive_number(dtype, power):
    result = nll(torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=dtype), [1, 0])
    assert result.per_sample == pytest.approx([power * math.log(2), math.log(2)])
    assert float(result) == pytest.approx((power + 1) / 2 * math.log(2))
    assert result.clipped == 1
    assert "clipped=1" in repr(result)
    smallest = nll(torch.tensor([[1.0, 2.0**-power]], dtype=torch.float64).to(dtype), [1])
    assert float(smallest) == pytest.approx(power * math.log(2))
    assert smallest.clipped == 0
    assert str(float(nll([[1.0, 0.0]], [0]))) == "0.0"


def test_nll_of_far_apart_logits_is_exact():
    result = nll(logits=[[0.0, 1000.0], [0.0, 1000.0]], labels=[0, 1])
    assert result.per_sample.tolist() == [1000.0, 0.0]
    assert result.clipped == 0


def test_risk_coverage_by_hand():
    curve = risk_coverage([0.3, 0.9, 0.9, 0.6], [True, True, False, False])
    assert curve.thresholds.tolist() == [0.9, 0.6, 0.3]
    assert curve.coverage.tolist() == [0.5, 0.75, 1.0]
    assert curve.risk == pytest.approx([1 / 2, 2 / 3, 1 / 2])
    assert curve.aurc == float(curve) == pytest.approx((0.5 + 0.5 + 2 / 3 + 0.5) / 4)


def test_equal_confidence_gives_the_error_rate():
    curve = risk_coverage([0.7] * 5, [True, False, True, True, False])
    assert len(curve.risk) == 1
    assert curve.aurc == pytest.approx(0.4)


def test_threshold_for_risk_is_the_widest_that_keeps_the_promise():
    # Risk goes 1, 1/2, 1/3, 1/4, 2/5: it fails first and qualifies later.
    curve = risk_coverage([0.9, 0.8, 0.7, 0.6, 0.5], [False, True, True, True, False])
    point = curve.threshold_for_risk(0.25)
    assert (point.threshold, point.coverage, point.risk, point.accepted) == (0.6, 0.8, 0.25, 4)
    assert curve.threshold_for_risk(0.4).threshold == 0.5
    nothing = curve.threshold_for_risk(0.1)
    assert (nothing.threshold, nothing.coverage, nothing.accepted) == (math.inf, 0.0, 0)
    assert math.isnan(nothing.risk)


def test_threshold_for_risk_holds_when_applied():
    confidence, correct = top(3)
    point = risk_coverage(confidence, correct).threshold_for_risk(0.2)
    kept = confidence >= point.threshold
    assert 0 < kept.sum() < len(kept)
    assert kept.sum() == point.accepted
    assert kept.mean() == pytest.approx(point.coverage)
    assert (~correct[kept]).mean() == pytest.approx(point.risk)
    assert point.risk <= 0.2
    for lower in np.unique(confidence[~kept]):
        assert (~correct[confidence >= lower]).mean() > 0.2


# Naive loops and other libraries.


@pytest.mark.parametrize("bins", [1, 10, 15, 20])
@pytest.mark.parametrize("decimals", [None, 2, 1])
def test_binned_errors_match_the_loops(bins, decimals):
    """Rounded to one or two decimals, most values lie on an edge."""
    confidence, correct = top(1)
    if decimals is not None:
        confidence = confidence.round(decimals)
    assert float(ece(confidence, correct, bins)) == pytest.approx(naive_ece(confidence, correct, bins), abs=1e-13)
    worst = max(gap for _, gap in naive_gaps(confidence, correct, bins))
    assert float(mce(confidence, correct, bins)) == pytest.approx(worst, abs=1e-13)
    assert float(risk_coverage(confidence, correct)) == pytest.approx(naive_aurc(confidence, correct), abs=1e-13)


@pytest.mark.parametrize("n", [3, 60, 101])
@pytest.mark.parametrize("bins", [4, 20])
def test_class_wise_errors_match_the_loops(n, bins):
    probabilities, labels = classifier(2, n=n, classes=4)
    twentieths = np.floor(probabilities * 20)
    twentieths[:, 0] += 20 - twentieths.sum(axis=1)
    for table in (probabilities, twentieths / 20):
        per_class = [naive_ece(table[:, c], labels == c, bins) for c in range(4)]
        result = classwise_ece(table, labels, bins)
        assert result.per_class == pytest.approx(per_class, abs=1e-13)
        assert float(result) == pytest.approx(np.mean(per_class), abs=1e-13)
        assert float(adaptive_ece(table, labels, bins)) == pytest.approx(naive_adaptive(table, labels, bins), abs=1e-13)


def test_large_tables_are_binned_in_pieces(monkeypatch):
    probabilities, labels = classifier(4, n=101)
    whole = classwise_ece(probabilities, labels)
    monkeypatch.setattr("cots.metrics.binned._CHUNK", 50)
    pieces = classwise_ece(probabilities, labels)
    assert float(pieces) == pytest.approx(float(whole), abs=1e-14)
    assert np.array_equal(pieces.counts, whole.counts)


@pytest.mark.parametrize("bins", [10, 15, 20])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ece_and_mce_match_torchmetrics_off_the_edges(seed, bins):
    probabilities, labels = classifier(seed)
    confidence, prediction = top_label(probabilities)
    assert np.abs(confidence[:, None] * bins - np.round(confidence * bins)[:, None]).min() > 1e-6
    table, truth = torch.from_numpy(probabilities), torch.from_numpy(labels)
    for metric, norm in ((ece, "l1"), (mce, "max")):
        theirs = multiclass_calibration_error(table, truth, num_classes=7, n_bins=bins, norm=norm)
        assert float(metric(confidence, prediction == labels, bins)) == pytest.approx(float(theirs), abs=1e-6)


def test_bin_data_match_scipy_off_the_edges():
    confidence, correct = top(5)
    result = ece(confidence, correct, bins=12)
    for values, ours in ((confidence, result.mean_confidence), (correct, result.accuracy)):
        theirs = stats.binned_statistic(confidence, values, "mean", bins=12, range=(0, 1)).statistic
        np.testing.assert_allclose(ours, theirs, atol=1e-13)
    sizes = stats.binned_statistic(confidence, confidence, "count", bins=12, range=(0, 1)).statistic
    assert result.counts.tolist() == sizes.tolist()


def test_proper_scores_match_torch():
    probabilities, labels = classifier(6)
    logits = 30 * torch.randn(400, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    truth = torch.from_numpy(labels)
    cross_entropy = torch.nn.functional.cross_entropy(logits, truth, reduction="none")
    result = nll(logits=logits, labels=truth)
    np.testing.assert_allclose(result.per_sample, cross_entropy, atol=1e-12)
    assert float(result) == pytest.approx(float(cross_entropy.mean()))
    assert float(nll(logits.softmax(-1), truth)) == pytest.approx(float(cross_entropy.mean()), abs=1e-10)
    distance = (torch.from_numpy(probabilities) - torch.nn.functional.one_hot(truth, 7)).square().sum(-1)
    np.testing.assert_allclose(brier_multiclass(probabilities, labels).per_sample, distance, atol=1e-14)
    confidence, correct = top(6)
    squared = torch.nn.functional.mse_loss(torch.from_numpy(confidence), torch.from_numpy(correct).double())
    assert float(brier_top_label(confidence, correct)) == pytest.approx(float(squared))


def test_two_classes_relate_the_two_brier_scores():
    """With two classes both squared errors are equal, so the sum over classes is twice the top-label score."""
    probabilities, labels = classifier(7, classes=2)
    confidence, prediction = top_label(probabilities)
    twice = 2 * float(brier_top_label(confidence, prediction == labels))
    assert float(brier_multiclass(probabilities, labels)) == pytest.approx(twice)


# Weights.


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


@pytest.mark.parametrize("metric", [nll, brier_multiclass], ids=lambda m: m.__name__)
def test_scores_of_probabilities_take_weights(metric):
    probabilities, labels = classifier(12, n=40)
    stack = np.random.default_rng(1).integers(0, 4, (5, 40))
    repeated = [float(metric(probabilities.repeat(row, axis=0), labels.repeat(row))) for row in stack]
    result = metric(probabilities, labels, weights=stack)
    assert result.value == pytest.approx(repeated, abs=1e-12)
    assert "array of 5" in repr(result)


def test_a_row_of_zero_weights_has_no_figure():
    for metric in (ece, mce, risk_coverage, brier_top_label):
        value = metric([0.5, 0.7], [True, False], weights=[[0, 0], [1, 1]]).value
        assert np.isnan(value).tolist() == [True, False]


# What goes in and what comes out.

ON_CONFIDENCE = [ece, mce, risk_coverage, confidence_gap, brier_top_label]
ON_PROBABILITIES = [adaptive_ece, classwise_ece, brier_multiclass, nll]


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


def test_top_label_keeps_kind_and_precision():
    table = [[0.25, 0.75], [0.5, 0.5]]
    confidence, prediction = top_label(np.array(table, dtype=np.float32))
    assert confidence.dtype == np.float32
    assert prediction.tolist() == [1, 0]
    confidence, prediction = top_label(torch.tensor(table, dtype=torch.bfloat16))
    assert confidence.dtype == torch.bfloat16
    assert confidence.tolist() == [0.75, 0.5]
    assert prediction.tolist() == [1, 0]


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
