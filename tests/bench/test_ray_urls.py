"""Run folders behind fsspec URLs: one request puts a file in place, and everything else is as in a folder."""

from __future__ import annotations

import json
from pathlib import Path

import fsspec
import pytest
from support.runs import config, figures, photos
from typer.testing import CliRunner

import cots
from cots import bench
from cots.bench._paths import UrlPath, location
from cots.cli import app

METHODS = ("tpt+ecots", "tda", "ttl")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos", broken=("car/2.png",))


@pytest.fixture
def store():
    """An empty store in memory."""
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    yield fs
    fs.store.clear()


@pytest.mark.parametrize("base", ["memory://bucket", "simplecache::file://{tmp}", "file://{tmp}"])
def test_a_run_behind_a_url_is_the_run_in_a_folder(dataset, store, tmp_path, base):
    expected = figures(bench.run(config(dataset, tmp_path / "x", methods=METHODS)))
    url = base.format(tmp=tmp_path) + "/runs/y"
    plan = bench.plan(config(dataset, url, methods=METHODS, cache=f"{url}-features"))
    assert "of records in" in plan.text()
    assert (" free" in plan.text()) == url.startswith("file")

    def stop(stage, dataset, seed, done, total):
        if stage == "methods" and done >= total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan.run(stop)
    begun = bench.Run.open(url)
    assert not begun.complete
    assert begun.missing()
    run = plan.run()
    assert run.complete
    assert figures(bench.Run.open(url)) == expected
    fs, path = fsspec.core.url_to_fs(url)
    assert sorted(Path(name).name for name in fs.ls(path, detail=False)) == ["DONE", "manifest.json", "shards"]
    assert not [name for name in fs.find(str(Path(path).parent)) if name.endswith(".tmp")]


def test_one_run_at_a_time_behind_a_url(dataset, store):
    plan = bench.plan(config(dataset, "memory://bucket/y", methods=["zeroshot"]))
    with pytest.raises(cots.CotsError, match=r"Another run is working in memory://bucket/y: process \d+"):
        plan.run(lambda *event: plan.run())
    fs_lock = "/bucket/y/lock"
    store.pipe_file(fs_lock, json.dumps({"pid": 1, "host": "elsewhere", "machine": "other"}).encode())
    with pytest.raises(cots.CotsError, match=r"process 1 on elsewhere.* delete memory://bucket/y/lock"):
        plan.run()
    store.pipe_file(fs_lock, b'{"pid": 12')  # of a process that was killed while it wrote
    assert plan.run().complete
    assert not store.exists(fs_lock)


def test_a_damaged_file_behind_a_url_is_named(dataset, store):
    run = bench.run(config(dataset, "memory://bucket/y", methods=["tpt"]))
    file = "/bucket/y/shards/photos/seed0/tpt/00001.safetensors"
    store.pipe_file(file, store.cat_file(file)[:100])
    with pytest.raises(cots.CotsError, match=r"memory://bucket/y/shards/.*/00001.safetensors is damaged"):
        run.records("photos", "tpt", 0)


def test_urls_that_cannot_be_used(tmp_path, monkeypatch):
    with pytest.raises(cots.InputError, match="was a URL before it became a Path"):
        location(Path("s3://bucket/x"))
    with pytest.raises(cots.InputError, match=r"nonsense://x/.* cannot be opened: Protocol not known"):
        bench.Run.open("nonsense://x")
    with pytest.raises(cots.InputError, match=r"memory://nowhere does not exist: give the folder"):
        bench.Run.open("memory://nowhere")
    assert location("local:///a/b") == Path("/a/b")
    assert UrlPath("s3://bucket/a/b/").parent == UrlPath("s3://bucket/a")
    told = CliRunner().invoke(app, ["report", "memory://nowhere"])
    assert "needs a folder of its own: give --out" in str(told.exception)
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(cots.InputError, match=r"needs fsspec: pip install 'cots\[ray\]'"):
        bench.Run.open("s3://bucket/x")


def test_a_store_that_cannot_be_reached_is_a_disk_that_cannot_be_written(dataset, store, monkeypatch):
    class Unreachable(Exception):
        """As packages of stores have them: no OSError."""

    def away(*arguments, **options):
        raise Unreachable("no answer")

    plan = bench.plan(config(dataset, "memory://bucket/y", methods=["zeroshot"]))
    with pytest.raises(cots.CotsError, match=r"memory://bucket/y/features/.* could not be written \(no answer\)"):
        plan.run(lambda *event: monkeypatch.setattr(type(store), "pipe_file", away))
    monkeypatch.undo()
    assert plan.run().complete
