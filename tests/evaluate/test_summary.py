"""A report's figures: the metrics' own, intervals over images, comparisons on the same draws, averages over groups."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from support.report_run import FakeRecords, FakeRun, small_run

from cots import metrics
from cots._errors import InputError
from cots.evaluate import summarise
from cots.evaluate._score import score
from cots.evaluate._summary import base_of, draw_seed, resample
from cots.metrics import METRICS
from cots.metrics.intervals import quantiles

FAST = {"resamples": 60}
RESAMPLED = tuple(metric.name for metric in METRICS.infos() if metric.resampled)


@pytest.fixture(scope="module")
def summary():
    return summarise(small_run(), **FAST)


def one_figure(name: str, r: FakeRecords, take: np.ndarray | slice = slice(None), bins: int = 20) -> float:
    """A figure straight from cots.metrics on some rows of the records."""
    confidence, correct, p, label = r.confidence[take], r.correct[take], r.probabilities[take], r.label[take]
    by_name = {
        "accuracy": lambda: metrics.accuracy(correct),
        "ece": lambda: metrics.ece(confidence, correct, bins=bins),
        "mce": lambda: metrics.mce(confidence, correct, bins=bins),
        "adaptive_ece": lambda: metrics.adaptive_ece(p, label, ranges=bins),
        "classwise_ece": lambda: metrics.classwise_ece(p, label, bins=bins),
        "brier_top_label": lambda: metrics.brier_top_label(confidence, correct),
        "brier_multiclass": lambda: metrics.brier_multiclass(p, label),
        "nll": lambda: metrics.nll(p, label),
        "aurc": lambda: metrics.risk_coverage(confidence, correct),
        "confidence_gap": lambda: metrics.confidence_gap(confidence, correct),
        "smooth_ece": lambda: metrics.smooth_ece(confidence, correct),
        "nll_calibration": lambda: metrics.nll_calibration(p, label),
        "nll_refinement": lambda: metrics.nll_refinement(p, label),
        "brier_calibration": lambda: metrics.brier_calibration(p, label),
        "brier_refinement": lambda: metrics.brier_refinement(p, label),
    }
    return float(by_name[name]())


@pytest.mark.parametrize("metric", METRICS.infos(), ids=lambda m: m.name)
def test_cells_hold_the_metrics_own_figures(summary, metric):
    run = small_run()
    for dataset in run.sets:
        for method in run.methods:
            cell = summary.cell(dataset, method, metric.name)
            expected = [one_figure(metric.name, run.records(dataset, method, seed)) for seed in run.seeds]
            assert list(cell.values) == expected
            assert cell.seeds == run.seeds
            assert cell.mean == pytest.approx(sum(expected) / 2, abs=1e-15)
            assert cell.std == pytest.approx(abs(expected[0] - expected[1]) / math.sqrt(2), abs=1e-15)


def test_the_number_of_bins_reaches_every_binned_metric():
    run = small_run(sets={"pets": ("OxfordPets", 60, 5, None, 1.0)}, seeds=(0,), methods=("zeroshot",), broken={})
    coarse = summarise(run, bins=5, **FAST)
    for name in ("ece", "mce", "classwise_ece", "adaptive_ece"):
        expected = one_figure(name, run.records("pets", "zeroshot", 0), bins=5)
        assert coarse.cell("pets", "zeroshot", name).values == (expected,)
        assert expected != one_figure(name, run.records("pets", "zeroshot", 0))


def naive_resample(runs: list[FakeRecords], population: list[str], seed: int, resamples: int) -> np.ndarray:
    """Draw images, look up the rows of each image in each run, call the metrics on those rows."""
    rng = np.random.default_rng(seed)
    figures = np.empty((resamples, len(RESAMPLED)))
    for b in range(resamples):
        drawn = [population[i] for i in rng.integers(0, len(population), len(population))]
        for j, name in enumerate(RESAMPLED):
            each = []
            for run in runs:
                row = {sample: i for i, sample in enumerate(run.ids)}
                take = np.array([row[sample] for sample in drawn if sample in row])
                each.append(one_figure(name, run, take))
            figures[b, j] = sum(each) / len(each)
    return figures


def test_one_matrix_product_is_the_bootstrap_written_out():
    run = small_run()
    whole, broken = (run.records("pets", "tpt", seed) for seed in (0, 1))
    # One image that failed in one of the seeds, ties, and confidences on the edges of bins as float32 has them.
    broken = dataclasses.replace(
        broken,
        **{name: getattr(broken, name)[2:] for name in ("ids", "label", "prediction", "confidence", "probabilities")},
    )
    whole.confidence[:6] = np.array([0.15, 0.15, 0.6, 0.6, 1.0, 0.35], dtype=np.float32)
    population = list(whole.ids)
    runs = [score(r) for r in (whole, broken)]
    found = resample(runs, population, seed=5, resamples=25)
    fast = np.stack([found[name] for name in RESAMPLED], axis=1)
    np.testing.assert_allclose(fast, naive_resample([whole, broken], population, 5, 25), rtol=0, atol=1e-12)


def test_draws_in_several_chunks_are_the_same(monkeypatch):
    runs = [score(small_run().records("pets", "tpt", 0))]
    whole = resample(runs, list(runs[0].ids), seed=1, resamples=20)
    monkeypatch.setattr("cots.metrics.intervals._ENTRIES", 3 * len(runs[0].ids))
    for name, figures in resample(runs, list(runs[0].ids), seed=1, resamples=20).items():
        np.testing.assert_allclose(figures, whole[name], rtol=0, atol=1e-14)


def test_with_one_seed_the_interval_is_that_of_metrics_bootstrap_moved_onto_the_figure():
    run = small_run(seeds=(0,), broken={})
    records = run.records("pets", "tpt", 0)
    found = summarise(run, resamples=80, level=0.9)
    for name, metric in (("ece", metrics.ece), ("smooth_ece", metrics.smooth_ece), ("aurc", metrics.risk_coverage)):
        inner = metrics.bootstrap(
            metric, records.confidence, records.correct, seed=draw_seed("pets"), resamples=80, level=0.9
        )
        cell = found.cell("pets", "tpt", name)
        assert cell.high - cell.low == pytest.approx(inner.high - inner.low, abs=1e-12)
        assert cell.low < cell.mean < cell.high


def test_centred_quantiles_have_the_figure_as_their_mean():
    figures = np.random.default_rng(0).normal(5.0, 1.0, 4001)
    low, high = quantiles(figures, 0.9, 2.0)
    assert (low + high) / 2 == pytest.approx(2.0, abs=0.06)
    assert high - low == pytest.approx(2 * 1.645, abs=0.12)


def test_identical_seeds_do_not_narrow_the_interval():
    """Zero-shot sees the weak view alone: three seeds are one look at the images, not three."""
    one, three = (
        summarise(small_run(seeds=seeds, methods=("zeroshot",)), **FAST).cell("pets", "zeroshot", "accuracy")
        for seeds in ((0,), (0, 1, 2))
    )
    assert (one.std, three.std) == (None, 0.0)
    assert (three.low, three.high) == pytest.approx((one.low, one.high), abs=1e-12)
    p, n = one.mean, 60
    assert one.high - one.low == pytest.approx(2 * 1.96 * math.sqrt(p * (1 - p) / n), rel=0.3)


def test_a_change_is_judged_on_the_same_draws(summary):
    accuracy = summary.cell("pets", "tpt+cots", "accuracy")
    assert (accuracy.base, accuracy.change, accuracy.change_low, accuracy.change_high) == ("tpt", 0.0, 0.0, 0.0)
    assert not accuracy.clear
    loss, base = (summary.cell("dtd", method, "nll") for method in ("tpt+cots", "tpt"))
    assert loss.change == pytest.approx(loss.mean - base.mean, abs=1e-12)
    assert loss.change < 0.0
    assert loss.better
    assert loss.clear
    # Independent draws would give an interval as wide as the two together.
    assert loss.change_high - loss.change_low < 0.8 * math.hypot(loss.high - loss.low, base.high - base.low)


def test_only_a_calibrator_on_an_adapter_in_the_run_is_compared(summary):
    assert summary.cell("pets", "tpt", "ece").base is None
    assert summary.cell("pets", "tpt", "ece").change is None
    assert summary.cell("pets", "ctpt+cots", "ece").base is None
    assert base_of("tpt+cots", ["tpt", "tpt+cots"]) == "tpt"


def test_a_base_with_other_seeds_is_not_compared():
    found = summarise(small_run(absent=(("pets", "tpt", 1),)), **FAST)
    assert found.cell("pets", "tpt+cots", "ece").base is None
    assert found.cell("dtd", "tpt+cots", "ece").base == "tpt"
    assert found.missing == (("pets", "tpt", 1),)
    assert not found.complete


def test_averages_are_over_the_datasets_of_a_group(summary):
    assert [column.title for column in summary.columns] == [
        "OxfordPets", "DTD", "My <photos> & 100%_more", "Average of 2 fine-grained sets"
    ]  # fmt: skip
    cell = summary.cell("average:fine-grained", "tpt+cots", "ece")
    members = [summary.cell(name, "tpt+cots", "ece") for name in ("pets", "dtd")]
    by_seed = [sum(pair) / 2 for pair in zip(*(member.values for member in members), strict=True)]
    assert cell.values == pytest.approx(by_seed, abs=1e-15)
    assert cell.std == pytest.approx(np.std(by_seed, ddof=1))
    assert cell.base == "tpt"
    # Sets are drawn independently, so the average is surer than its members.
    assert cell.high - cell.low < max(m.high - m.low for m in members)


def test_an_average_needs_all_its_members_and_seeds():
    found = summarise(small_run(absent=(("dtd", "tpt", 0),)), **FAST)
    assert found.cell("average:fine-grained", "tpt", "ece") is None
    assert found.cell("average:fine-grained", "zeroshot", "ece") is not None
    assert found.cell("dtd", "tpt", "ece").seeds == (1,)


def test_no_average_of_one_dataset_or_of_ungrouped_ones():
    sets = {"a": ("A", 20, 3, "variants", 1.0), "b": ("B", 20, 3, None, 1.0), "c": ("C", 20, 3, None, 1.0)}
    found = summarise(FakeRun(sets=sets, methods=("tpt",), seeds=(0,)), **FAST)
    assert [column.name for column in found.columns] == ["a", "b", "c"]


def test_datasets_of_one_size_are_drawn_apart():
    assert draw_seed("pets") != draw_seed("dtd")


def test_failed_samples_are_counted_and_left_out(summary):
    assert summary.samples("dtd") == (46, 46)
    assert (summary.failed("dtd"), summary.failed("pets")) == (2, 0)
    first, second = summary.failures
    assert (first.sample, first.error) == ("dtd/0003.jpg", "cannot identify image file")
    assert tuple(dict.fromkeys(m for m, _ in first.where)) == ("zeroshot", "tpt", "tpt+cots", "ctpt+cots")
    assert len(first.where) == len(second.where) == 8


def test_a_part_in_which_everything_failed_is_missing_and_its_samples_failed():
    broken = {"mine": dict.fromkeys(range(30), "no such file")}
    found = summarise(small_run(broken=broken), **FAST)
    assert len(found.missing) == 8
    assert found.failed("mine") == 30
    assert found.cell("mine", "tpt", "ece") is None


def test_the_best_of_a_column_as_printed(summary):
    for metric in METRICS.infos():
        best = summary.best("dtd", metric.name)
        means = {m: summary.cell("dtd", m, metric.name).mean for m in summary.methods}
        lowest, nearest = min(means.values()), min(means.values(), key=abs)
        extreme = {"higher": max(means.values()), "lower": lowest, "zero": nearest}[metric.better]
        assert {m for m, value in means.items() if value == extreme} <= best
    # tpt and tpt+cots make the same predictions: both or neither.
    assert ("tpt" in summary.best("pets", "accuracy")) == ("tpt+cots" in summary.best("pets", "accuracy"))


def test_nothing_is_best_where_all_are_the_same():
    found = summarise(small_run(methods=("tpt", "tpt+sals", "tpt+cots")), **FAST)
    assert found.best("pets", "accuracy") == set()
    assert found.best("pets", "ece")


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"level": 1.0}, "level must be a fraction"), ({"resamples": 1}, "resamples must be a whole number >= 2")],
)
def test_settings_that_make_no_interval_are_refused(settings, words):
    with pytest.raises(InputError, match=words):
        summarise(small_run(), **settings)


def test_a_run_without_records_says_what_to_do():
    run = small_run()
    run.absent = tuple((d, m, s) for d in run.sets for m in run.methods for s in run.seeds)
    with pytest.raises(InputError, match=r"no finished records.*cots run"):
        summarise(run)


def test_progress_is_called():
    told = []
    summarise(small_run(), resamples=2, progress=lambda what, done, total: told.append((what, done, total)))
    assert told[0] == ("pets zeroshot seed 0", 0, 24)
    assert told[-1][1:] == (24, 24)
