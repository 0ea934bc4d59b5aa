"""Records -> figures: what is read, what columns give, and several sets as one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.report_run import FakeRecords, small_run

from cots import metrics
from cots.evaluate import deviation, pool, score, score_columns
from cots.metrics import noise_floor


@pytest.fixture(scope="module")
def records() -> FakeRecords:
    return small_run().records("pets", "tpt", 0)


def test_every_metric_is_that_of_cots_metrics(records):
    found = score(records, bins=10)
    assert found.values.keys() == set(metrics.METRICS)
    assert found.values["ece"] == float(metrics.ece(records.confidence, records.correct, bins=10))
    assert found.values["adaptive_ece"] == float(metrics.adaptive_ece(records.probabilities, records.label, 10))
    assert found.values["nll"] == float(metrics.nll(records.probabilities, records.label))
    assert found.mean_confidence == pytest.approx(records.confidence.mean(dtype=float))
    assert (found.milliseconds, len(found), found.failed) == (4.0, 60, 0)
    assert np.isnan(found.tau)


def test_intervals_are_those_of_the_bootstrap(records):
    found = score(records, ("accuracy", "ece", "nll")).intervals(3, resamples=200)
    draws = {"seed": 3, "resamples": 200}
    confidence, correct = records.confidence.astype(np.float64), records.correct
    expected = {
        "accuracy": metrics.bootstrap(metrics.accuracy, correct, **draws),
        "ece": metrics.bootstrap(metrics.ece, confidence, correct, centre=True, **draws),
        "nll": metrics.bootstrap(metrics.nll, records.probabilities, records.label, **draws),
        "mean_confidence": metrics.bootstrap(np.mean, confidence, **draws),
    }
    assert found == {name: pytest.approx((max(0.0, one.low), one.high)) for name, one in expected.items()}


def test_probabilities_are_read_only_where_a_metric_needs_them(records):
    class Guarded:
        chunked = 0

        def __getattr__(self, name):
            assert name != "probabilities", "the whole table"
            return getattr(records, name)

        def chunks(self, column):
            self.chunked += 1
            yield from (records.probabilities[:25], records.probabilities[25:25], records.probabilities[25:])

    guarded = Guarded()
    assert score(guarded, ["accuracy", "ece", "aurc"]).values["ece"] == score(records).values["ece"]
    assert guarded.chunked == 0
    found = score(guarded, ["nll", "brier_multiclass"])
    assert guarded.chunked == 1
    whole = score(records)
    assert found.values == {name: whole.values[name] for name in ("nll", "brier_multiclass")}
    with pytest.raises(AssertionError, match="the whole table"):
        score(guarded, ["classwise_ece"])


def test_large_tables_are_scored_in_pieces(records, monkeypatch):
    whole = score(records)
    monkeypatch.setattr("cots.evaluate._score._ENTRIES", 3 * records.probabilities.shape[1])
    pieces = score(records)
    assert pieces.values == whole.values
    np.testing.assert_array_equal(pieces.columns["nll"], whole.columns["nll"])


def test_columns_give_the_figures_that_need_no_probabilities(records):
    whole = score(records)
    found = score_columns(records.confidence, records.correct, {"nll": whole.columns["nll"]})
    assert found.values == {
        name: value
        for name, value in whole.values.items()
        if name == "nll" or "probabilities" not in metrics.METRICS.info(name).inputs
    }
    assert score_columns(records.confidence, records.correct, metrics=["ece"]).values.keys() == {"ece"}


def test_pooled_sets_are_one_set():
    run = small_run()
    parts = [score(run.records(name, "tpt", 0)) for name in ("pets", "dtd")]
    pooled = pool(parts)
    confidence, correct = (np.concatenate([getattr(p, name) for p in parts]) for name in ("confidence", "correct"))
    assert pooled.values["ece"] == float(metrics.ece(confidence, correct))
    assert pooled.values["nll"] == pytest.approx(np.average([p.values["nll"] for p in parts], weights=[60, 46]))
    assert "classwise_ece" not in pooled.values
    assert (len(pooled), pooled.failed, pooled.milliseconds) == (106, 2, 4.0)
    assert pooled.reliability().counts.sum() == 106


def test_a_thinned_curve_keeps_its_area_and_its_ends(records):
    whole, thin = score(records).risk_coverage(), score(records).risk_coverage(10)
    assert (len(thin.risk), thin.value) == (10, whole.value)
    assert (thin.coverage[0], thin.coverage[-1]) == (whole.coverage[0], 1.0)
    assert set(thin.risk) <= set(whole.risk)


def test_the_deviation_of_one_seed_is_none():
    assert deviation([0.5]) is None
    assert deviation([0.1, 0.3]) == pytest.approx(np.sqrt(0.02))


def test_the_noise_floor_falls_with_the_number_of_samples():
    few, many = (noise_floor(np.full(n, 0.8), draws=100) for n in (50, 5000))
    assert few[0] < few[1]
    # The mean absolute deviation of a proportion: sqrt(2/pi * p(1-p)/n).
    assert few[0] == pytest.approx(np.sqrt(2 / np.pi * 0.16 / 50), rel=0.2)
    assert many[0] < few[0] / 5


def test_a_time_or_temperature_that_is_not_known_is_left_out_of_the_mean(records):
    tau = np.full(len(records), np.nan)
    tau[:2] = 1.0, 2.0
    assert score(dataclasses.replace(records, tau=tau), ["accuracy"]).tau == 1.5
