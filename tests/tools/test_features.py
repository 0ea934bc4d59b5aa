"""Cached features of mini's training photos and the demo's view features."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from support.models import random_views, tiny, tiny_task

import cots
from cots.demo import read_photos


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
def demo_args(mini, tmp_path, pictures, monkeypatch):
    """Three unknown sets of 18, 9 and 9 plain-coloured photos, of which the model does not know one of three names; and
    a known set with six photos."""
    for name, size in zip(mini.demo.UNKNOWN, (18, 9, 9), strict=True):
        folder = tmp_path / "unseen" / name
        folder.mkdir(parents=True)
        for i in range(size):
            Image.new("RGB", (40, 30), (14 * i, 255 - 14 * i, 90)).save(folder / f"{i}.png")
        (folder / "classes.txt").write_text("zebra\nzyx\ncat\n")
        (folder / "list.csv").write_text(
            "path,label\n" + "".join(f"{i}.png,{['cat', 'zebra', 'zyx'][i % 3]}\n" for i in range(size))
        )
    monkeypatch.setattr(mini.demo, "UNKNOWN", dict(zip(mini.demo.UNKNOWN, (6, 3, 3), strict=True)))
    monkeypatch.setattr(mini.demo, "KNOWN", {"pets": 4})
    return SimpleNamespace(data=tmp_path, seed=0, workers=1, model="model", device="cpu")


class Known:
    """A tokenizer that does not know the word zyx."""

    def untrained_words(self, texts: list[str]) -> list[str]:
        return [text for text in texts if text == "zyx"]


def test_demo_photos_depend_on_the_seed_only(mini, demo_args):
    drawn = mini.demo.drawn(demo_args, Known())
    assert [(d.name, len(d), d.classes) for d in drawn] == [
        ("pets", 4, ("abyssinian", "beagle", "birman")),
        *((name, size, ("zebra", "cat")) for name, size in mini.demo.UNKNOWN.items()),
    ]
    for photo in drawn[0].samples:
        assert photo.id.startswith(drawn[0].classes[photo.label])
    for dataset in drawn[1:]:
        places = [int(p.id.partition(".")[0]) for p in dataset.samples]
        assert places == sorted(set(places))
        assert [p.label for p in dataset.samples] == [1 - i % 3 for i in places]
    assert mini.demo.drawn(demo_args, Known()) == drawn
    demo_args.seed = 1
    assert mini.demo.drawn(demo_args, Known()) != drawn


def test_demo_features_do_not_depend_on_the_workers(mini, demo_args, tmp_path, monkeypatch):
    settings = cots.ViewSettings(n=4, size=(8, 8), augmix=True)
    monkeypatch.setattr(cots.ViewSettings, "from_preprocess", lambda preprocess, augmix: settings)
    backbone = SimpleNamespace(
        preprocess=None, tokenizer=Known(), encode_images=lambda views: views.flatten(1)[:, ::16]
    )
    monkeypatch.setattr(cots, "load", lambda model, device: backbone)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    found = {}
    for demo_args.workers in (1, 2):
        folder = tmp_path / str(demo_args.workers)
        folder.mkdir()
        for rank in range(demo_args.workers):
            mini.demo.encode(rank, demo_args, str(folder))
        found[demo_args.workers] = {k: v for f in folder.iterdir() for k, v in load_file(f).items()}
    assert set(found[1]) == {f"{d.name}.{i}" for d in mini.demo.drawn(demo_args, Known()) for i in range(len(d))}
    assert all(torch.equal(found[1][k], found[2][k]) for k in found[1])
    photo = mini.demo.drawn(demo_args, Known())[2].samples[2]
    views = cots.make_views(photo.source, settings, cots.sample_seed(0, "pacs-art", photo.id))
    assert torch.equal(found[1]["pacs-art.2"], backbone.encode_images(views).half())


@pytest.fixture
def demo_files(mini, demo_args, tmp_path, monkeypatch):
    """Random features of a tiny model, saved as shipped and in full."""
    monkeypatch.setattr(cots, "load", lambda model, device=None: tiny("vit"))
    demo_args.out, demo_args.full = tmp_path / "out" / "demo.safetensors", tmp_path / "full.safetensors"
    task = tiny_task("vit")
    sets = mini.demo.drawn(demo_args, Known())
    views = {d.name: random_views(task, samples=len(d), views=16, seed=k).half() for k, d in enumerate(sets)}
    mini.demo.save(demo_args, sets, {f"{k}.{i}": row for k, rows in views.items() for i, row in enumerate(rows)})
    return demo_args, sets, views


def test_demo_files_are_read_back(demo_files):
    args, sets, views = demo_files
    shipped, full = read_photos(args.out), read_photos(args.full)
    for small, large, dataset in zip(shipped, full, sets, strict=True):
        assert (small.name, small.classes) == (large.name, large.classes) == (dataset.name, dataset.classes)
        assert small.known == large.known == (small.name == "pets")
        assert small.labels.tolist() == large.labels.tolist() == [p.label for p in dataset.samples]
        assert torch.equal(large.features, views[dataset.name].float())
        # Rounding to the nearest step has half the error per entry, but more in the cosines.
        task = cots.Task(tiny("vit"), dataset.classes)
        step = large.features.abs().amax(dim=-1, keepdim=True) / 127
        nearest = (large.features / step).round() * step
        contrast = task.text_features[0] - task.text_features[1]

        def error(features, full=large.features, contrast=contrast):
            return ((features - full) @ contrast).abs().mean()

        assert ((small.features - large.features).abs() <= 2 * step).float().mean() > 0.99
        directions = len(dataset.classes) - 1  # in which the cosines differ; each costs precision
        assert error(small.features) < 0.1 * directions * error(nearest)
    stored = load_file(args.out)
    assert {k.partition(".")[2]: v.dtype for k, v in stored.items()} == {
        "features": torch.int8, "scales": torch.float16, "labels": torch.int16,
    }  # fmt: skip
    assert stored["pacs-art.features"].abs().amax(dim=-1).ge(120).all()


def test_demo_photos_are_rounded_until_they_keep_class_and_bin(mini, demo_files):
    args, _, _ = demo_files
    backbone = tiny("vit")
    for shipped, exact in zip(read_photos(args.out), read_photos(args.full), strict=True):
        wanted = mini.demo.answers(backbone, exact)
        assert wanted.shape == (len(exact.labels), len(mini.demo.METHODS), 2)
        lowest = 20 / len(exact.classes)
        assert (wanted[..., 1] >= lowest).all(), "with two classes, no confidence is below one half"
        assert (mini.demo.answers(backbone, shipped) == wanted).all()
        *shape, width = exact.features.shape
        coarse = torch.where(exact.features > 0, 1, -1).to(torch.int8), torch.full(shape, width**-0.5).half()
        rough = replace(exact, features=coarse[0] * coarse[1][..., None].float())
        assert (mini.demo.answers(backbone, rough) != wanted).any(), "otherwise nothing is tested"
        steps, scales = mini.demo.steady(backbone, exact, *coarse)
        again = replace(exact, features=steps.float() * scales[..., None].float())
        assert (mini.demo.answers(backbone, again) == wanted).all()


def test_demo_check_prints_how_far_figures_move(mini, demo_files, capsys):
    args, _, _ = demo_files
    moved = mini.demo.check(args)
    printed = capsys.readouterr().out
    assert 0 < moved < 1.0
    assert f"largest move {moved:.3f} points" in printed
