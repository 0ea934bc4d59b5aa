"""A run folder in a bucket of a mock S3 server on loopback; needs moto[server] and s3fs, which nothing else does."""

from __future__ import annotations

import pytest
from support.runs import config, figures, photos

import cots
from cots import bench
from cots.bench._paths import UrlPath

pytest.importorskip("s3fs", reason="needs s3fs")
moto = pytest.importorskip("moto.server", reason="needs moto[server]")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

METHODS = ("tpt+ecots", "tda", "ttl")


@pytest.fixture
def server(monkeypatch):
    import boto3

    made = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    made.start()
    host, port = made.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "y",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    boto3.client("s3").create_bucket(Bucket="bucket")
    yield made
    made.stop()


def test_a_run_in_a_bucket(server, tmp_path):
    dataset = photos(tmp_path / "photos", 44, broken=("car/2.png",))
    options = {"methods": METHODS, "views": 2, "shard_size": 32}
    expected = figures(bench.run(config(dataset, tmp_path / "x", **options)))
    url = "s3://bucket/runs/y"

    def stop(stage, dataset, seed, done, total):
        if stage == "methods" and done >= total // 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.run(config(dataset, url, **options), stop)
    assert bench.Run.open(url).missing()
    run = bench.run(config(dataset, url, **options))
    assert run.complete
    assert figures(run) == expected
    assert sorted(UrlPath(url).names()) == ["DONE", "features", "manifest.json", "shards"]
    plan = bench.plan(config(dataset, "s3://bucket/runs/z", methods=["zeroshot"], views=2))
    with pytest.raises(cots.CotsError, match="Another run is working in s3://bucket/runs/z"):
        plan.run(lambda *event: plan.run())
    with pytest.raises(cots.CotsError, match=r"could not be written \(The specified bucket does not exist"):
        bench.run(config(dataset, "s3://none/y", methods=["zeroshot"], views=2))
