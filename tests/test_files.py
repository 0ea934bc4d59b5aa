"""Run folders on full disks and behind fsspec URLs."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import fsspec
import pytest
from support.kills import step_by_step
from support.runs import config as run_config
from support.runs import figures, photos, stop_at
from upath import UPath

import cots
from cots import bench
from cots._files import location

METHODS = ("tpt+ecots", "tda")


def config(dataset, out, methods=METHODS, **changes) -> bench.RunConfig:
    return run_config(dataset, out, methods=methods, views=2, **changes)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos", broken=("car/2.png",))


@pytest.fixture(scope="module")
def expected(dataset, tmp_path_factory):
    return figures(bench.run(config(dataset, tmp_path_factory.mktemp("runs") / "x")))


@pytest.fixture
def store():
    """An empty store in memory."""
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    yield fs
    fs.store.clear()


@pytest.mark.parametrize("call", ["write", "replace", "fsync"])
def test_a_full_disk_stops_the_run_which_resumes_later(dataset, expected, tmp_path, call):
    plan = bench.plan(config(dataset, tmp_path / "y"))

    def full(count, name, arguments):
        if count > 61 and name == call:  # photos are opened too
            raise OSError(errno.ENOSPC, "No space left on device")

    message = r"The disk is full: .*\.safetensors could not be written .*Free some space, then re-run the same command"
    with step_by_step(full), pytest.raises(cots.CotsError, match=message):
        plan.run()
    assert not [f for f in (tmp_path / "y").rglob("*") if f.name.endswith(".tmp") or f.name == "lock"]
    assert 0 < len(list((tmp_path / "y").rglob("*.safetensors"))) < 10
    assert figures(plan.run()) == expected


def test_other_disk_errors_are_named_too(dataset, tmp_path):
    def broken(count, name, arguments):
        if name == "fsync":
            raise OSError(errno.EIO, "Input/output error")

    with step_by_step(broken), pytest.raises(cots.CotsError, match=r"could not be written \(Input/output error\)"):
        bench.run(config(dataset, tmp_path / "y", methods=["zeroshot"]))


@pytest.mark.parametrize("base", ["memory://bucket", "simplecache::file://{tmp}", "file://{tmp}"])
def test_a_run_behind_a_url_equals_the_run_in_a_folder(dataset, expected, store, tmp_path, base):
    url = base.format(tmp=tmp_path) + "/runs/y"
    plan = bench.plan(config(dataset, url, cache=f"{url}-features"))
    with pytest.raises(KeyboardInterrupt):
        plan.run(stop_at(30))
    begun = bench.Run.open(url)
    assert not begun.complete
    assert begun.missing()
    assert plan.run().complete
    assert figures(bench.Run.open(url)) == expected
    fs, path = fsspec.core.url_to_fs(url)
    assert sorted(Path(name).name for name in fs.ls(path, detail=False)) == ["DONE", "manifest.json", "shards"]
    assert not [name for name in fs.find(str(Path(path).parent)) if name.endswith(".tmp")]


def test_stores_that_fail(dataset, store, monkeypatch):
    class Unreachable(Exception):
        """As packages of stores define them: no OSError."""

    def away(*arguments, **options):
        raise Unreachable("no answer")

    plan = bench.plan(config(dataset, "memory://bucket/y", methods=["zeroshot"]))
    with pytest.raises(cots.CotsError, match=r"memory://bucket/y/features/.* could not be written \(no answer\)"):
        plan.run(lambda *event: monkeypatch.setattr(type(store), "pipe_file", away))
    monkeypatch.undo()
    run = plan.run()
    file = "/bucket/y/shards/photos/seed0/zeroshot/00001.safetensors"
    store.pipe_file(file, store.cat_file(file)[:100])
    with pytest.raises(cots.CotsError, match=r"memory://bucket/y/shards/.*/00001.safetensors is damaged"):
        run.records("photos", "zeroshot", 0)
    whole = figures(bench.run(config(dataset, "memory://bucket/z", methods=["zeroshot"])))
    with pytest.warns(UserWarning, match=r"memory://bucket/y/.*/00001.safetensors is damaged"):
        assert figures(plan.run()) == whole
    assert store.exists(f"{file}.damaged")


def test_urls_that_cannot_be_used(monkeypatch):
    with pytest.raises(cots.InputError, match="is a URL that lost a slash as a Path"):
        location(Path("s3://bucket/x"))
    with pytest.raises(cots.InputError, match=r"nonsense://x cannot be opened: "):
        bench.Run.open("nonsense://x")
    with pytest.raises(cots.InputError, match=r"memory://nowhere does not exist. Pass the folder"):
        bench.Run.open("memory://nowhere")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(cots.InputError, match=r"s3://bucket/x cannot be opened: .*s3fs"):
        bench.Run.open("s3://bucket/x")
    assert location("local:///a/b") == Path("/a/b")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_run_in_a_bucket(dataset, expected, monkeypatch):
    """A mock S3 server on loopback; moto and s3fs are in the dependency group s3, which .ci/run installs."""
    pytest.importorskip("s3fs", reason="needs s3fs")
    moto = pytest.importorskip("moto.server", reason="needs moto[server]")
    import boto3

    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "x")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        boto3.client("s3").create_bucket(Bucket="bucket")
        plan = bench.plan(config(dataset, "s3://bucket/runs/y"))
        with pytest.raises(KeyboardInterrupt):
            plan.run(stop_at(30))
        assert figures(plan.run()) == expected
        assert sorted(p.name for p in UPath("s3://bucket/runs/y").iterdir()) == [
            "DONE",
            "features",
            "manifest.json",
            "shards",
        ]
        with pytest.raises(cots.CotsError, match=r"could not be written"):
            bench.run(config(dataset, "s3://none/y", methods=["zeroshot"]))
    finally:
        server.stop()
