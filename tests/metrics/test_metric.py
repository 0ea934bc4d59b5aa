"""Metrics describe themselves: built-in ones are found, others register, and reports are generated from both."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from support.report_run import FakeRun, small_run

from cots._errors import InputError
from cots.evaluate import summarise, write_report
from cots.metrics import METRICS, Metric, accuracy, metric


@pytest.fixture
def error_rate():
    @metric("error_rate", title="Error rate", short="errors", digits=1, place=15)
    def error_rate(correct, *, weights=None):
        """Error rate: the share of wrong answers."""
        return 1 - accuracy(correct, weights=weights).value

    yield METRICS.info("error_rate")
    METRICS.unregister("error_rate")


def test_a_registered_metric_is_in_the_report(error_rate, tmp_path):
    run = FakeRun(sets={"pets": ("OxfordPets", 40, 4, None, 1.2)}, methods=("tpt", "tpt+cots"), seeds=(0,))
    report = write_report(run, tmp_path, figures=(), resamples=20)
    cell, right = (report.summary.cell("pets", "tpt", name) for name in ("error_rate", "accuracy"))
    assert cell.mean == pytest.approx(1 - right.mean)
    assert (cell.low, cell.high) == pytest.approx((1 - right.high, 1 - right.low))
    for name in ("report.html", "report.md", "tables.tex", "report.csv"):
        text = (tmp_path / name).read_text()
        assert "Error rate" in text or "error_rate" in text, name
    page = (tmp_path / "report.md").read_text()
    assert page.index("## Accuracy") < page.index("## Error rate") < page.index("## Expected")
    assert "Error rate in %, lower is better: the share of wrong answers." in page


def test_a_metric_of_probabilities_without_weights_has_no_interval():
    @metric("sharpness", title="Sharpness", better=1)
    def sharpness(probabilities):
        """Sharpness: the mean largest probability."""
        return float(np.max(probabilities, axis=1).mean(dtype=float))

    try:
        cell = summarise(small_run(seeds=(0,)), resamples=10).cell("pets", "tpt", "sharpness")
        assert cell.low is None
        assert cell.mean == pytest.approx(small_run().records("pets", "tpt", 0).confidence.mean(dtype=float))
    finally:
        METRICS.unregister("sharpness")


def test_a_metric_of_another_package_is_found_by_its_entry_point(monkeypatch):
    def spread(confidence):
        """The standard deviation of the confidence."""
        return float(np.std(confidence))

    point = SimpleNamespace(name="spread", value="other:spread", dist=None, load=lambda: spread)
    monkeypatch.setattr("cots._registry._entry_points", lambda group, path: [point] if group == "cots.metrics" else [])
    try:
        assert "spread" in [m.name for m in METRICS.infos()]
        info = METRICS.info("spread")
        assert (info.title, info.inputs, info.resampled) == ("spread", ("confidence",), False)
        assert info.explained == "The standard deviation of the confidence"
    finally:
        METRICS.unregister("spread")


def test_metrics_are_in_the_order_of_tables():
    names = [m.name for m in METRICS.infos()]
    assert names[:2] == ["accuracy", "ece"]
    assert sorted(names) == [
        "accuracy", "adaptive_ece", "aurc", "brier_multiclass", "brier_top_label", "classwise_ece", "confidence_gap",
        "ece", "mce", "nll",
    ]  # fmt: skip
    assert all(m.title and m.explained and m.place < 1000 for m in METRICS.infos())


def test_unknown_names_and_fields_are_refused():
    with pytest.raises(InputError, match=r"Unknown metric 'eec'. Did you mean 'ece'"):
        METRICS.info("eec")
    with pytest.raises(InputError, match=r"Unknown description of metric 'mine': 'titel'. Did you mean 'title'"):
        metric("mine", titel="x")
    with pytest.raises(InputError, match="built in"):
        metric("ece", title="x")(lambda correct: 0.0)


def test_figures_are_shown_in_their_unit():
    gap, loss = METRICS.info("confidence_gap"), METRICS.info("nll")
    assert (METRICS.info("accuracy").show(0.63416), loss.show(1.23456)) == ("63.42", "1.235")
    assert (gap.show(-0.0123), gap.show(0.0123), gap.show(-0.00001)) == ("−1.23", "+1.23", "0.00")
    assert METRICS.info("ece").show(float("nan")) == "–"


def test_intervals_end_where_the_metric_ends():
    assert METRICS.info("ece").clip((-0.1, 0.2)) == (0.0, 0.2)
    assert METRICS.info("accuracy").clip((0.9, 1.1)) == (0.9, 1.0)
    assert METRICS.info("confidence_gap").clip((-0.1, 0.2)) == (-0.1, 0.2)
    assert METRICS.info("nll").clip((-0.1, 7.0)) == (0.0, 7.0)


def test_better_is_higher_lower_or_nearest_to_zero():
    for better, order in ((1, [0.1, 0.5]), (-1, [0.5, 0.1]), (0, [-0.5, 0.1])):
        worse, best = (Metric(name="x", function=abs, better=better).goodness(value) for value in order)
        assert worse < best
