"""The recipe of the embedded model: its switches do what they say, and its scripts what they are told."""

from __future__ import annotations

import json
import shutil
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.mini_scripts import CARD, CLASSES, WIDTH, features, run_of

import cots


@pytest.fixture(scope="module")
def trainer(recipe, folders):
    return run_of(recipe, folders, folders[1])


def test_each_variant_changes_what_its_name_says(recipe):
    common = ["--data", "d", "--features", "f", "--out", "o"]
    full = vars(recipe.options.parse(common))
    changed = {}
    common_to_both = set(recipe.ablate.VARIANTS) & set(recipe.ablate.CHOICES)
    assert common_to_both == {"full", "label 0.7", "no gains"}
    assert all(recipe.ablate.VARIANTS[v] == recipe.ablate.CHOICES[v] for v in common_to_both)
    assert recipe.ablate.ALL.items() >= (recipe.ablate.VARIANTS | recipe.ablate.CHOICES).items()
    for variant, switches in recipe.ablate.ALL.items():
        chosen = vars(recipe.options.parse([*common, *switches]))
        changed[variant] = {k: v for k, v in chosen.items() if v != full[k]}
    assert changed == {
        "full": {},
        "no alpha penalty": {"alpha_weight": 0.0},
        "no view captions": {"context_weight": 0.0},
        "no composed captions": {"pairs_weight": 0.0},
        "no teacher": {"teacher": False},
        "no residuals": {"residuals": False},
        "label 0.7": {"hard": 0.7},
        "no gains": {"gains": False},
        "label 0.3": {"hard": 0.3},
        "alpha 0.85": {"alpha": 0.85},
        "label 0.7, no gains": {"hard": 0.7, "gains": False},
        "last stage, 1e-5": {"trunk_stages": 1},
        "last stage, 1e-4": {"trunk_stages": 1, "trunk_lr": 1e-4},
        "last stage, 1e-4, not kept": {"trunk_stages": 1, "trunk_lr": 1e-4, "keep_weight": 0.0},
        "last two stages, 1e-5": {"trunk_stages": 2},
    }


def test_what_is_not_said_is_the_recipe_of_the_card(recipe):
    args = recipe.options.parse(["--data", "d", "--features", "f", "--out", "o"])
    assert (args.hard, args.leave_out, args.teacher, args.residuals, args.gains) == (1.0, None, True, True, True)
    assert args.trunk_stages == 0
    card = " ".join(CARD.read_text().split())
    assert f"{args.steps:,} steps of AdamW, seed {args.seed}, on" in card
    assert f"holds alpha at {args.alpha} for every list" in card
    assert args.report is None
    assert f"moved every {args.steps // recipe.options.MOVES} steps" in card
    assert f"multiplied by s = {recipe.ablate.FACTOR}:" in card


def test_labels_alone_drops_the_probes_share_of_the_targets(recipe, tmp_path):
    tensors = features(16, 5, seed=0)
    # One photo is labelled wrongly: a probe that has not seen it must say so, and the label alone must not.
    tensors["labels"][0] = 3
    save_file(tensors, tmp_path / "set.safetensors")
    torch.manual_seed(0)
    alone, mixed = (recipe.bank.load_set(tmp_path, "set", "cpu", hard) for hard in (1.0, 0.7))
    truth = torch.eye(5)[alone.labels_N][:, None]
    for kind in ("targets_NVK", "targets_described_NAK"):
        assert torch.equal(getattr(alone, kind).float(), truth.expand_as(getattr(alone, kind)))
        probe = (getattr(mixed, kind).float() - 0.7 * truth) / 0.3
        torch.testing.assert_close(probe.sum(-1), torch.ones(probe.shape[:2]), rtol=0, atol=0.02)
        wrong = int((tensors["labels"].sort(stable=True).indices == 0).nonzero())
        assert probe[wrong, :, 0].mean() > 0.5
        assert probe[wrong, :, 3].mean() < 0.5
        assert probe.min() > -0.01


def test_gains_move_towards_one_scale_and_the_switch_holds_them(trainer, monkeypatch):
    """Names of pets that lie on their photos want a large scale, names that lie anywhere the smallest."""
    draw = torch.Generator().manual_seed(1)
    text = torch.nn.functional.normalize(torch.randn(len(trainer.lists.everything), 256, generator=draw), dim=-1)
    photos = trainer.bank.sets["pets"]
    views = trainer.model.visual.head(photos.held_views_MVF[:, 0].float()).detach()
    means = torch.stack([views[photos.held_labels_M == k].mean(0) for k in range(len(CLASSES["pets"]))])
    text[trainer.lists.rows["pets"]] = torch.nn.functional.normalize(means - means.mean(0), dim=-1)
    monkeypatch.setattr(trainer, "text", lambda tokens: text)
    before = dict(trainer.gain)
    assert set(before.values()) == {1.0}
    trainer.args.gains = False
    torch.manual_seed(0)
    held = trainer.held_out()
    assert trainer.gain == before
    trainer.args.gains = True
    torch.manual_seed(0)
    assert trainer.held_out() == held
    moved = dict(trainer.gain)
    trainer.gain.update(before)
    assert moved == pytest.approx({k: np.clip((held["scale"] / held[f"{k} scale"]) ** 0.5, 0.5, 2) for k in before})
    assert held["pets scale"] > 2 * held["imagenet scale"]
    assert moved["pets"] < 0.9
    assert moved["imagenet"] > moved["pets"]


def test_gains_act_on_the_targets_of_their_list_alone(trainer):
    def terms(**gains: float) -> dict[str, float]:
        trainer.gain.update(dict.fromkeys(trainer.gain, 1.0) | gains)
        torch.manual_seed(3)
        return {k: v.item() for k, v in trainer.terms(0).items()}

    plain, pets, names = terms(), terms(pets=1.5), terms(imagenet=1.5)
    trainer.gain.update(dict.fromkeys(trainer.gain, 1.0))
    assert {k for k in plain if plain[k] != pets[k]} == {"own", "joint"}
    assert {k for k in plain if plain[k] != names[k]} == {"names", "groups"}


@pytest.mark.parametrize(
    ("switch", "gone"),
    [({"context_weight": 0.0}, {"context"}), ({"pairs_weight": 0.0}, {"pairs"}), ({"teacher": False}, {"real"})],
)
def test_parts_left_out_have_no_term(trainer, monkeypatch, switch, gone):
    everything = set(trainer.terms(0))
    assert everything == {"own", "joint", "real", "names", "groups", "alpha", "context", "pairs"}
    for option, value in switch.items():
        monkeypatch.setattr(trainer.args, option, value)
    assert set(trainer.terms(0)) == everything - gone


def test_without_residuals_a_prototype_lies_on_its_own_direction(trainer, monkeypatch):
    labels = torch.zeros(50, dtype=torch.long)
    with_noise = trainer.prototypes(labels)
    monkeypatch.setattr(trainer.args, "residuals", False)
    alone = trainer.prototypes(labels)
    # Mean + size * (a mixture of two directions), cut at zero: without residuals all lie in a space of three dimensions
    # where nothing is cut.
    kept = alone.amin(0) > 0
    ranks = [torch.linalg.matrix_rank(x[:, kept].double(), rtol=1e-4).item() for x in (with_noise, alone)]
    assert kept.sum() > 100
    assert ranks[1] <= 3 < ranks[0]


def test_gains_move_eight_times_in_a_run_of_any_length(trainer, monkeypatch, tmp_path):
    moved = []
    monkeypatch.setattr(trainer, "report", lambda step, seconds, terms: moved.append(step))
    monkeypatch.setattr(trainer, "terms", lambda step: {"own": trainer.model.logit_scale.square()})
    monkeypatch.setattr(trainer.args, "steps", 40)
    monkeypatch.setattr(trainer.args, "out", tmp_path / "new" / "folder" / "model.safetensors")
    trainer.train()
    assert moved == [5, 10, 15, 20, 25, 30, 35, 40]
    assert trainer.args.out.is_file()


def test_a_missing_folder_is_named_with_what_to_do(recipe, tmp_path, monkeypatch):
    argv = ["train.py", "--data", str(tmp_path), "--features", str(tmp_path), "--out", str(tmp_path / "m"), "--device"]
    monkeypatch.setattr(sys, "argv", [*argv, "cpu"])
    with pytest.raises(SystemExit, match=r"split_zhou_OxfordPets\.json is missing: --data must name"):
        recipe.train.main()
    with pytest.raises(SystemExit, match=r"pets\.safetensors is missing: make it with features\.py"):
        recipe.bank.load_set(tmp_path, "pets", "cpu")
    save_file(features(WIDTH, 3, seed=0), tmp_path / "pets.safetensors")
    with pytest.raises(SystemExit, match=r"pets-maps-2\.safetensors is missing: make it with features\.py --stages 2"):
        recipe.bank.load_set(tmp_path, "pets", "cpu", stages=2)
    with pytest.raises(SystemExit, match="holds no finished runs"):
        list(recipe.ablate.table(tmp_path))


def test_photos_of_a_set_left_out_only_serve_to_measure(recipe, folders, tmp_path, monkeypatch):
    """Other photos of that set give the same model and scale, and other figures of that set alone."""
    data, features_of = folders
    monkeypatch.setattr(recipe.bank, "probe", partial(recipe.bank.probe, steps=2))
    monkeypatch.setattr(recipe.choose, "SELECTED", 2)
    monkeypatch.setattr(recipe.tower, "SCALES", recipe.tower.SCALES[::20])
    monkeypatch.setitem(recipe.ablate.CHOICES, "full", ["--pairs", "50"])
    found = []
    for seed in (2, 8):  # 2: as they were generated
        here = tmp_path / str(seed)
        shutil.copytree(features_of, here)
        save_file(features(WIDTH, len(CLASSES["flowers"]), seed), here / "flowers.safetensors")
        places = {"--out": here / "out", "--data": data, "--features": here}
        argv = ["ablate.py", *(str(word) for pair in places.items() for word in pair), "--device", "cpu"]
        argv += ["--steps", "2", "--seeds", "0", "--leave-out", "flowers", "--variants", "full"]
        monkeypatch.setattr(sys, "argv", argv)
        recipe.ablate.main()
        files = {f.stem: json.loads(f.read_text()) for f in (here / "out").glob("*.json")}
        found.append(
            {k: {n: v for n, v in r.items() if n not in ("seconds", "photos_agree", "pairs")} for k, r in files.items()}
        )
    assert set(found[0]) == {"full-0"}
    for name, first in found[0].items():
        assert first["left_out"] == "flowers"
        assert {k for k in first if first[k] != found[1][name][k]} == {"flowers"}
    factors = {k for k in found[0]["full-0"]["flowers"] if k.startswith("factor")}
    assert factors == {f"factor {s}" for s in (1.0, 0.5, 0.25, 0.125)}
    (row,) = recipe.ablate.read(tmp_path / "2" / "out")["full, s = 0.5"]
    assert row["CoTS NLL"] == found[0]["full-0"]["flowers"]["factor 0.5"]["cots"]["nll"]


def test_the_demos_photos_are_drawn_by_the_seed_alone_in_the_order_of_the_list(recipe, pictures):
    drawn = recipe.demo.drawn(pictures)
    assert list(drawn) == list(CLASSES)
    orders = []
    for name, photos in drawn.items():
        everything = [p.path.name for p in recipe.photos.read_split(pictures.data, name, "test")]
        places = [everything.index(p.path.name) for p in photos]
        assert places == sorted(set(places))
        assert len(places) == 6
        orders.append(places)
    assert recipe.demo.drawn(pictures) == drawn
    pictures.seed = 1
    assert recipe.demo.drawn(pictures) != drawn
    assert len({tuple(x) for x in orders}) > 1


def test_workers_share_the_demos_photos_and_give_the_same_features(recipe, pictures, tmp_path, monkeypatch):
    """Two workers' parts together are one worker's, and a feature is that of the photo's own views."""
    settings = cots.ViewSettings(n=4, size=(8, 8), augmix=True)
    monkeypatch.setattr(cots.ViewSettings, "from_preprocess", lambda preprocess, augmix: settings)
    backbone = SimpleNamespace(preprocess=None, encode_images=lambda views: views.flatten(1)[:, ::16])
    monkeypatch.setattr(cots, "load", lambda model, device: backbone)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    found = {}
    for pictures.workers in (1, 2):
        folder = tmp_path / str(pictures.workers)
        folder.mkdir()
        for rank in range(pictures.workers):
            recipe.demo.encode(rank, pictures, str(folder))
        parts = [load_file(f) for f in sorted(folder.iterdir())]
        assert sum(map(len, parts)) == 18
        found[pictures.workers] = {k: v for part in parts for k, v in part.items()}
    assert set(found[1]) == {f"{name}.{i}" for name in CLASSES for i in range(6)}
    assert all(torch.equal(found[1][k], found[2][k]) for k in found[1])
    photo = recipe.demo.drawn(pictures)["caltech"][4]
    views = cots.make_views(photo.path, settings, cots.sample_seed(0, "caltech", photo.path.name))
    assert torch.equal(found[1]["caltech.4"], backbone.encode_images(views).half())


def test_a_run_is_taken_once(recipe, tmp_path):
    assert recipe.ablate.take(tmp_path / "full-0.json")
    assert not recipe.ablate.take(tmp_path / "full-0.json")


def test_a_run_that_fails_can_be_taken_again(recipe, tmp_path, monkeypatch):
    def fail(args):
        raise RuntimeError("no memory")

    monkeypatch.setattr(recipe.ablate, "class_names", lambda data, name: CLASSES[name])
    monkeypatch.setattr(recipe.ablate.Material, "load", fail)
    argv = ["ablate.py", "--out", str(tmp_path), "--data", "d", "--features", "f", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(RuntimeError, match="no memory"):
        recipe.ablate.main()
    assert not list(tmp_path.iterdir())
