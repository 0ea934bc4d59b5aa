"""The feature cache: encoded once, shared between methods and between runs that agree."""

from __future__ import annotations

import pytest
from support.runs import config, figures, photos

import cots
from cots import bench


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos", 3)


def test_views_are_encoded_once_for_all_methods(dataset, tmp_path, monkeypatch):
    encoded = []
    encode = cots.Backbone.encode_images
    monkeypatch.setattr(
        cots.Backbone,
        "encode_images",
        lambda self, pixels, **o: encoded.append(len(pixels)) or encode(self, pixels, **o),
    )
    bench.run(config(dataset, tmp_path / "y", methods=["tpt", "tpt+ecots", "ctpt", "zeroshot"]))
    assert encoded == [6] * 9


def test_a_cache_is_shared_between_runs_that_agree(dataset, tmp_path, monkeypatch):
    cache, seeds = tmp_path / "cache", (0, 1)
    alone = bench.run(config(dataset, tmp_path / "x", methods=["zeroshot"], seeds=seeds))
    first = bench.run(config(dataset, tmp_path / "y", methods=["zeroshot"], cache=cache, seeds=seeds))
    assert not (first.folder / "features").exists()
    assert len(list(cache.rglob("*.safetensors"))) == 2
    assert figures(first) == figures(alone)
    monkeypatch.setattr(cots.Backbone, "encode_images", None)
    second = config(
        dataset, tmp_path / "z", methods=["zeroshot", "zeroshot+cots"], cache=cache, shard_size=4, seeds=seeds
    )
    plan = bench.plan(second)
    assert plan.feature_bytes == 0
    found = figures(plan.run())
    assert {key: found[key] for key in figures(first)} == figures(first)
    for change in ({"views": 5}, {"augmix": False}, {"limit": 3}):
        plan = bench.plan(config(dataset, tmp_path / "w", methods=["zeroshot"], cache=cache, **change))
        assert plan.feature_bytes > 0
