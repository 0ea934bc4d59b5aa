"""Metrics describe themselves: built-in ones are found, others register, and reports are generated from both."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.report_run import FakeRun, small_run

from cots._errors import InputError
from cots._registry import load_plugin
from cots.evaluate import summarise, write_report
from cots.metrics import METRICS, Metric, accuracy, metric


@pytest.fixture
def error_rate():
    @metric("error_rate", title="Error rate", short="errors", better="lower", digits=1, place=15)
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
    for name in ("report.html", "report.md", "tables.tex"):
        assert "Error rate" in (tmp_path / name).read_text(), name
    assert ",error_rate," in (tmp_path / "report.csv").read_text()
    page = (tmp_path / "report.md").read_text()
    assert page.index("## Accuracy") < page.index("## Error rate") < page.index("## Expected")
    assert "Error rate in %, lower is better: the share of wrong answers." in page


def test_a_metric_of_probabilities_without_weights_has_no_interval():
    @metric("sharpness", title="Sharpness", better="higher")
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

    def load():
        return metric("spread", better="lower")(spread)

    point = SimpleNamespace(name="spread", value="other:spread", dist=None, load=load)
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
        "accuracy", "adaptive_ece", "aurc", "brier_calibration", "brier_multiclass", "brier_refinement",
        "brier_top_label", "classwise_ece", "confidence_gap", "ece", "mce", "nll", "nll_calibration", "nll_refinement",
        "smooth_ece",
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
    def mine(correct):
        return 0.0

    for better, order in (("higher", [0.1, 0.5]), ("lower", [0.5, 0.1]), ("zero", [-0.5, 0.1])):
        worse, best = (Metric(name="x", function=mine, better=better).goodness(value) for value in order)
        assert worse < best
    for wrong, message in ((None, r"to zero\)\.$"), (-1, "not -1"), ("less", "not 'less'")):
        with pytest.raises(InputError, match=r"Metric 'mine' needs better=.*" + message):
            metric("mine", better=wrong)(mine)
    assert "mine" not in METRICS


def test_parameters_that_are_no_inputs_are_refused():
    for wrong in (lambda probs: 0, lambda correct, factor: 0, lambda bins: 0):
        with pytest.raises(InputError, match=r"Name its inputs confidence, correct, probabilities, labels"):
            metric("mine", better="lower")(wrong)


RUN = {"sets": {"pets": ("OxfordPets", 40, 4, None, 1.2)}, "methods": ("tpt", "tpt+cots"), "seeds": (0,)}


def figures_of(function, **described):
    """The figures of a metric on a run: mean, interval and interval of the change."""
    metric("mine", better="lower", **described)(function)
    try:
        summary = summarise(FakeRun(**RUN), resamples=50)
        cell, changed = summary.cell("pets", "tpt", "mine"), summary.cell("pets", "tpt+cots", "mine")
        return cell.mean, cell.low, cell.high, changed.change_low
    finally:
        METRICS.unregister("mine")


def weighted_wrong(correct, *, weights=None):
    return np.average(1.0 - np.asarray(correct), weights=weights) if np.ndim(weights) < 2 else weights @ (
        1.0 - np.asarray(correct)) / weights.sum(1)  # fmt: skip


SAME = {  # one metric, the error rate, in every form that a metric may have
    "array": lambda correct: 1.0 - np.asarray(correct),
    "list": lambda correct: [float(not one) for one in correct],
    "booleans": lambda correct: ~np.asarray(correct, dtype=bool),
    "weights": weighted_wrong,
    "score": lambda correct, *, weights=None: accuracy(~np.asarray(correct, dtype=bool), weights=weights),
    "table": lambda probabilities, labels: np.argmax(probabilities, 1) != labels,
    "streamed": lambda probabilities, labels, *, weights=None: accuracy(np.argmax(probabilities, 1) != labels),
    "mixed": lambda confidence, labels, probabilities: np.argmax(probabilities, 1) != labels,
}


@pytest.mark.parametrize("form", SAME)
def test_every_form_of_a_metric_has_the_same_figures(form):
    found = figures_of(SAME[form])
    assert None not in found
    assert found == pytest.approx(figures_of(SAME["array"]))


@pytest.mark.parametrize(
    "function",
    [
        lambda correct: float(np.mean(np.asarray(correct) == 0)),
        lambda correct: np.mean(np.asarray(correct) == 0),
        lambda probabilities, labels, *, weights=None: float((np.argmax(probabilities, 1) != labels).mean()),
        lambda labels, confidence, correct: 1 - sum(correct) / len(labels),
    ],
)
def test_a_number_has_no_interval(function):
    mean, low, high, change = figures_of(function)
    assert mean == pytest.approx(figures_of(SAME["array"])[0])
    assert (low, high, change) == (None, None, None)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda correct: "good", "returned 'good' for 40 samples; return a number"),
        (lambda correct: None, "returned None for 40 samples"),
        (lambda correct: np.zeros(3), r"returned ndarray of shape \(3,\) for 40 samples"),
        (lambda correct: np.zeros((40, 2)), r"returned ndarray of shape \(40, 2\)"),
        (
            lambda correct, *, weights=None: np.average(correct, weights=weights),
            r"fails for weights of shape \(\d+, 40\): TypeError: .*\. Return one value per row, or omit `weights`",
        ),
        (
            lambda correct, *, weights=None: 0.5,
            r"returned 0.5 for weights of shape \(\d+, 40\); return one value per row",
        ),
    ],
)
def test_what_else_a_metric_returns_is_an_error(function, message):
    with pytest.raises(InputError, match=r"Metric 'mine' " + message):
        figures_of(function)


def test_the_example_of_the_documentation_is_a_metric_of_a_report(tmp_path):
    page = (Path(__file__).parents[2] / "docs/design.md").read_text()
    section = page.partition("## Add a metric")[2]
    (tmp_path / "mine.py").write_text(re.search(r"```python\n(.*?)```", section, re.DOTALL)[1])
    load_plugin(tmp_path / "mine.py")
    try:
        report = write_report(FakeRun(**RUN), tmp_path / "report", figures=(), resamples=20)
        cell, right = (report.summary.cell("pets", "tpt", name) for name in ("error", "accuracy"))
        assert (cell.mean, cell.low, cell.high) == pytest.approx((1 - right.mean, 1 - right.high, 1 - right.low))
        assert cell.better is report.summary.cell("pets", "tpt", "accuracy").better
        assert (
            "Error rate in %, lower is better: the share of wrong answers."
            in (tmp_path / "report/report.md").read_text()
        )
    finally:
        METRICS.unregister("error")
