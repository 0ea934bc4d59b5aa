"""Scores of a stand-in run, computed by hand and read through `compare`."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from support.paper_run import FakeRun, N, row

import cots
from cots.data import PROTOCOLS
from cots.paper import compare

VARIANTS = [protocol.name for protocol in PROTOCOLS.values() if protocol.average == "variants"]


def test_metrics_by_hand():
    """With one confidence c and accuracy a, all calibration errors are |a - c| and Brier is a(1-c)^2 + (1-a)c^2."""
    run = FakeRun({("pets", "tpt"): [(0.8, 0.9)]}, seeds=(7,))
    for table, metric, expected in (
        ("fine-grained", "accuracy", 80),
        ("fine-grained", "ece", 10),
        ("brier-fine-grained", "brier", 100 * (0.8 * 0.1**2 + 0.2 * 0.9**2)),
        ("cece-fine-grained", "cece", 10),
        ("aece-fine-grained", "aece", 10),
    ):
        found = row(compare(run, table), metric=metric)
        assert found.ours == pytest.approx(expected)
        assert found.ours_std is None


def test_averages_are_computed_per_seed():
    figures = {(n, "soc+cots"): [(0.2 + i / 10, 0.9), (0.6 - i / 10, 0.9)] for i, n in enumerate(VARIANTS)}
    found = row(compare(FakeRun(figures, seeds=(0, 1)), "plug-and-play"), metric="ece")
    # Seed 0 has accuracies .2 .3 .4 .5, seed 1 has .6 .5 .4 .3: means .35 and .45.
    assert found.ours == pytest.approx(50)
    assert found.ours_std == pytest.approx(np.std([55, 45], ddof=1))
    assert (found.dataset, found.paper) == ("average:variants", 4.37)


def test_standard_deviations():
    run = FakeRun({("dtd", "tpt"): [(0.4, 0.5), (0.5, 0.5)]}, seeds=(0, 1))
    found = row(compare(run, "std-fine-grained"), metric="accuracy_std")
    assert (found.ours, found.paper) == (pytest.approx(10 / np.sqrt(2)), 0.11)


@pytest.mark.parametrize("extra", [0.0, 0.25])
def test_a_calibrator_may_take_less_than_a_millisecond(extra):
    run = FakeRun({("dtd", "tpt"): [(0.4, 0.5, 30)], ("dtd", "tpt+cots"): [(0.4, 0.5, 30 + extra)]}, seeds=(0,))
    assert row(compare(run, "timing"), metric="extra_seconds").ours == pytest.approx(extra / 1000)


def test_seconds_and_extra_seconds():
    run = FakeRun({("dtd", "tpt"): [(0.4, 0.5, 30)], ("dtd", "tpt+cots"): [(0.4, 0.5, 36)]}, seeds=(0,))
    comparison = compare(run, "timing")
    assert row(comparison, metric="seconds").ours == pytest.approx(0.030)
    extra = row(comparison, metric="extra_seconds")
    assert (extra.ours, extra.paper, extra.method) == (pytest.approx(0.006), 0.053, "tpt+cots")
    with pytest.raises(cots.InputError, match="no cell"):
        compare(FakeRun({("dtd", "tpt+cots"): [(0.4, 0.5, 36)]}, seeds=(0,)), "timing")


def test_the_extra_time_is_that_of_one_pass():
    """Seed 1 of CoTS was timed after a resume, when tuning took 40 ms: nothing is known of its calibrator alone."""
    of = {("dtd", "tpt"): [(0.4, 0.5, 30), (0.4, 0.5, 40)], ("dtd", "tpt+cots"): [(0.4, 0.5, 36), (0.4, 0.5, 39)]}
    comparison = compare(FakeRun(of, seeds=(0, 1)), "timing")
    assert {r.metric for r in comparison.rows} == {"seconds"}
    assert comparison.notes[-1] == (
        "tpt+cots: timed in another pass than the adapter alone, so the difference is unknown; run table:timing in a "
        "new folder."
    )


def test_seconds_include_encoding_and_show_it_apart():
    of = {"tpt": 30, "tpt+cots": 36}
    run = FakeRun({("dtd", m): [(0.4, 0.5, ms, N, 0, 12.6)] for m, ms in of.items()}, seeds=(0,))
    comparison = compare(run, "timing")
    seconds = row(comparison, metric="seconds")
    assert (seconds.ours, seconds.encoding, seconds.paper) == (pytest.approx(0.0426), pytest.approx(0.0126), 0.192)
    extra = row(comparison, metric="extra_seconds")
    assert (extra.ours, extra.encoding) == (pytest.approx(0.006), None)
    assert "|dtd|tpt|0.043|0.013|0.030||0.192||-0.149||" in comparison.markdown().splitlines()
    assert next(line.split() for line in comparison.text().splitlines() if line.startswith("dataset")) == [
        "dataset", "method", "ours", "encoding", "adaptation", "std", "paper", "std", "difference",
    ]  # fmt: skip
    run.manifest = replace(run.manifest, batch_size=16)
    assert any("shares of batches" in note for note in compare(run, "timing").notes)


def test_an_unfinished_run_leaves_cells_out_and_a_finished_one_raises():
    run = FakeRun({("pets", "tpt"): [(0.9, 0.9)], ("dtd", "soc"): [(0.9, 0.9)]}, seeds=(0,))
    run.complete = False
    assert {(r.dataset, r.method) for r in compare(run, "fine-grained").rows} == {("pets", "tpt"), ("dtd", "soc")}
    run.complete = True
    with pytest.raises(cots.CotsError, match="no records"):
        compare(run, "fine-grained")


def test_a_dataset_whose_images_all_failed_is_left_out():
    run = FakeRun({("pets", "tpt"): [(0.9, 0.9, 1.0, 0, 10)], ("dtd", "tpt"): [(0.9, 0.9)]}, seeds=(0,))
    comparison = compare(run, "fine-grained")
    assert {r.dataset for r in comparison.rows} == {"dtd"}
    assert "pets: 10 images could not be read and are excluded." in comparison.notes


def test_your_own_data_is_never_taken_for_a_dataset_of_the_paper():
    for run in (
        FakeRun({("pets", "tpt"): [(0.9, 0.9)]}, seeds=(0,), average="own"),
        FakeRun({("my-photos", "tpt"): [(0.5, 0.5)]}, seeds=(0,)),
    ):
        with pytest.raises(cots.InputError, match="datasets none of the paper; 1 method"):
            compare(run, "fine-grained")
