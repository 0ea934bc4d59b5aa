"""Records with errors are counted, told of, and done again when that is asked for; what is whole stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.runs import config, figures, photos
from typer.testing import CliRunner

import cots
from cots import bench
from cots.bench import _retry
from cots.cli import app

METHODS = ("tpt", "tda", "ttl")
BROKEN = "tree/3.png"


def shard_times(out: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in sorted(out.rglob("*.safetensors"))}


def test_a_mended_photo_is_read_again_and_streams_are_done_from_there_on(tmp_path):
    whole = figures(bench.run(config(photos(tmp_path / "whole" / "photos"), tmp_path / "x", methods=METHODS)))
    dataset = photos(tmp_path / "photos", broken=(BROKEN,))
    options = config(dataset, tmp_path / "y", methods=METHODS)
    run = bench.run(options)
    assert [run.failures("photos", method, 0) for method in METHODS] == [(1, 0)] * 3
    (tmp_path / "photos" / BROKEN).write_bytes((tmp_path / "whole" / "photos" / BROKEN).read_bytes())
    before = shard_times(tmp_path / "y")
    assert bench.run(options).failures("photos", "tpt", 0) == (1, 0), "only when it is asked for"
    assert shard_times(tmp_path / "y") == before
    run = bench.run(options, retry_failed=True)
    assert run.complete
    assert figures(run) == whole
    after = shard_times(tmp_path / "y")
    assert after.keys() == before.keys()
    again = {str(file.relative_to(tmp_path / "y")) for file in after if after[file] != before[file]}
    # Sample 17 of 21, in the third shard of 8: the last one. All samples share one file of features.
    assert again == {f"shards/photos/seed0/{m}/00002.safetensors" for m in METHODS} | {
        "features/photos/seed0/00000.safetensors"
    }


def test_what_an_online_method_did_after_an_error_is_done_again(tmp_path):
    dataset = photos(tmp_path / "photos", broken=("car/2.png",))
    options = config(dataset, tmp_path / "y", methods=["tpt", "tda"])
    bench.run(options)
    before = shard_times(tmp_path / "y" / "shards")
    bench.run(options, retry_failed=True)  # it is still broken
    after = shard_times(tmp_path / "y" / "shards")
    again = {(file.parent.name, file.stem) for file in after if after[file] != before[file]}
    assert again == {("tpt", "00000"), ("tda", "00000"), ("tda", "00001"), ("tda", "00002")}


def test_stopped_while_it_forgets_the_run_is_unfinished(tmp_path, monkeypatch):
    dataset = photos(tmp_path / "photos", broken=("car/2.png",))
    options = config(dataset, tmp_path / "y", methods=["tpt"])
    assert bench.run(options).complete
    removed = []

    def stop(file):
        removed.append(file.name)
        if len(removed) == 2:
            raise KeyboardInterrupt
        file.unlink()

    monkeypatch.setattr(_retry, "remove", stop)
    with pytest.raises(KeyboardInterrupt):
        bench.run(options, retry_failed=True)
    assert removed[0] == "DONE"
    assert not bench.Run.open(tmp_path / "y").complete


def test_ranks_do_not_retry(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    plan = bench.plan(config(photos(tmp_path / "photos"), tmp_path / "y", methods=["zeroshot"], engine="rank"))
    with pytest.raises(cots.InputError, match=r"--retry-failed\) does not go with ranks"):
        plan.run(retry_failed=True)


def test_the_command_line_tells_of_shards_that_were_given_up_and_does_them_again(tmp_path):
    dataset = photos(tmp_path / "photos", 6)  # two shards
    options = {"datasets": dataset.where, "methods": "zeroshot", "device": "cpu", "out": tmp_path / "y"}
    plan = bench.plan(bench.RunConfig(**options, views=2, shard_size=16))
    whole = figures(plan.run())
    (tmp_path / "y/shards/photos/seed0/zeroshot/00001.safetensors").unlink()
    next(plan.jobs(16)).give_up([1], "This shard failed 3 times, the last time on fire")
    (tmp_path / "run.toml").write_text("views = 2\nshard_size = 16\n")
    words = ["run", "--config", str(tmp_path / "run.toml"), "--datasets", dataset.where, "--methods", "zeroshot"]
    words += ["--device", "cpu", "--out", str(tmp_path / "y")]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 3
    assert "2 records with errors" in told.stdout
    assert "2 records are errors from abandoned shards" in told.stderr
    assert "the same command with --retry-failed" in told.stderr
    told = CliRunner().invoke(app, [*words, "--retry-failed"])
    assert told.exit_code == 0
    assert "errors" not in told.output
    assert figures(bench.Run.open(tmp_path / "y")) == whole
