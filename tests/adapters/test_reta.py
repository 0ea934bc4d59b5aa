"""ReTA against a second implementation, and what its equations imply."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from support import naive_reta as naive
from support.models import CLASSES, THREE, random_views, tiny

import cots
from cots.adapters.reta import TEXTS, disagreement, nested_means
from cots.data import find_protocol

SAMPLES = 18
SENTENCES = {name: [f"a {word} {name}" for word in ("red", "small", "distant", "wet")] for name in CLASSES[:3]}
SENTENCES |= {name: [f"many {name}s"] for name in CLASSES[3:]}


def soft(templates=THREE, descriptions=None):
    """Predictions from nearly certain to nearly uniform."""
    softer = dataclasses.replace(tiny("vit", torch.float64))
    softer.__dict__["logit_scale"] = 6.0
    return cots.Task(softer, CLASSES, templates, descriptions=descriptions)


@pytest.fixture(scope="module")
def task():
    return soft(descriptions=SENTENCES)


@pytest.fixture(scope="module")
def stream(task):
    return torch.cat([random_views(task, samples=SAMPLES // 3, views=12, seed=s) for s in range(3)])


def texts_of(task):
    features, owners = task.every_text()
    return torch.stack([naive.nested([f for f, k in zip(features, owners, strict=True) if k == c]) for c in range(5)])


def test_a_class_has_three_texts_from_its_sentences(task):
    features, owners = task.every_text()
    assert owners.bincount().tolist() == [7, 7, 7, 4, 4]
    for sentence in ("art of car", "a wet car"):
        alone = cots.Task(task.backbone, [sentence], "{}").text_features
        assert float((features[owners == 2] - alone).abs().amax(1).min()) < 1e-9
    found = nested_means(task)
    torch.testing.assert_close(found, texts_of(task), rtol=0, atol=1e-12)
    torch.testing.assert_close(found[:, -1], task.text_features, rtol=0, atol=1e-12)  # the usual ensemble
    assert float((found[:, 0] - found[:, 1]).norm(dim=-1).min()) > 1e-3


@pytest.mark.parametrize(
    "settings",
    [
        {"lr": 2e-2, "zeta": 0.3},
        {"lr": 2e-2, "zeta": 0.5, "rho": 0.25, "lambda_": 0.2, "reliability": 2.0},
        {"lr": 1e-2, "reliability": 0.1, "weight": 0.8, "positive": (3.0, 8.0)},
        {"lr": 1e-2, "rho": 0.25, "query": "confident", "lambda_": 0.8},
    ],
    ids=["published", "views", "all texts", "confident"],
)
def test_it_matches_autograd_and_torch_optim(task, stream, settings):
    given = {"cache_from" if name == "query" else name: value for name, value in settings.items()}
    adapted = cots.adapt("reta", stream, task, **given)
    expected, text, moves, cache, doubts = naive.reta(stream, texts_of(task), task.logit_scale, **settings)
    torch.testing.assert_close(adapted.zero_shot_logits, task.logit_scale * stream @ task.text_features.T)
    torch.testing.assert_close(adapted.logits, torch.stack(expected), rtol=0, atol=1e-7)
    torch.testing.assert_close(adapted.state.text, text, rtol=0, atol=1e-7)
    torch.testing.assert_close(adapted.logits.exp().sum(-1), torch.ones(SAMPLES, 12, dtype=torch.float64))
    assert 0 < moves == int(adapted.state.moves) < SAMPLES
    for k, keys in enumerate(adapted.state.entropy):
        kept = sorted(float(key) for key in keys if key.isfinite())
        assert kept == pytest.approx([key for _, key in cache.get(k, [])])
    assert {1.0} < set(doubts), "unanimous votes and others"
    assert adapted.tuned_text().shape == (SAMPLES, *task.text_features.shape)


def test_without_a_step_a_cache_and_a_mean_over_views_it_is_zero_shot(task, stream):
    adapted = cots.adapt("reta", stream, task, lr=0.0, positive=(0.0, 5.0), lambda_=1.0)
    expected = adapted.zero_shot_logits.log_softmax(-1)
    torch.testing.assert_close(adapted.logits, expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(adapted.tuned_text()[3], task.text_features, rtol=0, atol=1e-9)


def test_without_reweighting_the_cache_is_that_of_dpe(task, stream):
    """With lr = 0 the texts of both stay the ensemble's, so both see the same entropies."""
    mine = cots.adapt("reta", stream, task, lr=0.0, reliability=0.0).state
    other = cots.adapt("dpe", stream, task, lr=0.0).state
    torch.testing.assert_close(mine.entropy, other.entropy, rtol=0, atol=1e-9)
    torch.testing.assert_close(mine.features, other.features, rtol=0, atol=1e-9)
    reweighted = cots.adapt("reta", stream, task, lr=0.0, reliability=2.0).state
    assert not torch.equal(reweighted.features, mine.features)


def test_three_equal_texts_vote_alike():
    text = torch.nn.functional.normalize(torch.randn(4, 1, 6, dtype=torch.float64), dim=-1).expand(-1, TEXTS, -1)
    best = int((text[:, 0] @ text[2, 0]).argmax())
    for y in range(4):
        expected = 0 if y == best else math.log(2)
        assert float(disagreement(text[2, 0], text, torch.tensor([y]))) == pytest.approx(expected)


def test_all_votes_are_counted():
    one_hot = torch.eye(4, dtype=torch.float64)
    for votes, y, expected in (((0, 0, 1), 0, 1.5), ((1, 0, 0), 1, 3), ((0, 1, 2), 0, 3), ((0, 1, 2), 1, 6)):
        text = torch.zeros(4, 3, 4, dtype=torch.float64)
        for r, k in enumerate(votes):
            text[k, r] = one_hot[0]
        assert float(disagreement(one_hot[0], text, torch.tensor([y]))) == pytest.approx(math.log(expected))


def test_too_few_sentences_are_refused_with_a_remedy(stream):
    message = r"reta needs at least 3 sentences per class, but '{}' has {}\. Pass several templates, or descriptions"
    for task, name, count in (
        (soft("a photo of a {}."), "tabby cat", 1),
        (soft("a photo of a {}.", SENTENCES), "snow-covered mountain peak", 2),
    ):
        with pytest.raises(cots.InputError, match=message.format(name, count)):
            cots.adapt("reta", stream, task)


def test_bad_settings_are_named(task, stream):
    for given, message in (
        ({"lambda_": 1.5}, r"lambda_ must be in \[0, 1\], not 1.5"),
        ({"cache_from": "strong"}, "cache_from"),
    ):
        with pytest.raises(cots.InputError, match=message):
            cots.adapt("reta", stream, task, **given)


def test_the_published_settings():
    """A row of the authors' settings as published, in their order a, b, lambda, rho, lr, eta, zeta."""
    names = ("lambda_", "reliability", "lr", "weight", "zeta")
    for dataset, positive, values in (
        ("ucf", (9.0, 8.0), (0.22, 0.1, 4e-4, 0.3, 0.02)),
        ("imagenet-a", (6.0, 5.0), (0.8, 1.0, 1.5e-4, 1.0, 0.02)),
        ("eurosat", (3.0, 8.0), (0.99, 0.1, 2.5e-5, 0.1, 0.03)),
    ):
        found = dict(find_protocol(dataset).settings("reta"))
        assert found.pop("cache_from", "weak") == ("confident" if dataset == "imagenet-a" else "weak")
        assert found == {"positive": positive, **dict(zip(names, values, strict=True))}
    from cots.adapters import ADAPTERS

    defaults = ADAPTERS.settings("reta")
    for name, value in find_protocol("imagenet").settings("reta").items():
        assert defaults[name] == value
