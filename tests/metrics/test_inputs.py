"""Input that cannot be used: the message names the argument, the place and the remedy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cots._errors import InputError
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

ON_CONFIDENCE = [ece, mce, risk_coverage, confidence_gap, brier_top_label]
ON_PROBABILITIES = [adaptive_ece, classwise_ece, brier_multiclass, nll]
HALVES = [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize("metric", ON_CONFIDENCE, ids=lambda m: m.__name__)
@pytest.mark.parametrize(
    ("confidence", "correct", "message"),
    [
        ([0.5, np.nan], [1, 0], r"confidence has 1 value.*nan at index \[1\]"),
        ([0.5, np.inf], [1, 0], r"confidence has 1 value.*inf at index \[1\]"),
        ([0.5, None], [1, 0], r"confidence has 1 value.*index \[1\]"),
        ([0.5, 7.25], [1, 0], r"confidence must be in \[0, 1\]; index \[1\] is 7\.25.*logits.*pass probabilities"),
        ([-3.5, 0.5], [1, 0], r"confidence must be in \[0, 1\]; index \[0\] is -3\.5.*logits= to nll"),
        ([-3.5, 7.25], [1, 0], r"confidence must be in \[0, 1\]; index \[1\] is 7\.25"),
        ([0.5, 1.001], [1, 0], r"confidence must be in \[0, 1\]; index \[1\] is 1\.001"),
        (HALVES, [1, 0], r"confidence must have one value per sample.*\(2, 2\).*top_label\(probabilities\)"),
        (0.5, [1], r"confidence must have one value per sample.*\(\)"),
        (["a", "b"], [1, 0], r"confidence must be a numeric array"),
        (["0.5", "0.6"], [1, 0], r"confidence must be a numeric array"),
        ([[0.5], [0.5, 0.6]], [1, 0], r"confidence must be a numeric array.*rows of equal length"),
        ([0.5j, 0.5], [1, 0], r"confidence must be a numeric array"),
        (torch.tensor([0.5j, 0.5]), [1, 0], r"confidence must be real, not torch\.complex64"),
        ([], [], r"confidence is empty.*at least one sample"),
        ([0.5, 0.5], [], r"correct is empty"),
        (
            [0.5, 0.5],
            [1],
            r"confidence and correct must describe the same samples, but confidence has 2, correct has 1",
        ),
        ([1, 0], [0.5, 0.7], r"correct must be True/False or 1/0; index 0 is 0\.5.*confidence first"),
        ([0.5, 0.5], [1, 2], r"correct must be True/False or 1/0; index 1 is 2.*predictions == labels"),
        ([0.5, 0.5], [1, np.nan], r"correct has 1 value.*index \[1\]"),
        ([0.5, 0.5], [[1, 0]], r"correct must have one value per sample.*\(1, 2\)"),
    ],
)
def test_bad_confidence_or_outcome(metric, confidence, correct, message):
    with pytest.raises(InputError, match=message):
        metric(confidence, correct)


@pytest.mark.parametrize("metric", ON_PROBABILITIES, ids=lambda m: m.__name__)
@pytest.mark.parametrize(
    ("probabilities", "labels", "message"),
    [
        ([[0.5, 0.5], [np.nan, 0.5]], [0, 1], r"probabilities has 1 value.*nan at index \[1, 0\]"),
        ([[2.0, -1.0], [0.5, 0.5]], [0, 1], r"probabilities must be in \[0, 1\]; index \[0, 0\] is 2.*logits= to nll"),
        (
            [[0.5, 0.5], [0.4, 0.5]],
            [0, 1],
            r"probabilities must sum to one.*row 1 sums to 0\.9 \(1 such.*logits= to nll",
        ),
        ([[0.5, 0.502], [0.5, 0.5]], [0, 1], r"probabilities must sum to one.*row 0 sums to 1\.002"),
        ([0.5, 0.5], [0, 1], r"probabilities must have shape \(samples, classes\), not \(2,\).*\[1 - score, score\]"),
        (np.empty((0, 3)), [], r"probabilities is empty"),
        (np.empty((3, 0)), [0, 0, 0], r"probabilities is empty"),
        (HALVES, [0], r"probabilities and labels must describe the same samples"),
        (HALVES, [0, 2], r"labels must be whole numbers in 0\.\.1 for 2 classes; index 1 is 2.*from 0"),
        (HALVES, [-1, 0], r"labels must be whole numbers in 0\.\.1 for 2 classes; index 0 is -1"),
        (HALVES, [0, 0.5], r"labels must be whole numbers.*index 1 is 0\.5"),
        (HALVES, [[0, 1], [1, 0]], r"labels must have one value per sample.*one-hot"),
        (HALVES, ["cat", "dog"], r"labels must be a numeric array"),
        (HALVES, [np.nan, 0], r"labels has 1 value.*index \[0\]"),
        (HALVES, None, r"labels are required"),
    ],
)
def test_bad_probabilities_or_labels(metric, probabilities, labels, message):
    with pytest.raises(InputError, match=message):
        metric(probabilities, labels)


@pytest.mark.parametrize("bins", [0, -3, 2.5, "20", None, True])
def test_bad_number_of_bins(bins):
    for metric in (ece, mce):
        with pytest.raises(InputError, match=r"bins must be a whole number >= 1, not"):
            metric([0.5], [1], bins=bins)
    with pytest.raises(InputError, match=r"bins must be a whole number >= 1"):
        classwise_ece(HALVES, [0, 1], bins=bins)
    with pytest.raises(InputError, match=r"ranges must be a whole number >= 1"):
        adaptive_ece(HALVES, [0, 1], ranges=bins)


def test_nll_never_guesses():
    with pytest.raises(InputError, match=r"either probabilities .* not both"):
        nll(HALVES, [0, 1], logits=HALVES)
    with pytest.raises(InputError, match=r"needs either probabilities"):
        nll(labels=[0, 1])
    with pytest.raises(InputError, match="labels are required"):
        nll(logits=HALVES)
    with pytest.raises(InputError, match="logits= to nll"):
        nll(torch.randn(2, 3, generator=torch.Generator().manual_seed(0)) * 10, [0, 1])
    with pytest.raises(InputError, match=r"logits has 1 value.*index \[0, 1\]"):
        nll(logits=[[0.0, np.inf]], labels=[0])
    with pytest.raises(InputError, match=r"logits must have shape"):
        nll(logits=[0.0, 1.0], labels=[0])
    with pytest.raises(InputError, match="logits and labels must describe the same samples"):
        nll(logits=HALVES, labels=[0])
    # Rows that could be probabilities are still logits when they come under that name.
    assert float(nll(logits=[[1.0, 0.0]], labels=[0])) == pytest.approx(np.log1p(np.exp(-1)))


def test_accuracy_and_top_label_check_too():
    with pytest.raises(InputError, match="correct must be True/False"):
        accuracy([0.5])
    with pytest.raises(InputError, match="correct is empty"):
        accuracy([])
    with pytest.raises(InputError, match="probabilities must sum to one"):
        top_label([[0.5, 0.1]])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], r"weights must have one value per sample, shape \(2,\) or \(rows, 2\), not \(1,\)"),
        ([[[1.0, 1.0]]], r"not \(1, 1, 2\)"),
        ([-1.0, 1.0], "weights must be finite and not negative"),
        ([np.nan, 1.0], "weights must be finite and not negative"),
        ([[1.0, 1.0], [np.inf, 1.0]], "weights must be finite and not negative"),
    ],
)
def test_bad_weights(weights, message):
    for metric in (ece, risk_coverage, confidence_gap):
        with pytest.raises(InputError, match=message):
            metric([0.5, 0.6], [True, False], weights=weights)


@pytest.mark.parametrize("risk", [5, -0.1, float("nan")])
def test_risk_is_a_fraction(risk):
    with pytest.raises(InputError, match=r"risk must be a fraction.*0\.05 for 5% errors"):
        risk_coverage([0.5], [1]).threshold_for_risk(risk)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_rounding_to_a_precision_is_no_error(dtype):
    """A softmax over many classes, rounded: its rows miss one by what the precision allows, and are accepted."""
    logits = 3 * torch.randn(200, 1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    table = logits.softmax(-1).to(dtype)
    assert float(brier_multiclass(table, torch.zeros(200))) == pytest.approx(
        float(brier_multiclass(logits.softmax(-1), torch.zeros(200))), abs=1e-3
    )
    barely_above = torch.nextafter(torch.tensor(1.0, dtype=dtype), torch.tensor(2.0, dtype=dtype))
    assert float(ece(barely_above[None], [True])) == 0.0


def test_half_precision_may_be_widened_before():
    logits = torch.randn(300, 50, generator=torch.Generator().manual_seed(1))
    widened = logits.softmax(-1).half().float()
    assert not torch.equal(widened.sum(-1), torch.ones(300))
    assert float(classwise_ece(widened, torch.zeros(300))) == pytest.approx(
        float(classwise_ece(logits.softmax(-1), torch.zeros(300))), abs=1e-2
    )
