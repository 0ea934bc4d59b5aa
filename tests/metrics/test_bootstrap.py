"""Bootstrap intervals: repeatable, about as wide as theory says, and the same whichever way the arrays come in."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import scipy
import torch

from cots._errors import InputError
from cots.metrics import (
    METRICS,
    accuracy,
    adaptive_ece,
    bootstrap,
    brier_multiclass,
    brier_top_label,
    classwise_ece,
    confidence_gap,
    ece,
    mce,
    nll,
    risk_coverage,
)


@pytest.fixture(scope="module")
def sample():
    """Confidences that are 0.2 too high, with their outcomes."""
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.3, 1.0, 500)
    return confidence, rng.random(500) < confidence - 0.2


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(120, 4))
    return logits, torch.from_numpy(logits).softmax(-1).numpy(), rng.integers(0, 4, 120)


def test_a_seed_fixes_the_interval(sample):
    first, again = (bootstrap(ece, *sample, resamples=60, seed=3) for _ in range(2))
    assert first == again
    other = bootstrap(ece, *sample, resamples=60, seed=4)
    assert (other.low, other.high) != (first.low, first.high)


def test_interval_surrounds_the_value_and_carries_its_settings(sample):
    for metric in (ece, mce, risk_coverage, confidence_gap, brier_top_label):
        interval = bootstrap(metric, *sample, resamples=150, level=0.9)
        assert interval.low < interval.value < interval.high
        assert float(interval) == interval.value == float(metric(*sample))
        assert (interval.resamples, interval.level, interval.n) == (150, 0.9, 500)
        assert interval.name == metric(*sample).name
    assert repr(interval).startswith("Interval(brier_top_label=0.")
    assert ", 90% [0." in repr(interval)


def test_a_higher_level_is_wider(sample):
    narrow, wide = (bootstrap(ece, *sample, resamples=200, level=level) for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high
    assert wide.standard_error == narrow.standard_error


def test_standard_error_is_that_of_a_mean(sample):
    _, correct = sample
    p = correct.mean()
    interval = bootstrap(accuracy, correct, resamples=2000)
    assert interval.standard_error == pytest.approx(math.sqrt(p * (1 - p) / 500), rel=0.06)
    half = scipy.stats.norm.ppf(0.975) * interval.standard_error
    assert (interval.low, interval.high) == pytest.approx((p - half, p + half), abs=0.006)


def test_percentiles_agree_with_scipy(sample):
    ours = bootstrap(brier_top_label, *sample, resamples=2000)
    theirs = scipy.stats.bootstrap(
        ((sample[0] - sample[1]) ** 2,), np.mean, n_resamples=2000, method="percentile", rng=np.random.default_rng(9)
    )
    # The end points themselves have a Monte-Carlo error of about a twentieth of the standard error each.
    tolerance = 0.2 * ours.standard_error
    assert ours.standard_error == pytest.approx(theirs.standard_error, rel=0.08)
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=tolerance)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=tolerance)


def test_coverage_of_a_mean_on_simulated_sets():
    """95% intervals must contain the true accuracy, 0.7, in about 95% of simulated sets."""
    rng = np.random.default_rng(5)
    inside = 0
    for seed in range(300):
        interval = bootstrap(accuracy, rng.random(100) < 0.7, resamples=200, seed=seed)
        inside += interval.low <= 0.7 <= interval.high
    assert 0.90 <= inside / 300 <= 0.98


@pytest.mark.parametrize("metric", [brier_multiclass, nll, adaptive_ece, classwise_ece])
def test_calling_the_metric_on_each_resample_gives_the_same(metric, table):
    """The figures that are means skip the call; they must not differ from those that do not."""
    _, probabilities, labels = table
    direct = bootstrap(metric, probabilities, labels, resamples=25)
    through = bootstrap(lambda p, y: float(metric(p, y)), probabilities, labels, resamples=25)
    rng = np.random.default_rng(0)
    draws = (rng.integers(0, 120, 120) for _ in range(25))
    figures = [float(metric(probabilities[draw], labels[draw])) for draw in draws]
    for interval in (direct, through):
        assert interval.low == pytest.approx(np.quantile(figures, 0.025), abs=1e-12)
        assert interval.high == pytest.approx(np.quantile(figures, 0.975), abs=1e-12)
        assert interval.standard_error == pytest.approx(np.std(figures, ddof=1), abs=1e-12)
    assert through.name == "lambda"


@pytest.mark.parametrize("metric", [accuracy, confidence_gap, brier_top_label])
def test_the_other_means_agree_with_calling_the_metric(metric, sample):
    arrays = sample[1:] if metric is accuracy else sample
    direct = bootstrap(metric, *arrays, resamples=25)
    through = bootstrap(lambda *a: metric(*a), *arrays, resamples=25)
    assert (through.low, through.high) == pytest.approx((direct.low, direct.high), abs=1e-12)


def test_arrays_by_name_are_resampled_and_settings_passed_on(sample, table):
    logits, probabilities, labels = table
    by_name = bootstrap(nll, logits=logits, labels=labels, resamples=20)
    by_position = bootstrap(nll, probabilities, labels, resamples=20)
    assert (by_name.low, by_name.high) == pytest.approx((by_position.low, by_position.high), abs=1e-12)
    assert by_name.low < by_name.high
    mixed = bootstrap(ece, sample[0], correct=sample[1], bins=5, resamples=20)
    assert mixed == bootstrap(functools.partial(ece, bins=5), *sample, resamples=20)
    assert mixed.value == float(ece(*sample, bins=5))


@pytest.mark.parametrize("convert", [torch.from_numpy, np.ndarray.tolist], ids=["tensors", "lists"])
def test_tensors_and_lists_give_the_same_interval(sample, convert):
    expected = bootstrap(ece, *sample, resamples=20)
    assert bootstrap(ece, *(convert(a) for a in sample), resamples=20) == expected


def test_a_callable_is_given_tensors_for_tensors_and_may_return_any_number(sample):
    seen = set()

    def mean_of(values):
        seen.add(type(values))
        return values.mean()

    interval = bootstrap(mean_of, torch.from_numpy(sample[0]), resamples=10)
    assert seen == {torch.Tensor}
    assert interval.name == "mean_of"
    assert interval.value == pytest.approx(sample[0].mean())


def test_a_difference_of_two_methods_is_paired(sample):
    """The same samples enter both sides of the difference, so what they share cancels."""
    confidence, correct = sample

    def difference(one, other, right):
        return float(brier_top_label(one, right)) - float(brier_top_label(other, right))

    paired = bootstrap(difference, confidence, confidence * 0.98, correct, resamples=100)
    alone = bootstrap(brier_top_label, confidence, correct, resamples=100)
    assert paired.standard_error < 0.2 * alone.standard_error


def test_one_sample_has_a_point_for_an_interval():
    interval = bootstrap(brier_top_label, [0.5], [True], resamples=10)
    assert (interval.low, interval.high, interval.standard_error) == (0.25, 0.25, 0.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap(ece, [0.5, 0.6], [True]), r"array 1 has 2, array 2 has 1"),
        (lambda: bootstrap(ece, [0.5], correct=[True, False]), r"array 1 has 1, correct has 2"),
        (lambda: bootstrap(ece, [0.5, 0.6], [1, 0], 15), r"array 3 is 15, which has no samples.*settings by name"),
        (lambda: bootstrap(ece), r"at least one array after the metric"),
        (lambda: bootstrap(np.mean, []), "at least one sample"),
        (lambda: bootstrap(np.mean, [[1, 2], [3]]), r"rows of equal length"),
        (lambda: bootstrap(ece, [0.5], [1], resamples=1), r"resamples must be a whole number >= 2, not 1"),
        (lambda: bootstrap(ece, [0.5], [1], level=95), r"level must be a fraction.*0\.95, not 95"),
        (lambda: bootstrap(ece, [0.5], [1], level=1.0), r"level must be a fraction"),
        (lambda: bootstrap(ece, [0.5], [1], seed=-1), r"seed must be a whole number >= 0"),
        (lambda: bootstrap(ece, [1.5], [1]), r"confidence must be in \[0, 1\]"),
        (lambda: bootstrap(lambda a: math.nan, [1, 2], resamples=5), "lambda is not finite on every resample"),
    ],
)
def test_what_cannot_be_resampled_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_a_metric_that_is_not_finite_on_the_set_itself_is_named():
    answers = iter([math.inf, 1.0, 2.0])
    with pytest.raises(InputError, match="not finite on every resample"):
        bootstrap(lambda a: next(answers), [1, 2], resamples=2)


def test_intervals_stay_within_what_a_metric_can_be():
    """A few samples per bin make the MCE of a resample large, and centring shifts it further."""
    confidence, correct = np.array([0.98, 0.98, 0.5, 0.4]), np.array([0, 0, 1, 0])
    found = bootstrap(mce, confidence, correct, centre=True)
    assert found.value == pytest.approx(0.98)
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert bootstrap(accuracy, [True] * 9 + [False], centre=True).high <= 1
    for name, low, high in (("mce", 0, 1), ("confidence_gap", -1, 1), ("brier_multiclass", 0, 2), ("nll", 0, math.inf)):
        assert METRICS.info(name).clip((-9.0, 9.0)) == (low, min(high, 9.0)), name
        assert METRICS.info(name).clip_change((-9.0, 9.0)) == (max(low - high, -9.0), min(high - low, 9.0)), name
    for metric in METRICS.infos():
        assert metric.bounds[0] >= 0 or metric.name in ("confidence_gap", "nll_calibration", "brier_calibration")
