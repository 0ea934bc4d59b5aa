"""Reading run folders: whole, in chunks, unfinished, damaged or absent."""

from __future__ import annotations

import numpy as np
import pytest
from support.damage import flip
from support.models import tiny
from support.runs import config, figures, photos
from typer.testing import CliRunner

import cots
from cots import bench
from cots.cli import app


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    dataset = photos(tmp_path_factory.mktemp("data") / "photos", broken=("car/2.png", "tree/0.png"))
    return config(dataset, tmp_path_factory.mktemp("runs") / "x", methods=["tpt", "tpt+cots"], views=3)


@pytest.fixture
def run(settings):
    return bench.run(settings)


def test_columns_can_be_read_in_chunks(run):
    records = run.records("photos", "tpt", 0)
    chunks = list(records.chunks())
    assert [len(chunk) for chunk in chunks] == [7, 7, 5]
    np.testing.assert_array_equal(np.concatenate(chunks), records.probabilities)
    assert records.views.shape == (19, 0)
    assert run.records("photos", "tpt+cots", 0).views.shape == (19, 1)


def test_unfinished_runs_can_be_read_so_far(run, settings):
    whole = figures(run)
    (run.folder / "shards/photos/seed0/tpt/00001.safetensors").unlink()
    assert run.missing() == [("photos", "tpt", 0, (1,))]
    some = run.records("photos", "tpt", 0, partial=True)
    assert (len(some), some.failed, len(some.errors)) == (12, 1, 1)
    with pytest.raises(cots.InputError, match=r"tpt on photos with seed 0 is unfinished in .*: 1 of 3 shards"):
        run.records("photos", "tpt", 0)
    assert figures(bench.run(settings)) == whole


def test_a_damaged_file_is_named_and_can_be_rebuilt(run, settings):
    whole = figures(run)
    shard = run.folder / "shards/photos/seed0/tpt/00001.safetensors"
    flip(shard)
    with pytest.raises(cots.CotsError, match=r"tpt/00001.safetensors is damaged \(its checksum .* Re-run the command"):
        run.records("photos", "tpt", 0)
    features = run.folder / "features/photos/seed0/00000.safetensors"
    flip(features)
    with pytest.warns(UserWarning, match=r" is damaged .*; it was renamed to \*.damaged and is recomputed") as told:
        again = bench.run(settings)
    assert [str(one.message).partition(" is damaged")[0] for one in told] == [str(shard), str(features)]
    assert again.complete
    assert figures(again) == whole
    left = [f.relative_to(run.folder) for f in run.folder.rglob("*.damaged")]
    assert sorted(map(str, left)) == [f"{f.relative_to(run.folder)}.damaged" for f in (features, shard)]


def test_retrying_failed_shards_also_remakes_damaged_features(run, settings):
    whole, features = figures(run), run.folder / "features/photos/seed0/00000.safetensors"
    flip(features)
    with pytest.warns(UserWarning, match=f"{features} is damaged"):
        assert figures(bench.run(settings, retry_failed=True)) == whole


def test_reading_what_does_not_exist(run, tmp_path):
    for folder, message in ((tmp_path / "none", "does not exist. Pass the folder"), (tmp_path, "has no manifest.json")):
        with pytest.raises(cots.InputError, match=message):
            bench.Run.open(folder)
    for cell, message in (
        (("photo", "tpt", 0), r"Unknown dataset in .*: 'photo'. Did you mean 'photos'"),
        (("photos", "tpt+cot", 0), r"Unknown method in .*: 'tpt\+cot'. Did you mean 'tpt\+cots'"),
        (("photos", "tpt", 7), "has no seed 7; it has 0"),
    ):
        with pytest.raises(cots.InputError, match=message):
            run.records(*cell)


def test_the_command_line_reports_abandoned_shards_and_repeats_them(tmp_path, monkeypatch):
    monkeypatch.setattr("cots.bench._setup.load", lambda name, **options: tiny("vit"))
    dataset = photos(tmp_path / "photos", 6)  # two shards
    options = {"datasets": dataset.where, "methods": "zeroshot", "device": "cpu", "out": tmp_path / "y"}
    plan = bench.plan(bench.RunConfig(**options, views=2, shard_size=16))
    whole = figures(plan.run())
    (tmp_path / "y/shards/photos/seed0/zeroshot/00001.safetensors").unlink()
    plan.jobs()[0].give_up("This shard failed 3 times, the last time on fire")
    (tmp_path / "run.toml").write_text("views = 2\nshard_size = 16\n")
    words = ["run", "--config", str(tmp_path / "run.toml"), "--datasets", dataset.where, "--methods", "zeroshot"]
    words += ["--device", "cpu", "--out", str(tmp_path / "y")]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 3
    assert "2 records contain errors, 2 of them from abandoned shards" in told.stderr
    assert "the same command with --retry-failed" in told.stderr
    told = CliRunner().invoke(app, [*words, "--retry-failed"])
    assert told.exit_code == 0
    assert "errors" not in told.output
    assert figures(bench.Run.open(tmp_path / "y")) == whole
