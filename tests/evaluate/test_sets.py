"""Prediction sets in reports: the coverage counted by hand, of sets fitted on half and of a policy's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.report_run import HASH, FakeRun, small_run

from cots import conformal
from cots._errors import InputError
from cots.evaluate import write_report
from cots.evaluate._sets import PER_CLASS, set_rows
from cots.metrics import binomial_interval


def large(**changes) -> FakeRun:
    return FakeRun(sets={"pets": ("OxfordPets", 400, 5, None, 1.0)}, methods=("tpt", "tpt+cots"), seeds=(0,), **changes)


def policy(run: FakeRun, method: str = "tpt") -> conformal.Policy:
    records = run.records("pets", method, 0)
    return conformal.Policy(
        model="mini", weights_hash=HASH, classes=run.dataset("pets").classes, method=method,
        template="a photo of a {}.", views=64, n=400, accuracy=0.9, mean_confidence=0.9, temperature=1.5,
        sets=conformal.fit(records.probabilities.astype(float), records.label, 0.8),
    )  # fmt: skip


def test_half_of_the_samples_judge_the_sets_of_the_other_half():
    run = large()
    rows = list(set_rows(run))
    assert [(row.dataset, row.method, row.target) for row in rows] == [
        ("OxfordPets", "tpt", 0.9),
        ("OxfordPets", "tpt+cots", 0.9),
    ]
    for row in rows:
        records = run.records("pets", row.method, 0)
        p = records.probabilities.astype(float)
        p /= p.sum(1, keepdims=True)
        order = np.random.default_rng(0).permutation(400)
        scores = sorted(1 - p[i, records.label[i]] for i in order[:200])
        limit = scores[int(np.ceil(201 * 0.9)) - 1]
        inside = {i: [k for k in range(5) if 1 - p[i, k] <= limit] for i in order[200:]}
        hits = {i: records.label[i] in classes for i, classes in inside.items()}
        assert row.coverage.coverage == pytest.approx(np.mean(list(hits.values())))
        assert row.coverage.interval == pytest.approx(binomial_interval(sum(hits.values()), 200))
        assert row.coverage.mean_size == pytest.approx(np.mean([len(classes) for classes in inside.values()]))
        by_class = [[hit for i, hit in hits.items() if records.label[i] == k] for k in range(5)]
        assert row.lowest == pytest.approx(min(np.mean(one) for one in by_class if len(one) >= PER_CLASS))
    assert [row.method for row in set_rows(large(absent=(("pets", "tpt", 0),)))] == ["tpt+cots"]
    assert [row.dataset for row in set_rows(small_run())] == ["OxfordPets"] * 4, "30 and 46 samples are too few"
    enough = FakeRun(sets={f"{n}": (f"{n}", n, 5, None, 1.0) for n in (49, 50)}, methods=("tpt",), seeds=(0,))
    assert [row.dataset for row in set_rows(enough)] == ["50"]


def test_a_policy_is_judged_on_its_own_classes_and_method(tmp_path, undrawn):
    run = large()
    (row,) = set_rows(run, policy(run))
    assert (row.method, row.target, row.coverage.n) == ("tpt", 0.8, 400)
    report = write_report(run, tmp_path, ("html", "md"), figures=(), policy=policy(run), resamples=5)
    for file in report.files:
        text = file.read_text()
        assert row.cells[2] in text
        assert "The policy's sets; target coverage 80%" in text.replace("&#39;", "'")
    with pytest.raises(InputError, match="No dataset of the run has the classes, method and weights of the policy"):
        write_report(run, tmp_path, ("md",), figures=(), policy=replace(policy(run), weights_hash="0"), resamples=5)


def test_without_a_policy_the_report_has_the_table_too(tmp_path):
    write_report(large(), tmp_path, ("md",), figures=(), resamples=5)
    text = (tmp_path / "report.md").read_text()
    assert (
        "## Prediction sets\n\n| dataset | method | coverage % | classes per set | lowest class % | samples |" in text
    )
    assert "| OxfordPets | tpt | " in text
    assert "LAC sets fitted on a random half of the samples, evaluated on the other; target coverage 90%" in text
