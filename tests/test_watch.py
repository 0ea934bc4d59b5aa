"""Watching without labels: the statistic against scipy's, false alarms and power by simulation, and the words."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from scipy import stats

import cots
from cots.watch import FALSE_ALARMS, KEPT, SIGNALS, Watch, changed, distance, lines, reference_of


def photo(confidence: float, agreement: float = 0.8, in_list: float = 0.9, **more) -> cots.Prediction:
    nothing = {"label": "a", "probabilities": np.array([confidence]), "classes": ("a",)}
    return cots.Prediction(confidence=confidence, agreement=agreement, in_list=in_list, **nothing, **more)


def draw(rng: np.random.Generator, n: int, shift: float = 0.0) -> dict[str, np.ndarray]:
    agreement = rng.binomial(64, 0.8, n) / 64  # with ties
    return {"confidence": rng.beta(4, 1, n) - shift, "agreement": agreement, "in_list": rng.beta(9, 1, n)}


def test_the_distance_is_scipys_and_the_bound_is_above_the_exact_probability():
    rng = np.random.default_rng(0)
    for n, m in ((20, 20), (200, 200), (1000, 200), (37, 200)):
        for shift in (0.0, 0.3, 0.8):
            a, b = np.sort(rng.normal(size=n)).round(2), np.sort(rng.normal(size=m) + shift).round(2)
            exact = stats.ks_2samp(a, b, method="exact")
            assert distance(a, b) == pytest.approx(exact.statistic, abs=1e-12)
            if exact.pvalue < 0.1:
                assert 2 * np.exp(-2 * exact.statistic**2 * n * m / (n + m)) >= exact.pvalue


@pytest.mark.parametrize("n", [200, 1000])
def test_false_alarms_are_as_rare_as_stated_and_changes_are_found(n):
    rng = np.random.default_rng(1)
    alarms = sum(bool(changed(draw(rng, n), draw(rng, 200))) for _ in range(2000))
    assert alarms <= stats.binom.ppf(0.999, 2000, FALSE_ALARMS)
    found = [changed(draw(rng, n), draw(rng, 200, shift=0.2)) for _ in range(100)]
    assert sum("confidence" in names for names in found) >= 95
    assert sum(len(names) > 1 for names in found) <= 1


def test_the_first_window_is_the_reference():
    watch = Watch(window=10)
    for value in np.linspace(0.5, 0.9, 10):
        watch.add(photo(value))
        watch.add(photo(0.1, error="not read"))
    seen = watch.seen()
    assert (seen.n, seen.reference, seen.windows, seen.drift) == (10, 10, 0, False)
    assert seen.confidence == pytest.approx(0.7)
    for _ in range(10):
        watch.add(photo(0.3, agreement=0.25, none_of_these=True))
    seen = watch.seen()
    assert (seen.confidence, seen.agreement, seen.none_of_these) == pytest.approx((0.3, 0.25, 1.0))
    assert (seen.windows, seen.changed) == (1, ("confidence", "agreement"))
    for value in np.linspace(0.5, 0.9, 10):
        watch.add(photo(value))
    assert not watch.seen().drift, "the flag is about the last window"


def test_before_the_first_photo_and_from_several_threads():
    watch = Watch(window=50)
    assert np.isnan(watch.seen().confidence)
    threads = [threading.Thread(target=lambda: [watch.add(photo(0.5)) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (watch.seen().n, watch.seen().windows, watch.seen().drift) == (2000, 39, False)


def test_a_reference_of_many_is_thinned():
    many = [photo(value) for value in np.random.default_rng(0).uniform(size=5000)]
    kept = reference_of(many)
    assert {name: len(values) for name, values in kept.items()} == dict.fromkeys(SIGNALS, KEPT)
    everything = np.sort([one.confidence for one in many])
    assert distance(np.array(kept["confidence"]), everything) < 2 / KEPT
    with pytest.raises(cots.InputError, match="at least one prediction without an error"):
        reference_of([photo(0.5, error="not read")])


def test_what_is_said():
    watch = Watch(window=10)
    for _ in range(10):
        watch.add(photo(0.9))
    said = lines(watch.seen(), 10)
    assert said[0].startswith("10 photos: mean confidence 90.0%, 80.0% of the views agree with the answer, 0.0% of the")
    assert said[1] == "No comparison with a reference yet: it takes 10 photos."
    assert said[-1] == "This shows when to look at the photos, not whether the predictions are right."
    for _ in range(10):
        watch.add(photo(0.2))
    said = lines(watch.seen(), 10)
    assert said[0].startswith("the last 10 of 20 photos: mean confidence 20.0%")
    assert said[1] == "Changed since the reference of 10 photos: confidence. Look at these photos."
    assert "20 photos, or 10 and --policy" in lines(Watch(window=10).seen(), 10)[1]
