"""Runs through the API: figures against a naive computation and the report, ids, damaged folders."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from support.models import tiny
from support.serving import client

from cots import bench
from cots.evaluate import summarise

METHODS = ("zeroshot", "tpt", "tpt+cots", "tpt+zero")  # zero: vote shares, which lie on the edges of bins


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    root = tmp_path_factory.mktemp("served")
    rng = np.random.default_rng(0)
    for dataset in ("first", "second"):
        for name in ("cat", "dog", "car"):
            folder = root / dataset / name
            folder.mkdir(parents=True)
            for i in range(5):
                Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    (root / "first" / "cat" / "broken.png").write_bytes(b"no image")
    config = bench.RunConfig(
        model=tiny("vit"), datasets=(root / "first", root / "second"), methods=METHODS, seeds=(0, 1),
        out=root / "runs" / "finished", views=17, augmix=False,
    )  # fmt: skip
    bench.run(config)
    (root / "runs" / "notes.txt").write_text("not a run")
    (root / "runs" / "empty").mkdir()
    (root / "runs" / "odd name").mkdir()
    (root / "runs" / "odd name" / "manifest.json").write_text("{}")
    (root / "runs" / "damaged").mkdir()
    (root / "runs" / "damaged" / "manifest.json").write_text('{"schema": 1}')
    (root / "secret.json").write_text('{"secret": true}')
    return root


@pytest.fixture(scope="module")
def web(shelf):
    return client(runs=shelf / "runs")


def naive(run: bench.Run, datasets, method: str, seed: int) -> dict[str, float]:
    """The figures by loops over samples."""
    rows = []
    for dataset in datasets:
        records = run.records(dataset, method, seed)
        given = zip(
            records.probabilities.astype(float), records.confidence, records.correct, records.label, strict=True
        )
        rows += [(float(c), bool(a), -np.log(max(p[k], 2.0**-149))) for p, c, a, k in given]
    n = len(rows)
    ece = 0.0
    for m in range(20):
        inside = [(c, a) for c, a, _ in rows if m / 20 < c <= (m + 1) / 20]
        ece += abs(sum(c for c, _ in inside) - sum(a for _, a in inside)) / n
    return {
        "n": n,
        "accuracy": 100 * sum(a for _, a, _ in rows) / n,
        "ece": 100 * ece,
        "nll": sum(loss for _, _, loss in rows) / n,
        "brier": 100 * sum((c - a) ** 2 for c, a, _ in rows) / n,
        "mean_confidence": 100 * sum(c for c, _, _ in rows) / n,
    }


def test_the_list_has_the_runs_and_nothing_else(web, shelf):
    (only,) = (run for run in web.get("/v1/runs").json()["runs"] if run["damaged"] is None)
    assert only["id"] == "finished"
    assert only["methods"] == list(METHODS)
    assert only["seeds"] == [0, 1]
    assert only["complete"] is True
    assert only["weights_hash"] == tiny("vit").weights_hash
    assert client().get("/v1/runs").json() == {"runs": []}
    assert client(runs=shelf / "nowhere").get("/v1/runs").json() == {"runs": []}


def test_figures_are_those_of_the_records(web, shelf):
    run = bench.Run.open(shelf / "runs" / "finished")
    body = web.get("/v1/runs/finished").json()
    places = [(row["dataset"], row["method"]) for row in body["rows"]]
    assert places == [(d, m) for d in (*run.datasets, "all") for m in METHODS]
    for row in body["rows"]:
        datasets = run.datasets if row["dataset"] == "all" else [row["dataset"]]
        by_seed = [naive(run, datasets, row["method"], seed) for seed in (0, 1)]
        assert row["n"] == by_seed[0]["n"]
        assert row["failed"] == (0 if row["dataset"] == run.datasets[1] else 1)
        for name in ("accuracy", "ece", "nll", "brier", "mean_confidence"):
            assert row[name] == pytest.approx(np.mean([figures[name] for figures in by_seed]), rel=1e-5), name
        for name in ("accuracy", "ece"):
            spread = np.std([figures[name] for figures in by_seed], ddof=1)
            assert row[f"{name}_std"] == pytest.approx(spread, rel=1e-4, abs=1e-9)


def test_the_report_has_the_same_figures(web, shelf):
    run = bench.Run.open(shelf / "runs" / "finished")
    summary = summarise(run, resamples=2)
    names = {"accuracy": "accuracy", "ece": "ece", "brier": "brier_top_label"}
    for row in web.get("/v1/runs/finished").json()["rows"]:
        for name, metric in names.items() if row["dataset"] != "all" else ():
            cell = summary.cell(row["dataset"], row["method"], metric)
            assert row[name] == pytest.approx(100 * cell.mean, rel=1e-12)
    on_edges = 20 * run.records(run.datasets[0], "tpt+zero", 0).confidence
    assert (np.abs(on_edges - on_edges.round()) < 1e-5).any()


def test_diagrams_pool_the_seeds(web, shelf):
    run = bench.Run.open(shelf / "runs" / "finished")
    body = web.get("/v1/runs/finished").json()
    dataset, method = run.datasets[0], "tpt+cots"
    records = [run.records(dataset, method, seed) for seed in (0, 1)]
    confidence = np.concatenate([part.confidence for part in records])
    correct = np.concatenate([part.correct for part in records])
    bins = body["reliability"][dataset][method]
    assert len(bins["edges"]) == 21
    assert sum(bins["count"]) == len(confidence)
    for low, high, count, mean, share in zip(
        bins["edges"], bins["edges"][1:], bins["count"], bins["confidence"], bins["accuracy"], strict=False
    ):
        inside = (confidence > low) & (confidence <= high)
        assert count == inside.sum()
        if count:
            assert mean == pytest.approx(confidence[inside].mean(), rel=1e-6)
            assert share == pytest.approx(correct[inside].mean())
        else:
            assert mean is None
            assert share is None
    curve = body["risk_coverage"][dataset][method]
    assert curve["threshold"] == sorted(curve["threshold"], reverse=True)
    assert len(curve["threshold"]) <= 200
    assert curve["coverage"][-1] == 1
    for threshold, coverage, risk in zip(curve["threshold"], curve["coverage"], curve["risk"], strict=True):
        kept = confidence.astype(float) >= threshold
        assert coverage == pytest.approx(kept.mean())
        assert risk == pytest.approx(1 - correct[kept].mean())
    assert "20 bins" in body["caption"]
    assert tiny("vit").weights_hash[:12] in body["caption"]


@pytest.mark.parametrize(
    "id",
    ["nothing", "..", "%2e%2e", "..%2fsecret.json", "finished%2f..%2f..", "odd%20name", "notes.txt", "."],
)
def test_an_id_is_only_compared(web, id):
    answer = web.get(f"/v1/runs/{id}")
    if answer.request.url.path.rstrip("/") in {"/v1/runs", "/v1"}:  # the client itself resolves dots
        assert "secret" not in answer.text
    else:
        assert answer.status_code == 404
        assert "secret" not in answer.text


def test_a_damaged_run_says_so_without_naming_files(shelf, tmp_path):
    import shutil

    shutil.copytree(shelf / "runs" / "finished", tmp_path / "runs" / "cut")
    shard = next(f for f in (tmp_path / "runs" / "cut").rglob("*.safetensors") if "tpt" in str(f))
    shard.write_bytes(shard.read_bytes()[:100])
    answer = client(runs=tmp_path / "runs").get("/v1/runs/cut")
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "damaged_run"
    assert str(tmp_path) not in answer.text


def test_a_run_with_a_damaged_manifest_is_listed_with_its_reason(web):
    runs = {run["id"]: run for run in web.get("/v1/runs").json()["runs"]}
    assert runs["finished"]["damaged"] is None
    assert runs["damaged"]["damaged"] == "manifest.json: cots is missing"
    answer = web.get("/v1/runs/damaged")
    assert answer.status_code == 422
    assert answer.json()["error"]["message"] == "This run is damaged; run cots validate on the server for details."


def test_an_unfinished_run_shows_what_is_there(shelf, tmp_path):
    import shutil

    shutil.copytree(shelf / "runs" / "finished", tmp_path / "runs" / "part")
    run = bench.Run.open(tmp_path / "runs" / "part")
    for file in run.records(run.datasets[1], "tpt+cots", 1).files:
        file.unlink()
    body = client(runs=tmp_path / "runs").get("/v1/runs/part").json()
    assert body["complete"] is False, "whatever DONE says"
    places = {(row["dataset"], row["method"]): row for row in body["rows"]}
    assert places[run.datasets[1], "tpt+cots"]["accuracy_std"] is None, "one seed is left"
    assert places["all", "tpt+cots"]["accuracy_std"] is None, "only whole seeds are pooled"
    assert places["all", "tpt"]["accuracy_std"] is not None
