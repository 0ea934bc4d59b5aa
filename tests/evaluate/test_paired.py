"""Paired comparisons: against a bootstrap written out, their error rate under no difference, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from msgspec.structs import replace as changed
from support.report_run import FakeRun, small_run

from cots import metrics
from cots._errors import InputError
from cots.evaluate import compare_methods, summarise, write_report
from cots.evaluate._summary import draw_seed
from cots.metrics.intervals import holm, p_value

ONE = {"pets": ("OxfordPets", 60, 5, "fine-grained", 1.0)}


def named(run: FakeRun, folder: str, **entry) -> FakeRun:
    """The run with a folder, and its datasets with other settings."""

    class Named(type(run)):
        @property
        def manifest(self):
            found = super().manifest
            return changed(found, datasets=tuple(changed(dataset, **entry) for dataset in found.datasets))

    copy = Named(**vars(run))
    copy.folder = folder
    return copy


def test_the_difference_is_that_of_the_same_draws_written_out():
    run = named(small_run(sets=ONE, seeds=(0,), broken={}), "x")
    found = compare_methods(run, ["tpt+cots", "tpt"], metrics=["ece", "nll"], resamples=50)
    first, second = (run.records("pets", method, 0) for method in ("tpt+cots", "tpt"))
    rng = np.random.default_rng(draw_seed("pets"))
    for difference, metric in zip(found.differences, (metrics.ece, metrics.nll), strict=True):
        rng = np.random.default_rng(draw_seed("pets"))
        draws = []
        for take in rng.integers(0, 60, (50, 60)):
            pair = []
            for records in (first, second):
                given = (records.confidence, records.correct)
                if metric is metrics.nll:
                    given = (records.probabilities, records.label)
                pair.append(float(metric(*(column[take] for column in given))))
            draws.append(pair[0] - pair[1])
        low, high = np.quantile(draws, [0.025, 0.975])
        shift = difference.change - np.mean(draws)
        assert (difference.low, difference.high) == pytest.approx((low + shift, high + shift), abs=1e-9)
        p = math.erfc(abs(difference.change) / np.std(draws, ddof=1) / math.sqrt(2))
        assert difference.p == difference.holm == pytest.approx(p)
        assert difference.winner == ("tpt+cots" if difference.change < 0 else "tpt")


def test_swapping_the_methods_turns_the_sign():
    run = named(small_run(), "x")
    one, other = (compare_methods(run, pair, resamples=40) for pair in (("tpt", "zeroshot"), ("zeroshot", "tpt")))
    for a, b in zip(one.differences, other.differences, strict=True):
        assert (a.change, a.p, a.winner) == pytest.approx((-b.change, b.p, b.winner))
        assert (a.low, a.high) == pytest.approx((-b.high, -b.low))
    summary = summarise(run, resamples=40)
    (ece,) = compare_methods(run, ("tpt+cots", "tpt"), resamples=40).select("ece", True)
    cell = summary.cell("average:fine-grained", "tpt+cots", "ece")
    assert (ece.change, ece.low, ece.high) == pytest.approx((cell.change, cell.change_low, cell.change_high))


def test_a_matrix_counts_every_pair_once():
    found = compare_methods(named(small_run(), "x"), metrics=["ece", "adaptive_ece"], resamples=40)
    methods = found.methods
    for metric in ("ece", "adaptive_ece"):
        for first in methods:
            for second in methods:
                if first != second:
                    one, other = found.wins(metric, first, second), found.wins(metric, second, first)
                    draws = 3 - one - other
                    assert 0 <= draws <= 3
                    assert found.wins(metric, first, second, clear=True) <= one
    assert len(list(found.select("ece", False))) == 6 * 3
    assert all(one.p is None and not one.clear(0.95) for one in found.select("adaptive_ece"))
    text = found.text()
    assert "of 3 datasets  zeroshot" in text
    assert "after Holm's correction of 18 comparisons on datasets and 6 comparisons on averages; 40 paired" in text
    assert "This metric cannot be resampled" in text
    pair = compare_methods(named(small_run(), "x"), ["tpt+cots", "tpt"], metrics=["ece"], resamples=40).text()
    assert "OxfordPets" in pair
    assert "Average of 2 fine-grained sets" in pair


def test_holm_is_holm():
    assert holm([]) == []
    assert holm([0.2]) == [0.2]
    rng = np.random.default_rng(0)
    for _ in range(50):
        p = rng.random(6).tolist()
        order = np.argsort(p)
        expected = np.maximum.accumulate([min(1, (6 - rank) * p[index]) for rank, index in enumerate(order)])
        assert np.array(holm(p))[order] == pytest.approx(expected)
    assert p_value(0.0, np.zeros(9)) == 1
    assert p_value(0.1, np.full(9, 0.1)) == 0


def test_without_a_difference_few_are_claimed():
    """Four methods that are equally good on 200 images: any claim of six corrected comparisons is false."""
    rng, claims, alone, trials = np.random.default_rng(3), 0, 0, 200
    weights = np.stack([np.bincount(row, minlength=200) for row in rng.integers(0, 200, (200, 200))])
    for _ in range(trials):
        confidence = rng.uniform(0.4, 1, (4, 200))
        correct = rng.random((4, 200)) < confidence
        values, draws = [], []
        for c, a in zip(confidence, correct, strict=True):
            values.append(float(metrics.ece(c, a)))
            draws.append(metrics.ece(c, a, weights=weights).value)
        p = []
        for i in range(4):
            p += [p_value(values[i] - values[j], draws[i] - draws[j]) for j in range(i)]
        claims += min(holm(p)) < 0.05
        alone += p[0] < 0.05
    assert claims / trials < 0.09
    assert alone / trials < 0.09


def test_a_difference_that_exists_is_claimed():
    run = named(small_run(sets={"pets": ("OxfordPets", 400, 5, None, 1.0)}, broken={}), "x")
    (found,) = compare_methods(run, ["tpt+cots", "tpt"], metrics=["nll"], resamples=60).differences
    assert found.clear(0.95)
    assert found.low < found.high < 0


def test_a_method_is_called_better_where_that_is_more_than_chance():
    """On the 400 images the difference in NLL is clear; on 40 it is not."""
    sets = {"pets": ("OxfordPets", 400, 5, None, 1.0), "cars": ("StanfordCars", 40, 5, None, 1.0)}
    run = named(small_run(sets=sets, seeds=(0,), broken={}), "x")
    for methods in (["tpt+cots", "tpt"], ["tpt", "tpt+cots"]):
        found = compare_methods(run, methods, metrics=["nll", "accuracy"], resamples=60)
        judged = set()
        for metric, text in zip(found.metrics, found.text().split("\n\n"), strict=True):
            lines = text.splitlines()
            for one in found.select(metric.name):
                sure = one.holm < 0.05 and one.change != 0
                best = max(one.values) if metric.name == "accuracy" else min(one.values)
                word = f"{methods[one.values.index(best)]} better"
                line = next(line for line in lines if line.startswith(one.column.title))
                assert line.endswith(" better") == sure
                assert line.endswith(word) == sure, line
                judged.add(sure)
        assert judged == {True, False}


def test_two_runs_are_compared_if_they_agree():
    run = named(small_run(seeds=(0,)), "runs/a")
    same = compare_methods(run, ["tpt"], other=named(small_run(seeds=(0,)), "runs/b"), resamples=20)
    assert same.methods == ("tpt in runs/a", "tpt in runs/b")
    assert all(one.change == 0 and one.winner == "" and one.p == 1 for one in same.differences)
    cross = compare_methods(run, ["tpt+cots", "tpt"], other=named(small_run(seeds=(0,)), "runs/b"), resamples=20)
    within = compare_methods(run, ["tpt+cots", "tpt"], resamples=20)
    assert [one.change for one in cross.differences] == [one.change for one in within.differences]
    prompts = named(small_run(seeds=(0,)), "runs/b", template="{}.")
    assert (
        "note: prompt of pets: a photo of a {}., {}."
        in compare_methods(run, ["tpt"], other=prompts, resamples=9).text()
    )


@pytest.mark.parametrize(
    ("other", "methods", "message"),
    [
        ({"seeds": (0, 1)}, ["tpt"], "cannot be compared, because they differ in seeds 0, 0, 1"),
        ({"entry": {"views": 8}}, ["tpt"], r"differ in views of pets \d+, 8. Run one of them again"),
        ({"entry": {"split_hash": "another one"}}, ["tpt"], "differ in samples, labels or class names of pets"),
        ({"entry": {"corrupt": "fog:3"}}, ["tpt"], "differ in corruption of pets None, fog:3"),
        ({"sets": {"cars": ONE["pets"]}}, ["tpt"], "differ in datasets pets, dtd, mine, cars"),
        ({}, [], "compared by one method of both, or by one of each"),
        ({}, ["tpt", "tptt"], "Did you mean 'tpt'"),
    ],
)
def test_other_runs_are_refused(other, methods, message):
    other = {"seeds": (0,), **other}
    second = named(small_run(**{k: v for k, v in other.items() if k != "entry"}), "b", **other.get("entry", {}))
    with pytest.raises(InputError, match=message):
        compare_methods(named(small_run(seeds=(0,)), "a"), methods, other=second, resamples=9)


def test_bad_input():
    run = named(small_run(seeds=(0,), absent=(("pets", "tpt", 0),)), "a")
    for methods, message in (
        (["tpt"], r"needs two different methods; a also has zeroshot, tpt\+cots, ctpt\+cots\."),
        (["tpt", "tpt(steps=1)"], "two different methods"),
        (["zeroshot", "tpt+cotz"], "Did you mean 'cots'"),
        (["zeroshot", "tpt+ecots"], r"Unknown method in the run: 'tpt\+ecots'"),
    ):
        with pytest.raises(InputError, match=message):
            compare_methods(run, methods, resamples=9)


def test_an_error_names_few_of_many_methods():
    run = named(small_run(methods=tuple(f"tpt+cots(k={k})" for k in range(2, 14)), seeds=(0,)), "a")
    with pytest.raises(InputError, match=r"a also has tpt\+cots\(k=3\), .*\(k=10\) and 3 more\.") as error:
        compare_methods(run, ["tpt+cots(k=2)"], resamples=9)
    assert "k=2)" not in str(error.value)
    with pytest.raises(InputError, match=r"two different methods; b has only tpt\."):
        compare_methods(named(small_run(methods=("tpt",), seeds=(0,)), "b"), resamples=9)


def test_what_is_not_finished_is_left_out():
    absent = (("pets", "tpt", 0), ("dtd", "tpt", 1))
    found = compare_methods(named(small_run(absent=absent), "a"), ["tpt+cots(steps=50)", "tpt"], resamples=9)
    assert {one.column.name for one in found.differences} == {"mine"}
    assert "note: pets is not finished for tpt, so pairs with other seeds are left out" in found.text()
    nothing = tuple((dataset, "tpt", 0) for dataset in ("pets", "dtd", "mine"))
    with pytest.raises(InputError, match=r"no finished records of two methods with the same seeds\. Resume its run"):
        compare_methods(named(small_run(absent=nothing), "a"), ["tpt+cots", "tpt"], resamples=9)


def test_a_report_against_a_baseline(tmp_path):
    run = small_run(seeds=(0,), broken={})
    plain = summarise(run, resamples=60)
    report = write_report(run, tmp_path, ("md",), figures=(), baseline="tpt", resamples=60)
    summary = report.summary
    for column in summary.columns:
        for method in run.methods:
            cell = summary.cell(column.name, method, "nll")
            before = plain.cell(column.name, method, "nll")
            assert (cell.mean, cell.low, cell.high) == (before.mean, before.low, before.high)
            assert cell.base == (None if method == "tpt" else "tpt")
        ours = {m: summary.cell(column.name, m, "nll") for m in run.methods if m != "tpt"}
        compared = [compare_methods(named(run, "x"), [m, "tpt"], metrics=["nll"], resamples=60) for m in ours]
        p = [next(d.p for d in one.differences if d.column == column) for one in compared]
        assert [cell.holm for cell in ours.values()] == pytest.approx(holm(p))
        assert [cell.clear for cell in ours.values()] == [value < 0.05 for value in holm(p)]
    text = (tmp_path / "report.md").read_text()
    assert (
        "An arrow shows a change against tpt: filled if p is below 5% after Holm's correction for all methods" in text
    )
    with pytest.raises(InputError, match=r"Unknown method in the run: 'otpt'"):
        summarise(run, baseline="otpt")
