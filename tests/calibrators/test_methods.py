"""Every calibrator against its naive per-sample implementation, and single cases by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import naive_calibrate as naive
from support.logits import METHODS, random_logits
from support.logits import published as calibrate

ALPHA = 0.63
SHAPES = [  # (scale of the logits, classes, views)
    (0.3, 5, 12),
    (1.0, 3, 20),
    (2.0, 100, 21),
    (3.0, 10, 64),
    (4.0, 2, 7),
    (5.0, 50, 30),
]
ABLATIONS = [
    {"views": "weak"},
    {"views": "all_strong"},
    {"views": "top"},
    {"views": "top", "k": 3},
    {"k": 1},
    {"k": 4},
    {"rho": 0.5},
    {"loss": "l1"},
    {"loss": "huber"},
    {"loss": "huber", "huber_delta": 0.02},
    {"loss": "kl"},
    {"steps": 0},
    {"steps": 7},
    {"steps": 70},
    {"lr": 0.03},
    {"t0": 2.5},
    {"t0": 0.4, "loss": "kl", "views": "all_strong", "steps": 20},
]


def logits(scale, classes, views, samples=2, seed=0):
    """Zero-shot logits, and adapted ones as adaptation makes them: sharper, and not quite the same."""
    g = torch.Generator().manual_seed(seed)
    shape = (samples, views, classes)
    common = torch.randn(samples, 1, classes, generator=g, dtype=torch.float64)
    zero_shot = scale * (common + 0.5 * torch.randn(shape, generator=g, dtype=torch.float64))
    return 1.4 * zero_shot + 0.3 * scale * torch.randn(shape, generator=g, dtype=torch.float64), zero_shot


def compare(method, adapted, zero_shot, rtol, **settings):
    ensemble = {"alpha": ALPHA} if method in ("ecots", "ensemble") else {}
    result = calibrate(adapted, zero_shot, method, **ensemble, **settings)
    for b in range(len(adapted)):
        p, label, tau, omega = getattr(naive, method)(adapted[b], zero_shot[b], **ensemble, **settings)
        np.testing.assert_allclose(result.tau[b], tau, rtol=rtol)
        np.testing.assert_allclose(result.probabilities[b], p, rtol=10 * rtol, atol=rtol)
        assert result.prediction[b] == label
        assert result.confidence[b] == result.probabilities[b, label]
        assert result.views[b].tolist() == omega
    assert result.alpha == ensemble.get("alpha")
    assert result.probabilities.dtype == result.tau.dtype == adapted.dtype


@pytest.mark.parametrize(("scale", "classes", "views"), SHAPES[::2])
@pytest.mark.parametrize("method", METHODS)
def test_float64(method, scale, classes, views):
    compare(method, *logits(scale, classes, views), rtol=1e-10)


@pytest.mark.parametrize(("scale", "classes", "views"), SHAPES[1::2])
@pytest.mark.parametrize("method", METHODS)
def test_float32(method, scale, classes, views):
    adapted, zero_shot = logits(scale, classes, views, seed=1)
    compare(method, adapted.float(), zero_shot.float(), rtol=2e-5)  # most of it the plain loop's own rounding


@pytest.mark.parametrize("settings", ABLATIONS, ids=str)
def test_every_ablation(settings):
    adapted, zero_shot = logits(2.0, 20, 16, samples=1, seed=2)
    compare("cots", adapted, zero_shot, rtol=1e-10, **settings)
    alone = calibrate(adapted, zero_shot, "cots", **settings)
    mixed = calibrate(adapted, zero_shot, "ecots", alpha=ALPHA, **settings)
    assert torch.equal(mixed.tau, alone.tau)
    assert torch.equal(mixed.views, alone.views)
    for b in range(len(adapted)):
        p = naive.mixed(adapted[b], alone.tau[b], alone.views[b].tolist(), ALPHA)[0]
        np.testing.assert_allclose(mixed.probabilities[b], p, rtol=1e-12)


@pytest.mark.parametrize("settings", [{"k": 3}, {"views": "top"}, {"views": "weak"}, {"views": "all_strong"}], ids=str)
def test_ensemble_settings(settings):
    compare("ensemble", *logits(2.0, 8, 16), rtol=1e-10, **settings)


def test_other_settings():
    adapted, zero_shot = logits(2.0, 8, 16)
    compare("zero", adapted, zero_shot, rtol=1e-10, rho=0.7)
    compare("ts", adapted, zero_shot, rtol=1e-10, temperature=0.35)


@pytest.mark.parametrize("loss", ["l2", "l1", "huber", "kl"])
def test_float32_is_as_good_as_float64_for_confident_views(loss):
    """The plain float32 loop is off by up to 1e-3 here, as 1 - p has few digits left; the closed form keeps them."""
    g = torch.Generator().manual_seed(3)
    zero_shot = torch.randn(2, 40, 50, generator=g)
    zero_shot[..., 0] += 12
    adapted = 1.3 * zero_shot + 0.3 * torch.randn(2, 40, 50, generator=g)
    result = calibrate(adapted, zero_shot, loss=loss)
    assert all(adapted[b, result.views[b]].softmax(-1).amax(-1).min() > 0.999 for b in range(2))
    for b in range(len(adapted)):
        tau = naive.adam_tau(adapted[b].double(), zero_shot[b].double(), result.views[b].tolist(), loss=loss)
        assert abs(tau - 1) > 0.01
        np.testing.assert_allclose(result.tau[b], tau, rtol=3e-6)


def test_cor_blends_only_as_far_as_needed():
    adapted = torch.tensor([[[5.0, 4.9, -3.0, -4.0]], [[5.0, 1.0, 0.9, 1.1]]], dtype=torch.float64)
    zero_shot = torch.tensor([[[0.5, 0.1, 0.0, 0.0]], [[0.0, 3.0, 0.0, 0.0]]], dtype=torch.float64)
    compare("cor", adapted, zero_shot, rtol=1e-10)
    result = calibrate(adapted, zero_shot, "cor")
    p = result.probabilities
    np.testing.assert_allclose(p[0, 1], p[0, 0], rtol=1e-12)  # blended: the rival may come up to c, not beyond
    np.testing.assert_allclose(
        p[1, 1] / p[1, 2], np.exp(0.1), rtol=1e-12
    )  # not blended: proportions are the adapted ones
    np.testing.assert_allclose(result.confidence, zero_shot[:, 0].softmax(-1).amax(-1), rtol=1e-15)


def test_ensemble_between_its_ends():
    adapted, zero_shot = random_logits(3, 30, 6, dtype=torch.float64)
    cots_ = calibrate(adapted, zero_shot)
    p = {a: calibrate(adapted, zero_shot, "ecots", alpha=a) for a in (0, 0.25, 1)}
    torch.testing.assert_close(p[1].probabilities, cots_.probabilities)
    assert torch.equal(p[1].tau, cots_.tau)
    strong = torch.stack([(adapted[b, cots_.views[b]] / cots_.tau[b]).softmax(-1).mean(0) for b in range(3)])
    torch.testing.assert_close(p[0].probabilities, strong)
    torch.testing.assert_close(p[0.25].probabilities, 0.25 * cots_.probabilities + 0.75 * strong)
    assert p[1].alpha == 1.0
    assert isinstance(p[1].alpha, float)


def test_negative_alpha_still_gives_probabilities():
    p = calibrate(*random_logits(20, 12, 4), "ensemble", alpha=-1).probabilities
    assert (p >= 0).all()
    assert (p == 0).any()  # the case that needed care
    torch.testing.assert_close(p.sum(-1), torch.ones(20))


def test_one_class_needs_no_alpha():
    result = calibrate(*random_logits(5, 1), "ecots", rows="views")
    assert result.alpha == 1.0
    assert result.probabilities.tolist() == [1.0]


def votes(*labels, classes=4):
    """Logits (V,K) that vote for `labels`, the most confident view first."""
    logits = torch.zeros(len(labels), classes)
    for view, label in enumerate(labels):
        logits[view, label] = 20.0 - view
    return logits


@pytest.mark.parametrize(
    ("labels", "winner", "share"),
    [
        ((2, 2, 1, 0, 0, 0, 0, 0, 0, 0), 2, 2 / 3),  # a clear majority of the three kept: later views do not count
        ((1, 2, 3, 0, 2, 3, 1, 1, 1, 1), 2, 1 / 3),  # a tie: view 3 votes for none of the three, view 4 for class 2
        ((1, 2, 3, 0, 0, 0, 0, 0, 0, 0), 1, 1 / 3),  # no later view decides: the most confident kept one does
    ],
)
def test_zero_votes(labels, winner, share):
    result = calibrate(votes(*labels), votes(*labels), "zero", rows="views")
    assert int(result.prediction) == winner
    assert float(result.confidence) == pytest.approx(share)
    assert result.views.tolist() == [0, 1, 2]
    np.testing.assert_allclose(result.probabilities, np.bincount(labels[:3], minlength=4) / 3, rtol=1e-6)


def test_cor_takes_the_class_from_one_and_the_confidence_from_the_other():
    adapted, zero_shot = random_logits(50, 3, 6, scale=2.0, dtype=torch.float64)
    result = calibrate(adapted, zero_shot, "cor")
    assert torch.equal(result.prediction, adapted[:, 0].argmax(-1))
    torch.testing.assert_close(result.confidence, zero_shot[:, 0].softmax(-1).amax(-1), rtol=1e-14, atol=0)
    assert torch.equal(result.confidence, result.probabilities.amax(-1))
    torch.testing.assert_close(result.probabilities.sum(-1), torch.ones(50, dtype=torch.float64))
    order = adapted[:, 0].argsort(dim=-1)
    assert (result.probabilities.gather(1, order).diff(dim=-1) >= -1e-15).all()  # the order of the others is kept
