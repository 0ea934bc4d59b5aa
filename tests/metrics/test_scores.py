"""Mean scores against hand-worked cases and torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.metrics import classifier, top

from cots.metrics import accuracy, brier_multiclass, brier_top_label, confidence_gap, nll, top_label


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


@pytest.mark.parametrize("metric", [nll, brier_multiclass], ids=lambda m: m.__name__)
def test_scores_of_probabilities_take_weights(metric):
    probabilities, labels = classifier(12, n=40)
    stack = np.random.default_rng(1).integers(0, 4, (5, 40))
    repeated = [float(metric(probabilities.repeat(row, axis=0), labels.repeat(row))) for row in stack]
    result = metric(probabilities, labels, weights=stack)
    assert result.value == pytest.approx(repeated, abs=1e-12)
    assert "array of 5" in repr(result)


def test_top_label_keeps_kind_and_precision():
    table = [[0.25, 0.75], [0.5, 0.5]]
    confidence, prediction = top_label(np.array(table, dtype=np.float32))
    assert confidence.dtype == np.float32
    assert prediction.tolist() == [1, 0]
    confidence, prediction = top_label(torch.tensor(table, dtype=torch.bfloat16))
    assert confidence.dtype == torch.bfloat16
    assert confidence.tolist() == [0.75, 0.5]
    assert prediction.tolist() == [1, 0]
