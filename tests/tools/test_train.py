"""Training mini: its gains, its documented defaults, and the way from cached features to a model that cots loads."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from support.compiler import without_compiler

import cots

CARD = Path(__file__).parents[2] / "docs" / "mini.md"


def run_script(monkeypatch, module, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", [f"{module.__name__}.py", *map(str, arguments), "--device", "cpu"])
    module.main()


@pytest.fixture(scope="module")
def trainer(mini, folders, tmp_path_factory):
    data, features = folders
    out = tmp_path_factory.mktemp("checkpoint") / "new" / "mini.safetensors"
    paths = ["--data", str(data), "--features", str(features), "--out", str(out), "--device", "cpu"]
    return mini.train.Trainer(
        mini.train.parse([*paths, "--steps", "2", "--pairs", "50", "--batch", "8", "--prototypes", "64"])
    )


def test_defaults_are_the_documented_recipe(mini):
    args = mini.train.parse(["--data", "d", "--features", "f", "--out", "o"])
    card = " ".join(CARD.read_text().split())
    assert f"{args.steps:,} steps of AdamW" in card
    assert f"alpha at {mini.train.ALPHA}" in card
    assert f"{args.steps // mini.train.MOVES} steps" in card


def test_everyday_words_count_the_photos_of_the_card(mini):
    """With one photo per class, a word has as many photos as its group has ImageNet classes."""
    labels = mini.measure_names.everyday_labels(mini.vocabulary.Vocabulary(mini.classes))
    assert int((labels == mini.measure_names.EVERYDAY.index("dog")).sum()) == 118
    assert f"{int((labels >= 0).sum())} photos" in " ".join(CARD.read_text().split())


def test_gain_changes_only_the_terms_of_its_list(mini, trainer):
    def terms(**gains: float) -> dict[str, float]:
        trainer.gain.update(dict.fromkeys(trainer.gain, 1.0) | gains)
        torch.manual_seed(3)
        return {k: v.item() for k, v in trainer.terms(0).items()}

    plain, pets, names = terms(), terms(pets=1.5), terms(imagenet=1.5)
    trainer.gain.update(dict.fromkeys(trainer.gain, 1.0))
    assert set(plain) == set(mini.train.WEIGHTS)
    assert {k for k in plain if plain[k] != pets[k]} == {"own", "joint"}
    assert {k for k in plain if plain[k] != names[k]} == {"names", "groups"}


def test_gains_move_towards_a_common_scale(trainer, monkeypatch):
    """Pet names that coincide with their photos want a larger scale than random ones, so their gain falls."""
    draw = torch.Generator().manual_seed(1)
    text = torch.nn.functional.normalize(torch.randn(len(trainer.lists.everything), 256, generator=draw), dim=-1)
    photos = trainer.bank.sets["pets"]
    views = trainer.model.visual.head(photos.held_MF).detach()
    means = torch.stack([views[photos.held_labels_M == k].mean(0) for k in range(3)])
    text[trainer.lists.rows["pets"]] = torch.nn.functional.normalize(means - means.mean(0), dim=-1)
    monkeypatch.setattr(trainer, "text", lambda tokens: text)
    before = dict(trainer.gain)
    held = trainer.adjust_gains()
    moved = dict(trainer.gain)
    trainer.gain.update(before)
    expected = {k: min(max(v * (held["scale"] / held[f"{k} scale"]) ** 0.5, 0.5), 2) for k, v in before.items()}
    assert moved == pytest.approx(expected)
    assert moved["pets"] < moved["imagenet"]


def test_train_export_and_measure(mini, folders, trainer, trunk_weights, tmp_path, monkeypatch, capsys):
    """The documented commands, on generated features: cots loads the result and computes the same text features."""
    monkeypatch.setattr(mini.train, "MOVES", 2)
    with without_compiler():
        trainer.train()
    assert capsys.readouterr().out.count("held out:") == 2
    data, features = folders
    common = ["--data", data, "--features", features, "--weights", trunk_weights]
    run_script(monkeypatch, mini.export, *common, "--checkpoint", trainer.args.out, "--out", tmp_path / "model")
    tokens = trainer.vocabulary.prompts(mini.classes["pets"])
    with torch.no_grad():
        text = mini.tower.encode_tokens(mini.tower.rescaled(trainer.model, 0.25), tokens)
    backbone = cots.load(f"local-dir:{tmp_path / 'model'}")
    task = cots.Task(backbone, mini.classes["pets"])
    torch.testing.assert_close(task.text_features, text, rtol=0, atol=0.005)
    scale = f"logit scale {float(backbone.logit_scale):.1f}"
    assert scale[:-1] in capsys.readouterr().out

    for k in range(2):
        (folder := tmp_path / "imagenet-sample" / f"{k:04d}").mkdir(parents=True)
        Image.new("RGB", (40, 30), (80 * k, 255 - 80 * k, 90)).save(folder / "photo.png")
    for folder in data.iterdir():
        (tmp_path / folder.name).symlink_to(folder)
    weights = tmp_path / "model" / "open_clip_model.safetensors"
    run_script(monkeypatch, mini.measure_names, "--data", tmp_path, "--checkpoint", weights, "--weights", trunk_weights)
    printed = capsys.readouterr().out
    assert "1000 names: " in printed
    assert "of 2 photos right, mean confidence" in printed
    assert re.search(r"fish \d of 2", printed)


def test_missing_files_are_named_with_the_remedy(mini, tmp_path):
    args = mini.train.parse(["--data", str(tmp_path), "--features", str(tmp_path), "--out", str(tmp_path / "m")])
    with pytest.raises(SystemExit, match=r"split_zhou_OxfordPets\.json is missing: --data must be"):
        mini.train.Trainer(args)
    with pytest.raises(SystemExit, match=r"pets\.safetensors is missing: make it with features\.py"):
        mini.bank.load_set(tmp_path, "pets", "cpu")
