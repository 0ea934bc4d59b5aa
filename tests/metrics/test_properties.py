"""Properties of the metrics that hold for every input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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

# Hundredths lie on edges and repeat; the other half are any floats, down to the smallest.
CONFIDENCE = st.one_of(st.integers(0, 100).map(lambda i: i / 100), st.floats(0, 1))
SAMPLES = st.lists(st.tuples(CONFIDENCE, st.booleans()), min_size=1, max_size=40)
BINS = st.integers(1, 30)
FEW = settings(max_examples=30, deadline=None)


@st.composite
def tables(draw):
    """Probabilities with ties and zeros, and labels."""
    classes = draw(st.integers(1, 5))
    rows = draw(
        st.lists(
            st.tuples(st.lists(st.integers(0, 6), min_size=classes, max_size=classes), st.integers(0, classes - 1)),
            min_size=1,
            max_size=25,
        )
    )
    weights = np.array([row for row, _ in rows], dtype=np.float64)
    weights[weights.sum(axis=1) == 0] = 1.0
    return weights / weights.sum(axis=1, keepdims=True), np.array([label for _, label in rows])


def columns(samples):
    return np.array([c for c, _ in samples]), np.array([a for _, a in samples])


@FEW
@given(SAMPLES, BINS)
def test_bounds_of_the_binned_errors(samples, bins):
    confidence, correct = columns(samples)
    expected, worst = float(ece(confidence, correct, bins)), float(mce(confidence, correct, bins))
    gap = float(confidence_gap(confidence, correct))
    assert 0 <= expected <= worst + 1e-12
    assert worst <= 1
    assert abs(gap) <= expected + 1e-12
    assert gap**2 <= float(brier_top_label(confidence, correct)) + 1e-12


@FEW
@given(SAMPLES, BINS)
def test_bin_data_add_up_to_the_figure(samples, bins):
    confidence, correct = columns(samples)
    result = ece(confidence, correct, bins)
    full = result.counts > 0
    assert result.counts.sum() == result.n == len(samples)
    again = result.counts[full] @ np.abs(result.gap[full]) / result.n
    assert float(result) == pytest.approx(again, abs=1e-12)
    assert result.counts[full] @ result.accuracy[full] == pytest.approx(correct.sum())
    assert (result.mean_confidence[full] >= result.edges[:-1][full] - 1e-12).all()
    assert (result.mean_confidence[full] <= result.edges[1:][full] + 1e-12).all()


@FEW
@given(SAMPLES, st.randoms(use_true_random=False))
def test_order_of_samples_does_not_matter(samples, random):
    shuffled = samples.copy()
    random.shuffle(shuffled)
    for metric in (ece, mce, confidence_gap, brier_top_label, risk_coverage):
        assert float(metric(*columns(shuffled))) == pytest.approx(float(metric(*columns(samples))), abs=1e-12)
    assert np.array_equal(risk_coverage(*columns(shuffled)).risk, risk_coverage(*columns(samples)).risk)


@FEW
@given(tables(), st.integers(0, 2**32 - 1))
def test_order_of_samples_and_classes_does_not_matter(table, seed):
    probabilities, labels = table
    rng = np.random.default_rng(seed)
    rows, new_name = rng.permutation(len(labels)), rng.permutation(probabilities.shape[1])
    renamed = np.empty_like(probabilities)
    renamed[:, new_name] = probabilities[rows]
    for metric in (adaptive_ece, classwise_ece, brier_multiclass, nll):
        expected = float(metric(probabilities, labels))
        assert float(metric(renamed, new_name[labels[rows]])) == pytest.approx(expected, abs=1e-10)


@FEW
@given(tables(), st.integers(1, 10))
def test_bounds_of_the_scores_over_classes(table, bins):
    probabilities, labels = table
    assert 0 <= float(classwise_ece(probabilities, labels, bins)) <= 1
    assert 0 <= float(adaptive_ece(probabilities, labels, bins)) <= 1
    assert 0 <= float(brier_multiclass(probabilities, labels)) <= 2 + 1e-12
    assert float(nll(probabilities, labels)) >= 0
    confidence, prediction = top_label(probabilities)
    assert (confidence == probabilities.max(axis=1)).all()
    assert (probabilities[np.arange(len(labels)), prediction] == confidence).all()


@FEW
@given(st.integers(1, 40), st.data())
def test_a_constant_confidence_equal_to_the_accuracy_is_perfect(n, data):
    right = data.draw(st.integers(0, n))
    correct = np.arange(n) < right
    confidence = np.full(n, right / n)
    for metric in (ece, mce, confidence_gap):
        assert float(metric(confidence, correct)) == pytest.approx(0, abs=1e-12)
    off = data.draw(st.floats(0, 1))
    for metric in (ece, mce):
        assert float(metric(np.full(n, off), correct)) == pytest.approx(abs(off - right / n), abs=1e-12)


@FEW
@given(SAMPLES)
def test_one_range_or_bin_is_the_gap_of_the_whole(samples):
    confidence, correct = columns(samples)
    gap = abs(float(confidence_gap(confidence, correct)))
    assert float(ece(confidence, correct, bins=1)) == pytest.approx(gap, abs=1e-12)
    # Two classes, label 1 where the sample counts as right: both classes have the same gap.
    table = np.stack([1 - confidence, confidence], axis=1)
    for metric in (adaptive_ece, classwise_ece):
        assert float(metric(table, correct.astype(int), 1)) == pytest.approx(gap, abs=1e-12)


@FEW
@given(SAMPLES)
def test_area_lies_between_the_best_and_the_worst_order(samples):
    confidence, correct = columns(samples)
    n, right = len(correct), int(correct.sum())
    kept = np.arange(1, n + 1)
    best = np.maximum(kept - right, 0) / kept
    worst = np.minimum(n - right, kept) / kept
    curve = risk_coverage(confidence, correct)
    assert best.mean() - 1e-12 <= curve.aurc <= worst.mean() + 1e-12
    assert curve.coverage[-1] == 1
    assert curve.risk[-1] == pytest.approx(1 - float(accuracy(correct)))
    assert (np.diff(curve.coverage) > 0).all()
    assert (np.diff(curve.thresholds) < 0).all()


@FEW
@given(st.integers(1, 30), st.data())
def test_the_best_order_has_the_smallest_area(n, data):
    right = data.draw(st.integers(0, n))
    kept = np.arange(1, n + 1)
    falling = 1 - np.arange(n) / n
    best = risk_coverage(falling, np.arange(n) < right)
    assert best.aurc == pytest.approx((np.maximum(kept - right, 0) / kept).mean(), abs=1e-12)
    worst = risk_coverage(falling, np.arange(n) >= n - right)
    assert worst.aurc == pytest.approx((np.minimum(n - right, kept) / kept).mean(), abs=1e-12)


@FEW
@given(SAMPLES, st.floats(0, 1))
def test_threshold_for_risk_keeps_its_promise(samples, risk):
    confidence, correct = columns(samples)
    point = risk_coverage(confidence, correct).threshold_for_risk(risk)
    kept = confidence >= point.threshold
    assert kept.sum() == point.accepted
    if point.accepted:
        assert (~correct[kept]).mean() <= risk
    for lower in confidence[confidence < point.threshold]:
        assert (~correct[confidence >= lower]).mean() > risk


@FEW
@given(tables(), st.floats(-500, 500))
def test_nll_of_logits_ignores_a_shift(table, shift):
    probabilities, labels = table
    logits = np.log(np.maximum(probabilities, 1e-9))
    expected = float(nll(logits=logits, labels=labels))
    assert float(nll(logits=logits + shift, labels=labels)) == pytest.approx(expected, abs=1e-9)
    positive = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert float(nll(positive, labels)) == pytest.approx(expected, abs=1e-9)
