"""AUROC, AUPR and FPR at 95% recall against loops over pairs and thresholds, and torchmetrics."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cots import InputError
from cots.metrics import aupr, auroc, fpr_at_95


@pytest.mark.parametrize("digits", [1, 6])
def test_against_loops_and_torchmetrics(digits):
    # Imported here: it takes seconds, and every process of the test run imports this file.
    from torchmetrics.functional import auroc as their_auroc
    from torchmetrics.functional import average_precision

    rng = np.random.default_rng(digits)
    positive = rng.random(150) < 0.4
    scores = np.round(rng.normal(size=150) + positive, digits)
    pairs = [(p > q) + 0.5 * (p == q) for p in scores[positive] for q in scores[~positive]]
    assert float(auroc(scores, positive)) == pytest.approx(np.mean(pairs))
    accepted = [(scores[positive] >= t).mean() >= 0.95 - 1e-9 for t in sorted(set(scores))]
    threshold = max(t for t, enough in zip(sorted(set(scores)), accepted, strict=True) if enough)
    assert float(fpr_at_95(scores, positive)) == pytest.approx((scores[~positive] >= threshold).mean())
    # torchmetrics takes a softmax of scores outside [0, 1]; ranks keep their order.
    ranks = torch.from_numpy(np.unique(scores, return_inverse=True)[1] / len(scores))
    truth = torch.from_numpy(positive.astype(int))
    assert float(auroc(scores, positive)) == pytest.approx(float(their_auroc(ranks, truth, task="binary")), abs=1e-6)
    assert float(aupr(scores, positive)) == pytest.approx(
        float(average_precision(ranks, truth, task="binary")), abs=1e-6
    )


def test_perfect_and_useless_scores():
    positive = [True, True, False, False]
    assert float(auroc([4, 3, 2, 1], positive)) == float(aupr([4, 3, 2, 1], positive)) == 1
    assert float(fpr_at_95([4, 3, 2, 1], positive)) == 0
    assert float(auroc([1, 1, 1, 1], positive)) == float(aupr([1, 1, 1, 1], positive)) == 0.5
    assert float(fpr_at_95([1, 1, 1, 1], positive)) == 1
    with pytest.raises(InputError, match="both True and False"):
        auroc([1, 2], [True, True])
    with pytest.raises(InputError, match=r"positive must be True/False.*scores first, then positive"):
        auroc([1, 2], [1, 3])


@pytest.mark.parametrize("metric", [auroc, aupr, fpr_at_95])
def test_unequal_lengths_are_refused(metric):
    with pytest.raises(InputError, match="same samples, but scores has 3, positive has 2"):
        metric([1, 2, 3], [True, False])
