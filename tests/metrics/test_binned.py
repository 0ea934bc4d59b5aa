"""Calibration errors against hand-worked cases, naive loops and other libraries."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
import torch
from support.metrics import classifier, in_bin, naive_adaptive, naive_aurc, naive_ece, naive_gaps, top

from cots.metrics import adaptive_ece, classwise_ece, ece, mce, risk_coverage, top_label


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


def test_ctpts_edges_move_five_confidences_of_float64():
    """docs/methods.md: C-TPT's edges are float32, so that some float64 confidences on an edge are above it."""
    edges = np.arange(1, 20) / 20
    theirs = torch.linspace(0, 1, 21).numpy()[1:20]
    assert edges[edges > theirs].tolist() == [0.35, 0.65, 0.7, 0.9, 0.95]
    assert not (edges.astype(np.float32) > theirs).any()
    for m, edge in enumerate(edges):
        assert filled(ece([edge], [True])) == [m], "here (lo, hi]"


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


@pytest.mark.parametrize(("seed", "bins"), [(0, 10), (1, 15), (2, 20)])
def test_ece_and_mce_match_torchmetrics_off_the_edges(seed, bins):
    # Imported here: it takes seconds, and every process of the test run imports this file.
    from torchmetrics.functional.classification import multiclass_calibration_error

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
        theirs = scipy.stats.binned_statistic(confidence, values, "mean", bins=12, range=(0, 1)).statistic
        np.testing.assert_allclose(ours, theirs, atol=1e-13)
    sizes = scipy.stats.binned_statistic(confidence, confidence, "count", bins=12, range=(0, 1)).statistic
    assert result.counts.tolist() == sizes.tolist()
