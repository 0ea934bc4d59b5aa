"""One run, one ECE: every consumer of records shows the same figure, also for confidences on the edges of bins."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support.report_run import FakeRecords, FakeRun
from typer.testing import CliRunner

import cots
from cots import cli, metrics, paper
from cots.demo import Outcome
from cots.evaluate import score_columns, summarise
from cots.serve import _runs as served

VIEWS = 67  # of which ZERO keeps 20, so that confidences are vote shares k/20
N, CLASSES = 300, 5


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory) -> tuple[dict[str, np.ndarray], str]:
    """What `cots calibrate --method zero` writes and prints."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(N, VIEWS, CLASSES)).astype(np.float32)
    logits[..., 0] += rng.normal(0.6, 1.0, (N, 1))
    voted = cots.calibrate(logits, logits, method="zero")
    # Neighbouring shares err in opposite directions, so that it matters which bin a share on an edge falls into.
    lean = np.where(np.round(20 * voted.confidence) % 2 == 0, 0.25, -0.25)
    right = rng.random(N) < voted.confidence + lean
    labels = np.where(right, voted.prediction, (voted.prediction + 1) % CLASSES)
    folder = tmp_path_factory.mktemp("calibrate")
    np.savez(folder / "in.npz", adapted=logits, zero_shot=logits, labels=labels)
    command = ["calibrate", str(folder / "in.npz"), "--method", "zero", "--out", str(folder / "out.npz")]
    result = CliRunner().invoke(cli.app, command)
    assert result.exit_code == 0, result.output
    return dict(np.load(folder / "out.npz")), result.output


@pytest.fixture(scope="module")
def run(calibrated):
    arrays, _ = calibrated

    class Recorded(FakeRun):
        def records(self, dataset: str, method: str, seed: int) -> FakeRecords:
            columns = {name: arrays[name] for name in ("prediction", "confidence", "tau", "probabilities")}
            ids, label = tuple(map(str, range(N))), arrays["labels"]
            return FakeRecords(ids=ids, label=label, milliseconds=np.ones(N, np.float32), **columns)

    return Recorded(sets={"pets": ("OxfordPets", N, CLASSES, "fine-grained", 1.0)}, methods=("tpt",), seeds=(0,))


@pytest.fixture(scope="module")
def expected(calibrated) -> float:
    """By the definition: the float64 of the stored value against the edges k/20."""
    arrays, _ = calibrated
    confidence, correct = arrays["confidence"].astype(float), arrays["prediction"] == arrays["labels"]
    edges = np.arange(21) / 20
    inside = [(confidence > low) & (confidence <= high) for low, high in pairwise(edges)]
    return 100 * sum(abs(confidence[rows].sum() - correct[rows].sum()) for rows in inside) / N


def test_confidences_lie_on_edges_and_the_edge_rule_matters(calibrated, expected):
    arrays, _ = calibrated
    twentieths = 20 * arrays["confidence"].astype(float)
    np.testing.assert_allclose(twentieths, np.round(twentieths), atol=1e-5)
    rounded = metrics.ece(np.round(twentieths) / 20, arrays["prediction"] == arrays["labels"])
    assert abs(100 * float(rounded) - expected) > 0.05


def test_report(run, expected):
    assert 100 * summarise(run, resamples=2).cell("pets", "tpt", "ece").mean == pytest.approx(expected, abs=1e-12)


def test_paper(run, expected):
    rows = paper.compare(run, "fine-grained").rows
    (row,) = [row for row in rows if (row.metric, row.method, row.dataset) == ("ece", "tpt", "pets")]
    assert row.ours == pytest.approx(expected, abs=1e-12)


def test_server(run, expected, monkeypatch, tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    run.folder = tmp_path / "run"
    monkeypatch.setattr(served.Run, "open", lambda folder: run)
    rows = served.RunFolders(tmp_path).detail("run")["rows"]
    assert {row["dataset"] for row in rows} == {"pets", "all"}
    assert [row["ece"] for row in rows] == pytest.approx([expected, expected], abs=1e-12)


def test_demo(run, expected):
    records = run.records("pets", "tpt", 0)
    loss = metrics.nll(records.probabilities, records.label).per_sample
    scored = score_columns(records.confidence, records.correct, {"nll": loss})
    row = Outcome(dataset="pets", method="tpt", prediction=records.prediction, scored=scored).row(seed=0, resamples=2)
    assert row["ece"] == pytest.approx(expected, abs=5.1e-5)  # printed with four decimals


def test_calibrate(calibrated, expected):
    _, printed = calibrated
    after = next(line.split() for line in printed.splitlines() if line.split()[:1] == ["after"])
    assert after[2] == f"{expected:.2f}"
