"""Tables of records: each value against Records, errors and gaps, and the same table in both formats."""

from __future__ import annotations

import csv
import json
import math
import sys

import numpy as np
import pytest
from support.runs import config, photos, stop_at
from typer.testing import CliRunner

import cots
from cots import bench
from cots.bench import export_records
from cots.cli import app

METHODS = ["zeroshot", "tpt+cots(k=2)"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    data = photos(tmp_path_factory.mktemp("data") / "photos", each=4, broken=("car/2.png",))
    return bench.run(config(data, tmp_path_factory.mktemp("runs") / "x", methods=METHODS, views=3, seeds=(0, 1)))


def as_parquet(file):
    return pytest.importorskip("pyarrow.parquet").read_table(file).to_pylist()


@pytest.fixture(scope="module")
def rows(run):
    file = run.folder.parent / "records.parquet"
    exported = export_records(run.folder, file, probabilities=True)
    assert (exported.file, exported.rows, exported.failed) == (file, 48, 4)
    return as_parquet(file)


def test_rows_are_the_records(run, rows):
    classes = run.dataset("photos").classes
    assert [(row["method"], row["seed"]) for row in rows[::12]] == [(m, s) for m in run.methods for s in (0, 1)]
    for method in run.methods:
        for seed in run.seeds:
            records = run.records("photos", method, seed)
            mine = [r for r in rows if (r["method"], r["seed"]) == (method, seed)]
            good = [row for row in mine if row["error"] is None]
            assert tuple(row["id"] for row in good) == records.ids
            for name in ("label", "prediction", "confidence", "correct"):
                assert [row[name] for row in good] == getattr(records, name).tolist()
            assert [math.nan if r["tau"] is None else r["tau"] for r in good] == pytest.approx(records.tau, nan_ok=True)
            assert np.array_equal(np.float32([row["probabilities"] for row in good]), records.probabilities)
            for row in mine:
                assert row["dataset"] == "photos"
                assert row["label_name"] == classes[row["label"]]
                assert row["prediction_name"] == (None if row["error"] else classes[row["prediction"]])
            assert {row["id"]: row["error"] for row in mine if row["error"]} == records.errors


def test_a_failed_sample_has_its_label_and_its_error_only(rows):
    (first, *_) = failed = [row for row in rows if row["error"]]
    assert len(failed) == 4
    assert (first["id"], first["label_name"]) == ("car/2.png", "car")
    assert {first[name] for name in ("prediction", "confidence", "tau", "correct", "probabilities")} == {None}


def test_csv_has_the_same_values(run, rows, tmp_path):
    file = export_records(run.folder, tmp_path / "new" / "records.csv", probabilities=True).file
    with open(file, newline="", encoding="utf-8") as stream:
        read = list(csv.DictReader(stream))
    assert list(read[0]) == list(rows[0])
    for text, row in zip(read, rows, strict=True):
        for name, value in row.items():
            if value is None:
                assert text[name] == ""
            elif name == "probabilities":
                assert np.array_equal(np.float32(json.loads(text[name])), np.float32(value))
            elif isinstance(value, float):
                assert np.float32(text[name]) == np.float32(value)
            else:
                assert text[name] == str(value)


def test_an_unfinished_run_is_exported_only_if_asked_for(run, tmp_path):
    data = photos(tmp_path / "photos", each=8)
    with pytest.raises(KeyboardInterrupt):
        bench.run(config(data, tmp_path / "y", methods=METHODS, views=3), stop_at(30))
    with pytest.raises(cots.InputError, match=r"unfinished: \d shards are missing\. .* \(--partial\)"):
        export_records(tmp_path / "y", tmp_path / "y.csv")
    assert not (tmp_path / "y.csv").exists()
    begun = bench.Run.open(tmp_path / "y")
    expected = sum(len(begun.records("photos", method, 0, partial=True)) for method in METHODS)
    assert export_records(tmp_path / "y", tmp_path / "y.csv", partial=True).rows == expected > 0


def test_an_interrupted_export_leaves_the_old_table(run, tmp_path):
    file = tmp_path / "records.csv"
    file.write_text("old")

    def stop(done, total):
        assert total == 8
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_records(run.folder, file, progress=stop)
    assert [f.name for f in tmp_path.iterdir()] == ["records.csv"]
    assert file.read_text() == "old"


def test_what_is_wrong_is_named(run, tmp_path, monkeypatch):
    for out in ("records.xlsx", "s3://bucket/records.csv"):
        with pytest.raises(cots.InputError, match=r"must be a local file that ends in \.csv or \.parquet"):
            export_records(run.folder, out)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(cots.CotsError, match=r"need pyarrow: .* --extra parquet"):
        export_records(run.folder, tmp_path / "x.parquet")


def test_the_command(run, tmp_path):
    result = CliRunner().invoke(app, ["export-records", str(run.folder), "-o", str(tmp_path / "r.csv")])
    assert result.exit_code == 0, result.output
    assert "r.csv: 48 rows, 4 with an error" in result.output
    header = (tmp_path / "r.csv").read_text().splitlines()[0]
    assert header.endswith("correct,error")
