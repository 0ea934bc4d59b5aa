"""None of these: the score by hand, its threshold, and photos of each set as outsiders of the others, with `mini`."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from support.models import tiny, tiny_task

import cots
from cots import novelty
from cots.demo import read_photos
from cots.metrics import auroc


@pytest.fixture(scope="module")
def mini():
    return cots.load("mini", device="cpu")


def unit(*shape):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    return x / x.norm(dim=-1, keepdim=True)


def test_in_list_by_hand():
    task = tiny_task("vit")
    features = unit(5, 3, task.text_features.shape[1])
    words = novelty.background(task)
    assert 50 < len(words) < len(novelty.BACKGROUND)
    found = novelty.in_list(features, task)
    for row, value in zip(features[:, 0], found, strict=True):
        cosines = [float(row @ word) for word in words]
        best = max(float(row @ text) for text in task.text_features)
        z = (best - np.mean(cosines)) / np.std(cosines, ddof=1)
        expected = (0.5 * math.erfc(-z / math.sqrt(2))) ** max(5, len(task.classes))
        assert float(value) == pytest.approx(expected, abs=1e-5)
    cosine = features[:, 0] @ task.text_features.T
    torch.testing.assert_close(novelty.max_cosine(features, task), cosine.amax(1))
    torch.testing.assert_close(novelty.mcm(features, task, 0.1), (cosine / 0.1).softmax(1).amax(1))


def test_background_words_that_a_class_may_mean_are_left_out():
    task = cots.Task(tiny("vit"), ["tabby cat", "sports car"])
    words = cots.Task(tiny("vit"), novelty.BACKGROUND).text_features
    kept = {tuple(row.tolist()) for row in novelty.background(task)}
    for name, row in zip(novelty.BACKGROUND, words, strict=True):
        assert name not in ("cat", "car") or tuple(row.tolist()) not in kept
    nearest = novelty._background(task) @ task.text_features.T
    assert float((novelty.background(task) @ task.text_features.T).max()) <= float(nearest.amax(1).quantile(0.8)) + 1e-6


def test_the_threshold_keeps_the_photos_that_belong():
    rng = np.random.default_rng(0)
    for n in (3, 19, 40, 199):
        below = np.mean([rng.random() < novelty.threshold(rng.random(n)) for _ in range(4000)])
        expected = max(1, math.floor(0.05 * (n + 1) + 1e-9)) / (n + 1)
        assert below == pytest.approx(expected, abs=4 * math.sqrt(expected / 4000))
    with pytest.raises(cots.InputError, match="one or more photos"):
        novelty.threshold([])


def test_mini_tells_paintings_and_cartoons_from_photos_of_its_list(mini):
    """The classes of PACS are not among the 100 of Tiny-ImageNet."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cots.Task(mini, novelty.BACKGROUND)
    members, *others = (photos for photos in read_photos() if not photos.known)
    task = cots.Task(mini, members.classes)
    for outsiders, least in zip(others, (0.75, 0.85), strict=True):
        truth = [True] * len(members.labels) + [False] * len(outsiders.labels)
        values = torch.cat([novelty.in_list(photos.features.float(), task) for photos in (members, outsiders)])
        assert float(auroc(values, truth)) > least


def test_a_black_pixel_is_none_of_these_and_references_set_the_threshold(mini):
    black = Image.new("RGB", (1, 1))
    names = ["abyssinian", "beagle", "tabby cat"]
    found = cots.Classifier(mini, names, "zeroshot", views=1)(black)
    assert found.in_list < novelty.NONE_BELOW
    assert found.none_of_these
    own = cots.Classifier(mini, names, "zeroshot", views=1, reference=[black])
    assert own.none_below == found.in_list
    assert own(black).none_of_these, "its pixels say so, whatever the threshold"


def test_a_black_pixel_is_none_of_two_classes():
    pixel = Image.new("RGB", (1, 1))
    found = cots.Classifier("mini", ["abyssinian cat", "beagle"], "zeroshot", views=1)([pixel])[0]
    assert found.none_of_these


def test_the_flag_keeps_its_promise():
    """Simulated with uniform scores, of which the share below the threshold is the threshold itself."""
    rng = np.random.default_rng(0)
    for n, share in ((59, 0.05), (200, 0.05), (300, 0.1)):
        flags = [novelty.flag_members(scores, share) for scores in rng.random((600, n))]
        broken = np.mean([flag.below > share for flag in flags])
        assert broken <= 0.05 + 3 * (0.05 * 0.95 / 600) ** 0.5
        rank = 1 + flags[0].flagged
        assert binomial_cdf(n, share, rank - 1) <= 0.05 < binomial_cdf(n, share, rank), "the highest rank that keeps it"


def binomial_cdf(n: int, p: float, most: int) -> float:
    """P(X <= most), X ~ Binomial(n, p)."""
    return sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(most + 1))


def test_the_flag_says_what_it_does():
    scores = np.linspace(0.5, 1, 300)
    flag = novelty.flag_members(scores)
    assert (flag.n, flag.needed, flag.by_default) == (300, 59, 180)
    assert flag.flagged == int((scores < flag.below).sum()) == 8
    assert flag.line() == (
        "None of these: at most 5% of the photos of these classes are flagged, with 95% certainty; 8 of these 300 "
        f"(2.7%, 95% interval 1.2% to 5.2%). Threshold {flag.below:.6f}; the default, 0.8, would flag 180."
    )
    few = novelty.flag_members(scores[:50])
    assert few.below is None
    assert "50 photos are too few to flag at most 5% of the photos of these classes; 59 could." in few.line()
    tied = novelty.flag_members(np.ones(200))
    assert (tied.below, tied.flagged) == (1.0, 0)
    for wrong in ({"share": 0.0}, {"share": 1.0}, {"certainty": 1.0}):
        with pytest.raises(cots.InputError, match=next(iter(wrong))):
            novelty.flag_members(scores, **wrong)
