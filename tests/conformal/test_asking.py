"""Which photos to label: the draw against its definition, by enumeration and by simulation, and its intervals."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from cots import InputError
from cots.conformal import AskedAccuracy, Draw, draw
from cots.metrics import binomial_interval

CONFIDENCE = np.array([0.95, 0.5, 0.8, 0.99, 0.65])
RIGHT = np.array([1.0, 0.0, 1.0, 1.0, 0.0])


def chances(confidence: np.ndarray, before: list[int], uniform: bool) -> np.ndarray:
    """q_t of every photo, one at a time."""
    left = [i for i in range(len(confidence)) if i not in before]
    total = sum(np.sqrt(confidence[i] * (1 - confidence[i])) for i in left)
    found = np.zeros(len(confidence))
    for i in left:
        wanted = np.sqrt(confidence[i] * (1 - confidence[i])) / total
        found[i] = 1 / len(left) if uniform else 0.5 / len(left) + 0.5 * wanted
    return found


def as_drawn(confidence: np.ndarray, photos: list[int], uniform: bool = False) -> Draw:
    """A draw of given photos, by the definitions."""
    probability, least, most = [], [], []
    for t, photo in enumerate(photos):
        q = chances(confidence, photos[:t], uniform)
        left = [i for i in range(len(q)) if i not in photos[:t]]
        probability.append(q[photo])
        least.append(min(-confidence[i] / (len(left) * q[i]) for i in left))
        most.append(max((1 - confidence[i]) / (len(left) * q[i]) for i in left))
    nothing = np.zeros(len(photos), dtype=int)
    return Draw(
        confidence=confidence, photos=np.array(photos), probability=np.array(probability), heads=nothing > 0,
        place=nothing, least=np.array(least), most=np.array(most),
    )  # fmt: skip


@pytest.mark.parametrize("uniform", [False, True])
def test_a_draw_is_as_defined(uniform):
    confidence = np.random.default_rng(0).beta(3, 1, 60)
    drawn = draw(confidence, 40, uniform=uniform, seed=3)
    assert len(drawn) == len(set(drawn.photos.tolist())) == 40
    expected = as_drawn(confidence, drawn.photos.tolist(), uniform)
    for name in ("probability", "least", "most"):
        np.testing.assert_allclose(getattr(drawn, name), getattr(expected, name), rtol=1e-9)
    weights = 1 / (drawn.probability * (60 - np.arange(40)))
    assert weights.max() <= 2 + 1e-9
    assert draw(confidence, 40, uniform=uniform, seed=3).photos.tolist() == drawn.photos.tolist()
    assert draw(confidence, 40, uniform=uniform, seed=4).photos.tolist() != drawn.photos.tolist()


@pytest.mark.parametrize("uniform", [False, True])
def test_photos_are_drawn_with_the_stated_probabilities(uniform):
    """The first two photos of 3,000 draws against the products of their probabilities, within five deviations."""
    runs, counts, expected = 3000, Counter(), {}
    for seed in range(runs):
        counts[tuple(draw(CONFIDENCE, 2, uniform=uniform, seed=seed).photos.tolist())] += 1
    for pair in itertools.permutations(range(5), 2):
        q = chances(CONFIDENCE, [], uniform)[pair[0]] * chances(CONFIDENCE, [pair[0]], uniform)[pair[1]]
        expected[pair] = q
        assert abs(counts[pair] - runs * q) < 5 * (runs * q * (1 - q)) ** 0.5, pair
    assert sum(expected.values()) == pytest.approx(1)


def test_the_uniform_part_is_a_uniform_sample():
    """Of any size: among the draws with K heads each set of K photos is equally frequent, within five deviations."""
    counts: dict[int, Counter] = {k: Counter() for k in range(5)}
    for seed in range(3000):
        drawn = draw(CONFIDENCE, 4, seed=seed)
        for labelled in (2, 4):
            rows = drawn.uniform_rows(labelled)
            assert len(rows) == drawn.heads[:labelled].sum()
            assert (rows < labelled).all()
        counts[len(rows)][frozenset(drawn.photos[rows].tolist())] += 1
    for k in (1, 2, 3):
        total = counts[k].total()
        sets = list(itertools.combinations(range(5), k))
        share = 1 / len(sets)
        for one in sets:
            assert abs(counts[k][frozenset(one)] - total * share) < 5 * (total * share * (1 - share)) ** 0.5
    everywhere = draw(CONFIDENCE, 4, uniform=True)
    assert everywhere.uniform_rows().tolist() == [0, 1, 2, 3]
    assert everywhere.uniform_rows(2).tolist() == [0, 1]


def lure_of(values: np.ndarray, probability: np.ndarray, photos: int) -> float:
    """LURE as Farquhar et al. write it: 1/M sum of v_m l_m, v_m = 1 + (N-M)/(N-m) (1/((N-m+1) q_m) - 1)."""
    draws, total = len(values), 0.0
    for m in range(1, draws + 1):
        weight = 1 / ((photos - m + 1) * probability[m - 1]) - 1
        if m < photos:
            weight *= (photos - draws) / (photos - m)
        total += (1 + weight) * values[m - 1]
    return total / draws


def test_estimates_are_unbiased_and_within_their_limits():
    """Enumerated: every order of three of five photos, with its probability."""
    total = accuracy = 0.0
    means = np.zeros(3)
    for photos in map(list, itertools.permutations(range(5), 3)):
        drawn = as_drawn(CONFIDENCE, photos)
        likely = drawn.probability.prod()
        residual = (RIGHT - CONFIDENCE)[photos]
        estimates = drawn._estimates(residual) + CONFIDENCE.mean()
        found = drawn.accuracy(RIGHT[photos])
        assert found.interval[0] <= RIGHT.mean() <= found.interval[1], photos
        lure = CONFIDENCE.mean() + lure_of(residual, drawn.probability, 5)
        assert found.accuracy == pytest.approx(np.clip(lure, *found.interval))
        total, means = total + likely, means + likely * estimates
        accuracy += likely * lure
        for t, photo in enumerate(photos):
            weight = (estimates[t] - CONFIDENCE.mean() - residual[:t].sum() / 5) * 5 / (5 - t)
            assert weight == pytest.approx((RIGHT - CONFIDENCE)[photo] / ((5 - t) * drawn.probability[t]))
            assert drawn.least[t] - 1e-12 <= weight <= drawn.most[t] + 1e-12
    assert total == pytest.approx(1)
    np.testing.assert_allclose(means, RIGHT.mean(), rtol=1e-9)
    assert accuracy == pytest.approx(RIGHT.mean())


def pool(n: int, seed: int = 0, worse: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Confidences, and whether the answers are right: less often than they say."""
    rng = np.random.default_rng(seed)
    confidence = rng.beta(4, 1, n)
    return confidence, rng.random(n) < confidence - worse


@pytest.mark.parametrize("uniform", [False, True])
def test_intervals_miss_no_more_often_than_they_say(uniform):
    """benchmarks/asking.py has more draws and sizes."""
    labels, runs = 120, 150
    confidence, right = pool(600)
    true, missed, given = right.mean(), Counter(), Counter()
    for seed in range(runs):
        drawn = draw(confidence, labels, uniform=uniform, seed=seed)
        found = drawn.accuracy(right[drawn.photos])
        for name in ("interval", "exact", "normal"):
            ends = getattr(found, name)
            if ends is not None:
                given[name] += 1
                missed[name] += not ends[0] <= true <= ends[1]
    assert missed["interval"] <= 0.05 * runs
    assert missed["exact"] <= 0.05 * given["exact"] + 3 * (0.05 * 0.95 * runs) ** 0.5
    assert given["normal"] == given["exact"] == given["interval"] == runs
    assert missed["normal"] <= 0.05 * given["normal"] + 3 * (0.05 * 0.95 * runs) ** 0.5


def test_asking_about_the_unsure_photos_pays_from_a_hundred_labels_on():
    rng = np.random.default_rng(0)
    confidence = 1 - 0.9 * rng.beta(0.3, 2, 1000)  # most answers are nearly certain
    right = rng.random(1000) < confidence
    widths: dict[bool, list[float]] = {False: [], True: []}
    for uniform in widths:
        for seed in range(10):
            drawn = draw(confidence, 200, uniform=uniform, seed=seed)
            found = drawn.accuracy(right[drawn.photos])
            widths[uniform].append(found.normal[1] - found.normal[0])
    assert np.mean(widths[False]) < 0.85 * np.mean(widths[True])


def test_too_few_labels_or_errors_give_no_normal_interval():
    confidence, right = pool(500)
    drawn = draw(confidence, 200)
    correct = right[drawn.photos]
    assert drawn.accuracy(correct[:100]).normal is not None
    assert drawn.accuracy(correct[:99]).normal is None
    wrong = np.flatnonzero(~correct)
    for errors, given in ((9, False), (10, True)):
        few = np.ones(200, dtype=bool)
        few[wrong[:errors]] = False
        assert (drawn.accuracy(few).normal is not None) is given
        assert (drawn.accuracy(~few).normal is not None) is given


def test_the_normal_interval_of_uniform_labels_is_that_of_ppi_plus_plus():
    """Against its equations, for a large folder, where drawing without replacement makes no difference."""
    rng = np.random.default_rng(0)
    confidence = rng.beta(2, 1, 100_000)
    right = rng.random(100_000) < 0.3 + 0.5 * confidence
    drawn = draw(confidence, 150, uniform=True)
    y, f = right[drawn.photos].astype(float), confidence[drawn.photos]
    share = np.cov(y, f)[0, 1] / f.var(ddof=1)
    middle = share * confidence.mean() + (y - share * f).mean()
    half = 1.959964 * ((y - share * f).var(ddof=1) / 150) ** 0.5
    assert drawn.accuracy(y).normal == pytest.approx((middle - half, middle + half), abs=5e-4)
    assert 0 < share < 1


def test_labels_of_a_first_part_are_a_draw_of_that_size():
    confidence, right = pool(500)
    drawn = draw(confidence, 300)
    parts = {name: getattr(drawn, name)[:120] for name in ("photos", "probability", "heads", "place", "least", "most")}
    correct = right[drawn.photos[:120]]
    found = drawn.accuracy(correct)
    shorter = replace(drawn, **parts)
    assert shorter.accuracy(correct) == replace(found, exact=shorter.accuracy(correct).exact)
    assert found.exact is None
    rows = drawn.uniform_rows(120)
    assert shorter.accuracy(correct).exact == binomial_interval(int(correct[rows].sum()), len(rows))


def test_photos_that_nobody_can_tell_count_both_ways():
    confidence, right = pool(500)
    drawn = draw(confidence, 150)
    correct = right[drawn.photos].astype(float)
    unknown = correct.copy()
    unknown[[3, 70]] = np.nan
    found = drawn.accuracy(unknown)
    ends = []
    for value in (0.0, 1.0):
        filled = np.where(np.isnan(unknown), value, unknown)
        ends.append(drawn.accuracy(filled))
    assert found.interval == (ends[0].interval[0], ends[1].interval[1])
    assert found.exact == (ends[0].exact[0], ends[1].exact[1])
    assert found.normal is None
    assert ends[0].normal is not None


def test_a_folder_labelled_whole_leaves_no_doubt():
    found = draw(CONFIDENCE, 5).accuracy([1, 0, 1, 1, 0])
    assert found.interval == pytest.approx((0.6, 0.6))
    confidence, right = pool(150)
    drawn = draw(confidence, 150)
    found = drawn.accuracy(right[drawn.photos])
    assert found.interval == pytest.approx((right.mean(), right.mean()))
    assert found.normal == pytest.approx((right.mean(), right.mean()))
    gap = confidence.mean() - right.mean()
    assert found.gap == pytest.approx(gap)
    assert found.gap_interval == pytest.approx((gap, gap))


def test_certain_photos_are_drawn_only_uniformly_until_no_others_are_left():
    confidence = np.array([1.0] * 5 + [0.5])
    drawn = draw(confidence, 6, seed=1)
    assert sorted(drawn.photos.tolist()) == list(range(6))
    assert np.isfinite(drawn.least).all()
    found = drawn.accuracy(np.ones(6))
    assert isinstance(found, AskedAccuracy)
    assert found.interval == pytest.approx((1.0, 1.0))


def test_what_is_refused():
    with pytest.raises(InputError, match="n must be a whole number from 1 to 5"):
        draw(CONFIDENCE, 6)
    with pytest.raises(InputError, match="confidence"):
        draw([0.5, 1.2], 1)
    drawn = draw(CONFIDENCE, 3)
    for wrong in ([], [1, 0, 1, 1], [[1, 0]]):
        with pytest.raises(InputError, match="from 1 to 3 values"):
            drawn.accuracy(wrong)
    with pytest.raises(InputError, match="true, false or NaN"):
        drawn.accuracy([0.5, 1])
    with pytest.raises(InputError, match="level must lie"):
        drawn.accuracy([1], level=1)
