"""One run whose confidences lie on bin edges: everything that reports an ECE reports the same one."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
from support.models import tiny
from support.paper_run import write_pets
from support.serving import client
from typer.testing import CliRunner

import cots
from cots import bench, demo, metrics
from cots.cli import app
from cots.evaluate import check, compare_methods, score, score_columns, summarise, write_report
from cots.paper import compare
from cots.paper._tables import Cell, Table

METHOD = "zeroshot+zero"  # vote shares of 20 views: multiples of 0.05, which float32 rounds to either side of an edge
VIEWS = 67


@pytest.fixture(scope="module", autouse=True)
def varied_features():
    """Colours in four corners as features: those of a random tower are so alike that all views vote for one class."""

    def encode(self, pixels, batch_size=None):
        corners = torch.nn.functional.adaptive_avg_pool2d(pixels.flatten(0, -4), 2).flatten(1)
        return torch.nn.functional.normalize(corners, dim=-1).unflatten(0, pixels.shape[:-3])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cots.Backbone, "encode_images", encode)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> bench.Run:
    root = tmp_path_factory.mktemp("edges")
    data = write_pets(root / "data", images=45)
    options = {"model": tiny("vit"), "data": data, "datasets": "pets", "methods": METHOD, "views": VIEWS}
    return bench.run(bench.RunConfig(out=root / "runs" / "edges", augmix=False, **options))


def loop_ece(confidence: np.ndarray, correct: np.ndarray, kind: type) -> float:
    """In percent, by a loop over bins whose edges are of `kind`."""
    total = 0.0
    for m in range(20):
        inside = (confidence > kind(m / 20)) & (confidence <= kind((m + 1) / 20))
        total += abs(sum(float(c) - a for c, a in zip(confidence[inside], correct[inside], strict=True)))
    return 100 * total / len(confidence)


@pytest.fixture(scope="module")
def expected(run) -> float:
    records = run.records("pets", METHOD, 0)
    on_edges = 20 * records.confidence
    assert (np.abs(on_edges - on_edges.round()) < 1e-5).all()
    found = loop_ece(records.confidence.astype(np.float64), records.correct, np.float64)
    assert abs(loop_ece(records.confidence, records.correct, np.float32) - found) > 0.1, "the test could not fail"
    return found


@pytest.fixture(scope="module")
def photos(run) -> demo.PhotoSet:
    """The photos of the run as view features."""
    backbone = tiny("vit")
    dataset = cots.data.open_dataset("pets", run.folder.parent.parent / "data")
    settings = cots.ViewSettings.from_preprocess(backbone.preprocess, n=VIEWS, augmix=False)
    views = [cots.make_views(s.source, settings, cots.sample_seed(0, "pets", s.id)) for s in dataset.samples]
    labels = np.array([sample.label for sample in dataset.samples])
    features = backbone.encode_images(torch.stack(views))
    return demo.PhotoSet(name="pets", classes=tuple(dataset.classes), labels=labels, features=features)


@pytest.mark.parametrize(
    "function",
    [metrics.ece, metrics.mce, metrics.classwise_ece, check, compare_methods, score, score_columns, summarise,
     write_report],
)  # fmt: skip
def test_all_have_the_same_bins(function):
    assert inspect.signature(function).parameters["bins"].default == 20


def test_report_and_server(run, expected):
    assert 100 * score(run.records("pets", METHOD, 0)).values["ece"] == pytest.approx(expected, rel=1e-12)
    assert 100 * summarise(run, resamples=2).cell("pets", METHOD, "ece").mean == pytest.approx(expected, rel=1e-12)
    write_report(run, run.folder / "report", ("html",), figures=(), resamples=2)
    page = client(runs=run.folder.parent).get("/reports/edges").text
    assert page.count(f"<b>{expected:.2f}</b>") == 1
    assert f"{METHOD}: expected calibration error {expected:.1f}%" in page


def test_paper_comparison(run, expected):
    cell = Cell(metric="ece", method=METHOD, dataset="pets", value=0.0, backbone="x", prompt="a photo of a {}.")
    table = Table(id="edges", title="", label="", decimals=2, rows=(cell,))
    (row,) = compare(run, table).rows
    assert row.ours == pytest.approx(expected, rel=1e-12)


def test_demo(photos, expected):
    result = demo.run_demo(photos=[photos], backbone=tiny("vit"), methods=[METHOD])
    assert result.row(METHOD, "pets")["ece"] == pytest.approx(expected, abs=1e-4)


def test_pooled_tables(run, expected, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools" / "mini"))
    (row,) = [line for line in importlib.import_module("pooled").rows(run, resamples=2) if METHOD in line]
    assert float(row.split("|")[4].split()[0]) == pytest.approx(expected, abs=5.1e-4)


@pytest.fixture(scope="module")
def adapted(photos) -> cots.Adapted:
    return cots.adapt("zeroshot", photos.features, cots.Task(tiny("vit"), photos.classes))


def test_calibrate_request(photos, adapted, expected):
    logits = {"adapted": adapted.logits.tolist(), "zero_shot": adapted.zero_shot_logits.tolist()}
    answer = client().post("/v1/calibrate", json={**logits, "labels": photos.labels.tolist(), "method": "zero"})
    assert 100 * answer.json()["metrics"]["after"]["ece"] == pytest.approx(expected, rel=1e-5)


def test_calibrate_command(photos, adapted, expected, tmp_path):
    np.savez(tmp_path / "in.npz", adapted=adapted.logits, zero_shot=adapted.zero_shot_logits, labels=photos.labels)
    words = ["calibrate", str(tmp_path / "in.npz"), "-o", str(tmp_path / "out.npz"), "--method", "zero"]
    lines = CliRunner().invoke(app, words, catch_exceptions=False).stdout.splitlines()
    (after,) = [line.split() for line in lines if line.startswith("after ")]
    assert float(after[2]) == pytest.approx(expected, abs=0.0051)
