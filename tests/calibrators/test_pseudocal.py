"""PseudoCal against a second implementation: pairs, mixtures, the temperature."""

from __future__ import annotations

import pytest
import scipy
import torch

import cots
from cots.calibrators import fit_pseudo_temperature


@pytest.fixture
def logits():
    return 4 * torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def naive(logits, features=None, repeats=5, seed=0):
    draws, mixtures, labels = torch.Generator().manual_seed(seed), [], []
    for _ in range(repeats):
        for a, b in enumerate(torch.randperm(len(logits), generator=draws).tolist()):
            if logits[a].argmax() != logits[b].argmax():
                mixed = 0.65 * logits[a] + 0.35 * logits[b]
                if features is not None:
                    mixed = mixed / (0.65 * features[a] + 0.35 * features[b]).norm()
                mixtures.append(mixed)
                labels.append(int(logits[a].argmax()))

    def loss(log_t):
        scaled = torch.stack(mixtures) / torch.tensor(log_t).exp()
        return float(torch.nn.functional.cross_entropy(scaled, torch.tensor(labels)))

    best = scipy.optimize.minimize_scalar(loss, bounds=(-6, 6), method="bounded", options={"xatol": 1e-9})
    return float(torch.tensor(best.x).exp())


def test_the_temperature_is_that_of_mixed_pairs(logits):
    assert fit_pseudo_temperature(logits) == pytest.approx(naive(logits), rel=1e-4)
    features = torch.nn.functional.normalize(torch.randn(40, 6, generator=torch.Generator().manual_seed(1)), dim=-1)
    features = features.double()
    given = fit_pseudo_temperature(logits, features, repeats=2, seed=3)
    assert given == pytest.approx(naive(logits, features, 2, 3), rel=1e-4)
    assert fit_pseudo_temperature(10 * logits) == pytest.approx(10 * fit_pseudo_temperature(logits), rel=1e-6)
    assert fit_pseudo_temperature(logits.log_softmax(-1)) == pytest.approx(fit_pseudo_temperature(logits), rel=1e-6)


def test_features_mixed_and_renormalised_have_these_logits():
    text = torch.nn.functional.normalize(torch.randn(4, 6, dtype=torch.float64), dim=-1)
    a, b = torch.nn.functional.normalize(torch.randn(2, 6, dtype=torch.float64), dim=-1)
    mixed = torch.nn.functional.normalize(0.65 * a + 0.35 * b, dim=-1)
    expected = (0.65 * text @ a + 0.35 * text @ b) / (0.65 * a + 0.35 * b).norm()
    torch.testing.assert_close(text @ mixed, expected)


def test_it_scales_like_ts_and_needs_a_temperature(logits):
    views = logits.unflatten(0, (8, 5))
    ours = cots.calibrate(views, views, "pseudocal", temperature=2.0)
    assert torch.equal(ours.probabilities, cots.calibrate(views, views, "ts", temperature=2.0).probabilities)
    with pytest.raises(cots.InputError, match="one temperature for the whole set"):
        cots.calibrate(views, views, "pseudocal")


def test_sets_without_pairs_are_refused(logits):
    with pytest.raises(cots.InputError, match="no pair to mix"):
        fit_pseudo_temperature(logits[:1].expand(4, -1))
    with pytest.raises(cots.InputError, match="at least two samples"):
        fit_pseudo_temperature(logits[:1])
    with pytest.raises(cots.InputError, match="for 40 samples"):
        fit_pseudo_temperature(logits, logits[:3])
