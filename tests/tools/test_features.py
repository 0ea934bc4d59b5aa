"""Cached features of mini's training photos and the demo's view features."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

import cots


def test_features_follow_the_split_and_hold_photos_out(mini, pictures, trunk_weights, tmp_path, monkeypatch):
    for module in (mini.features, mini.photos):
        monkeypatch.setattr(module, "SETS", {"pets": mini.photos.SETS["pets"]})
    monkeypatch.setattr(mini.features, "CHANGES", ["plain", "grey"])
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    args = SimpleNamespace(
        data=pictures, out=tmp_path, weights=trunk_weights, crops=1, held_out=0.5, workers=2, seed=0, device="cpu"
    )
    for rank in range(2):
        mini.features.work(rank, args)
    found = mini.features.gather(args, "pets")
    photos = mini.photos.read_split(pictures, "pets", "train")
    held = mini.photos.held_out(photos, 0.5)
    assert found["labels"].tolist() == found["held_labels"].tolist() == [0, 1, 2]
    assert {k: tuple(found[k].shape) for k in ("views", "described", "held")} == {
        "views": (3, 2, 1280), "described": (3, 2, 1280), "held": (3, 1280),
    }  # fmt: skip
    trunk = mini.trunk.round_to_half(mini.trunk.load_trunk(trunk_weights))
    second = (~held).nonzero()[1, 0]
    views, described = mini.features.photo_features(trunk, photos[second], 1, "0/pets")
    torch.testing.assert_close(found["views"][1], views)
    torch.testing.assert_close(found["described"][1], described)
    assert not list(tmp_path.glob("part-*"))


@pytest.fixture
def demo_args(pictures):
    return SimpleNamespace(data=pictures, seed=0, photos=4, workers=1, model="model", device="cpu")


def test_demo_photos_depend_on_the_seed_only(mini, demo_args):
    drawn = mini.demo.drawn(demo_args)
    for name, photos in drawn.items():
        listed = [p.path.name for p in mini.photos.read_split(demo_args.data, name, "test")]
        places = [listed.index(p.path.name) for p in photos]
        assert places == sorted(set(places))
        assert len(places) == 4
    assert mini.demo.drawn(demo_args) == drawn
    demo_args.seed = 1
    assert mini.demo.drawn(demo_args) != drawn


def test_demo_features_do_not_depend_on_the_workers(mini, demo_args, tmp_path, monkeypatch):
    settings = cots.ViewSettings(n=4, size=(8, 8), augmix=True)
    monkeypatch.setattr(cots.ViewSettings, "from_preprocess", lambda preprocess, augmix: settings)
    backbone = SimpleNamespace(preprocess=None, encode_images=lambda views: views.flatten(1)[:, ::16])
    monkeypatch.setattr(cots, "load", lambda model, device: backbone)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    found = {}
    for demo_args.workers in (1, 2):
        folder = tmp_path / str(demo_args.workers)
        folder.mkdir()
        for rank in range(demo_args.workers):
            mini.demo.encode(rank, demo_args, str(folder))
        found[demo_args.workers] = {k: v for f in folder.iterdir() for k, v in load_file(f).items()}
    assert set(found[1]) == {f"{name}.{i}" for name in mini.classes for i in range(4)}
    assert all(torch.equal(found[1][k], found[2][k]) for k in found[1])
    photo = mini.demo.drawn(demo_args)["caltech"][2]
    views = cots.make_views(photo.path, settings, cots.sample_seed(0, "caltech", photo.path.name))
    assert torch.equal(found[1]["caltech.2"], backbone.encode_images(views).half())
