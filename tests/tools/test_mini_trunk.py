"""The recipe with the trunk's last stages trained: every script reads, keeps and writes them."""

from __future__ import annotations

import copy
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from support.mini_scripts import CLASSES, WIDTH, features, run_of

SIDE = 2  # of generated maps
ALONE = ("--context-weight", "0", "--pairs-weight", "0")  # without the captions, which take most of a step's time
SIXTH = ("conv_pw", "conv_dw", "conv_pwl", "bn1", "bn2", "bn3")  # layers of the trunk's last stage


@pytest.fixture(scope="module")
def trunk(recipe):
    """The trunk with random weights, and batch norms that are no identity."""
    torch.manual_seed(0)
    trunk = recipe.trunk.timm.create_model(recipe.trunk.NAME, pretrained=False).eval()
    for name, tensor in trunk.state_dict().items():
        if name.endswith(("running_mean", "running_var")):
            tensor.uniform_(0.5, 1.0) if name.endswith("var") else tensor.normal_(0, 0.1)
    return recipe.trunk.round_to_half(trunk)


def test_the_last_stages_make_the_trunks_features_from_the_maps_that_enter_them(recipe, trunk):
    pixels = torch.randint(256, (3, 3, 224, 224), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = trunk.forward_head(trunk.forward_features((pixels.float() - 127) / 128), pre_logits=True)
    features, maps = recipe.trunk.trunk_outputs(trunk, pixels, (1, 2))
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)
    assert expected.std(0).max() > 1e-3
    for stages, shape in {1: (7, 7, 192), 2: (14, 14, 112)}.items():
        assert maps[stages].shape == (3, np.prod(shape))
        tail = recipe.trunk.Tail(trunk, stages).train()
        assert not any(m.training for m in tail.modules())
        rows = torch.cat([torch.full((3, WIDTH), torch.nan), maps[stages]], 1)
        with torch.inference_mode():
            torch.testing.assert_close(tail(rows[:, None], batch=2)[:, 0], expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def maps(recipe, trunk, folders, tmp_path_factory):
    """Features of three sets that come out of the trunk's last stage, and the maps that enter it."""
    data, before = folders
    out = tmp_path_factory.mktemp("maps")
    for file in ("classifier.safetensors", "captions.safetensors"):
        shutil.copy(before / file, out)
    save_file(trunk.state_dict(), out / recipe.trunk.TRUNK)
    tail = recipe.trunk.Tail(trunk, 1)
    for seed, name in enumerate(recipe.photos.SETS):
        tensors = features(SIDE * SIDE * 192, len(CLASSES[name]), seed)
        wide = {k: v for k, v in tensors.items() if "labels" not in k}
        with torch.inference_mode():
            rows = {k: tail(torch.cat([torch.zeros(*v.shape[:2], WIDTH), v], -1)).half() for k, v in wide.items()}
        save_file({k: v for k, v in tensors.items() if "labels" in k} | rows, out / f"{name}.safetensors")
        save_file(wide, out / recipe.bank.maps_file(name, 1))
    return data, out


def test_a_trunk_that_may_change_starts_as_the_frozen_one_with_a_term_that_keeps_it(
    recipe, maps, tmp_path, monkeypatch
):
    frozen, free = run_of(recipe, maps, tmp_path), run_of(recipe, maps, tmp_path, "--trunk-stages", "1")
    terms = []
    for trainer in (frozen, free):
        torch.manual_seed(3)
        terms.append({k: v.item() for k, v in trainer.terms(0).items()})
    keep = terms[1].pop("keep")
    assert terms[1] == pytest.approx(terms[0], rel=2e-3)
    drawn = []
    monkeypatch.setattr(free.bank, "photos", lambda *_, draw=free.bank.photos: drawn.append(draw(*_)) or drawn[-1])

    def kept() -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The term of the photos that are drawn from here on, and the trunk's softmax of them."""
        drawn.clear()
        torch.manual_seed(3)
        term = free.terms(0)["keep"]
        return term, [(x[:, :WIDTH] @ free.bank.weight.T + free.bank.bias).softmax(-1) for x, _ in drawn]

    # At the start the term is the teacher's own entropy, its least value.
    _, teachers = kept()
    assert keep == pytest.approx(np.mean([-(p * p.log()).sum(-1).mean().item() for p in teachers]), rel=1e-3)
    with torch.no_grad():
        free.model.visual.trunk.conv_head.weight.mul_(1.5)
    term, teachers = kept()
    logits = [free.model.visual.trunk(x) @ free.bank.weight.T + free.bank.bias for x, _ in drawn]
    gaps = [-(p * z.log_softmax(-1)).sum(-1).mean().item() for p, z in zip(teachers, logits, strict=True)]
    assert term.item() == pytest.approx(np.mean(gaps), rel=1e-5)
    assert term.item() > keep + 0.1
    (gradient,) = torch.autograd.grad(term, [free.model.visual.trunk.blocks["6"][0].conv_pw.weight])
    assert gradient.abs().sum() > 0


def test_captions_meet_what_the_trained_stages_see(recipe, maps, tmp_path):
    """The features that are in the cache are read by the teacher alone."""
    trainer = run_of(recipe, maps, tmp_path, "--trunk-stages", "1")
    for table in (trainer.bank.views, trainer.bank.described, *(s.held_views_MVF for s in trainer.bank.sets.values())):
        table[..., :WIDTH] = torch.nan
    assert trainer.context_batch()[0].isfinite().all()
    assert trainer.pair_batch()[0].isfinite().all()
    assert all(np.isfinite(v) for v in trainer.held_out().values())


def test_a_trunk_without_a_gradient_stays_and_the_weight_of_its_term_moves_it(recipe, maps, tmp_path, monkeypatch):
    monkeypatch.setattr(recipe.tower, "SCALES", recipe.tower.SCALES[::20])
    found = []
    for weight in ("0", "50"):
        switches = ("--trunk-stages", "1", "--trunk-lr", "0.1", "--keep-weight", weight, *ALONE)
        trainer = run_of(recipe, maps, tmp_path, *switches)
        trainer.train()
        found.append(trainer.model.visual.trunk.conv_head.weight.detach().clone())
    assert not torch.equal(*found)
    still = {k: v.clone() for k, v in trainer.model.visual.trunk.state_dict().items()}
    stages = list(trainer.model.visual.trunk.parameters())
    term = {"own": trainer.model.logit_scale.square() + 0 * sum(p.sum() for p in stages)}
    monkeypatch.setattr(trainer.args, "steps", 1)
    monkeypatch.setattr(trainer, "terms", lambda step: term)
    trainer.train()
    assert all(torch.equal(v, still[k]) for k, v in trainer.model.visual.trunk.state_dict().items())


def test_options_of_a_trunk_that_is_frozen_are_refused(recipe, capsys):
    common = ["--data", "d", "--features", "f", "--out", "o"]
    for option in ("--trunk-lr", "--keep-weight"):
        with pytest.raises(SystemExit):
            recipe.options.parse([*common, option, "0.5"])
        assert "add --trunk-stages" in capsys.readouterr().err
    args = recipe.options.parse([*common, "--trunk-stages", "1", "--keep-weight", "0"])
    assert (args.trunk_lr, args.keep_weight) == (1e-5, 0.0)


@pytest.mark.parametrize("rate", [0.0, 0.1])  # of which the first steps take a hundredth
def test_only_the_last_stages_move_at_their_own_rate_and_reach_the_exported_model(
    recipe, trunk, maps, tmp_path, monkeypatch, rate
):
    monkeypatch.setattr(recipe.tower, "SCALES", recipe.tower.SCALES[::20])
    trainer = run_of(recipe, maps, tmp_path, "--trunk-stages", "1", "--trunk-lr", str(rate), *ALONE)
    trainer.train()
    file = tmp_path / "run.safetensors"
    saved, before = load_file(file), trunk.state_dict()
    own = {k.removeprefix(recipe.trunk.PREFIX): v for k, v in saved.items() if k.startswith(recipe.trunk.PREFIX)}
    assert {k.rsplit(".", 1)[0] for k in own} == {f"blocks.6.0.{x}" for x in SIXTH} | {"conv_head", "bn2"}
    moved = {k for k, v in own.items() if not torch.equal(v, before[k])}
    learnt = {k for k in own if k.endswith((".weight", ".bias"))}
    assert moved == (learnt if rate else set())
    assert recipe.trunk.trained_stages(file) == 1

    model = recipe.choose.load_checkpoint(file, len(trainer.vocabulary.tokens), "cpu")
    rows = trainer.bank.sets["flowers"].held_views_MVF
    features_of = recipe.tower.see(model, rows)
    torch.testing.assert_close(features_of, recipe.tower.see(trainer.model, rows))
    assert torch.allclose(features_of, rows[..., :WIDTH].float(), atol=5e-3) != bool(rate)

    weights, out = tmp_path / "trunk.pth", tmp_path / "model"
    torch.save(before, weights)
    recipe.export.write_model(model, 50.0, trainer.vocabulary, weights, out)
    assert recipe.trunk.trained_stages(out / "open_clip_model.safetensors") == 1
    shipped = load_file(out / "open_clip_model.safetensors")
    expected = {k: v for k, v in (before | own).items() if not k.startswith("classifier")}
    assert all(torch.equal(shipped[recipe.trunk.PREFIX + k].float(), v.half().float()) for k, v in expected.items())
    again = recipe.choose.load_checkpoint(out / "open_clip_model.safetensors", len(trainer.vocabulary.tokens), "cpu")
    rounding = (recipe.tower.see(again, rows) - features_of).abs().mean()
    moved_by = (features_of - rows[..., :WIDTH]).abs().mean()
    assert moved_by > 10 * rounding if rate else rounding == 0
    whole = recipe.trunk.overlaid(trunk, shipped)
    assert torch.equal(whole.conv_head.weight, shipped[recipe.trunk.PREFIX + "conv_head.weight"].float())
    assert torch.equal(trunk.conv_head.weight, before["conv_head.weight"])


def moved_checkpoint(recipe, trainer) -> Path:
    """A checkpoint whose trunk is far from what it was."""
    file = trainer.args.out
    with torch.no_grad():
        trainer.model.visual.trunk.conv_head.weight.mul_(1.3)
    save_file(trainer.model.state_dict(), file, metadata=recipe.trunk.said(trainer.model.visual.trunk))
    return file


def test_everything_is_measured_on_what_the_trained_stages_see(recipe, trunk, maps, tmp_path, monkeypatch):
    """The same as of a frozen model whose cached features came out of those stages; and so from the command line."""
    monkeypatch.setattr(recipe.choose, "SELECTED", 2)
    monkeypatch.setattr(recipe.tower, "SCALES", recipe.tower.SCALES[::20])
    file = moved_checkpoint(recipe, trainer := run_of(recipe, maps, tmp_path, "--trunk-stages", "1"))
    words, (data, found) = trainer.vocabulary, maps
    model = recipe.choose.load_checkpoint(file, len(words.tokens), "cpu")
    wide = recipe.bank.Bank(found, list(CLASSES), "cpu", stages=1, training=False)
    plain = recipe.bank.Bank(found, list(CLASSES), "cpu")
    for name, s in wide.sets.items():
        seen = {k: recipe.tower.see(model, getattr(s, k)) for k in ("held_views_MVF", "held_described_MAF")}
        plain.sets[name] = replace(plain.sets[name], **seen)
    flat = copy.deepcopy(model)
    flat.visual.trunk = torch.nn.Identity()
    projected: list[list[torch.Tensor]] = []
    for module in (recipe.choose, recipe.export):
        monkeypatch.setattr(module, "project", lambda m, x, real=module.project: projected[-1].append(x) or real(m, x))
    results, scales = [], []
    for m, bank in ((model, wide), (flat, plain)):
        projected.append([])
        results.append(recipe.choose.measure(m, bank, words, CLASSES, [1.0], 4, list(CLASSES), ["pets"]))
        scales.append(recipe.export.held_out_scale(m, bank, words, CLASSES, prototypes=50))
    for seen, expected in zip(*projected, strict=True):
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-4)
    assert results[0]["flowers"]["all"] == pytest.approx(results[1]["flowers"]["all"], rel=1e-4)

    torch.save(trunk.state_dict(), weights := tmp_path / "trunk.pth")
    out, told = tmp_path / "model", tmp_path / "told.json"
    common = ["--data", str(data), "--features", str(found), "--device", "cpu"]
    argv = [
        "export.py",
        *common,
        "--checkpoint",
        str(file),
        "--out",
        str(out),
        "--factor",
        "1",
        "--weights",
        str(weights),
    ]
    monkeypatch.setattr(sys, "argv", argv)
    recipe.export.main()
    assert load_file(out / "open_clip_model.safetensors")["logit_scale"].exp().item() == pytest.approx(
        scales[0], rel=2e-3
    )
    monkeypatch.setattr(sys, "argv", ["choose.py", *common, "--model", str(out), "--factors", "1", "--out", str(told)])
    recipe.choose.main()
    assert json.loads(told.read_text())["flowers"]["all"]["nll"] == pytest.approx(
        results[0]["flowers"]["all"]["nll"], rel=0.01
    )


def test_names_are_measured_on_the_checkpoints_own_trunk(recipe, trunk, maps, tmp_path, monkeypatch, capsys):
    file = moved_checkpoint(recipe, run_of(recipe, maps, tmp_path, "--trunk-stages", "1"))
    first = {"classifier.weight": torch.zeros(1000, WIDTH), "classifier.bias": torch.eye(1000)[0]}
    torch.save(trunk.state_dict() | first, tmp_path / "trunk.pth")
    data = shutil.copytree(maps[0], tmp_path / "data")
    for k in range(3):
        (folder := data / "imagenet-sample" / f"{k:04d}").mkdir(parents=True)
        Image.new("RGB", (40, 30), (80 * k, 255 - 80 * k, 90)).save(folder / "photo.png")
    argv = ["measure_names.py", "--data", str(data), "--checkpoint", str(file), "--device", "cpu"]
    lines = []
    for switch in ([], ["--no-own-trunk"]):
        monkeypatch.setattr(sys, "argv", [*argv, "--trunk-weights", str(tmp_path / "trunk.pth"), *switch])
        recipe.names.main()
        lines.append(re.findall(r"of 3 photos right, mean confidence ([\d.]+)%, NLL ([\d.]+)", capsys.readouterr().out))
    assert [len(x) for x in lines] == [2, 2]
    assert lines[0] != lines[1]


def test_maps_of_other_views_are_refused_and_removed(recipe, maps, tmp_path, monkeypatch):
    shutil.copytree(maps[1], tmp_path / "f")
    file = tmp_path / "f" / recipe.bank.maps_file("pets", 1)
    save_file({k: v[1:] if k == "views" else v for k, v in load_file(file).items()}, file)
    told = r"pets-maps-1\.safetensors has other views than pets\.safetensors: make both in one run of features\.py"
    with pytest.raises(SystemExit, match=told):
        recipe.bank.load_set(tmp_path / "f", "pets", "cpu", stages=1)
    seen = []

    def spawn(work, args, nprocs, join):
        seen.append((args[0].stages, sorted(f.name for f in (tmp_path / "f").iterdir())))
        raise KeyboardInterrupt

    monkeypatch.setattr(recipe.features.mp, "spawn", spawn)
    argv = ["features.py", "--data", str(maps[0]), "--out", str(tmp_path / "f"), "--stages", "2", "1", "2"]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(KeyboardInterrupt):
        recipe.features.main()
    kept = {"captions", "classifier", "caltech", "flowers", "pets"}
    assert seen == [([1, 2], sorted(f"{name}.safetensors" for name in kept))]


def test_a_left_out_set_is_seen_through_the_trained_stages(recipe, maps, tmp_path, monkeypatch):
    """And its training photos have no maps."""
    data, found = maps
    bank = recipe.bank.Bank(found, ["pets", "flowers"], "cpu", stages=1).with_set(found, "caltech")
    assert bank.sets["caltech"].views_NVF.shape == (28, 3, WIDTH)
    assert bank.sets["caltech"].held_views_MVF.shape == (14, 3, WIDTH + SIDE * SIDE * 192)
    assert bank.sets["flowers"].views_NVF.untyped_storage().data_ptr() == bank.views.untyped_storage().data_ptr()
    monkeypatch.setattr(recipe.choose, "SELECTED", 2)
    monkeypatch.setattr(recipe.tower, "SCALES", recipe.tower.SCALES[::20])
    monkeypatch.setitem(recipe.ablate.OTHER_FACTORS, True, ())
    monkeypatch.setitem(recipe.ablate.ALL, "full", ["--pairs", "50", *ALONE])
    switches = ["--pairs", "50", "--trunk-stages", "1", "--trunk-lr", "0.1", *ALONE]
    monkeypatch.setitem(recipe.ablate.ALL, "last stage, 1e-5", switches)
    argv = ["ablate.py", "--data", str(data), "--features", str(found), "--out", str(tmp_path), "--device", "cpu"]
    argv += ["--steps", "2", "--seeds", "0", "--leave-out", "caltech", "--variants", "full", "last stage, 1e-5"]
    monkeypatch.setattr(sys, "argv", argv)
    recipe.ablate.main()
    frozen, moved = (
        json.loads((tmp_path / f"{name}-0.json").read_text())["caltech"]["factor 0.25"]["zeroshot"]["nll"]
        for name in ("full", "last_stage_1e-5")
    )
    assert moved != pytest.approx(frozen, rel=1e-4)


def test_features_and_maps_are_of_the_same_views(recipe, trunk, pictures, tmp_path, monkeypatch):
    for module in (recipe.features, recipe.photos):
        monkeypatch.setattr(module, "SETS", {"pets": recipe.photos.SETS["pets"]})
    monkeypatch.setattr(recipe.features, "VIEWS", 3)
    monkeypatch.setattr(recipe.features, "CHANGES", list(recipe.features.CHANGES)[:2])
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    pictures.weights, pictures.out, pictures.crops, pictures.held_out = tmp_path / "trunk.pth", tmp_path, 1, 0.34
    torch.save(trunk.state_dict(), pictures.weights)
    pictures.stages = [1]
    recipe.features.work(0, pictures)
    found = {k: recipe.features.gather(pictures, "pets", k) for k in (0, 1)}
    photos = recipe.photos.read_split(pictures.data, "pets", "train")
    first = recipe.photos.held_out(photos, 0.34).tolist().index(False)
    views, described = recipe.features.photo_features(trunk, photos[first], 1, "0/pets", [])[0]
    assert torch.equal(found[0]["views"][0], views)
    assert torch.equal(found[0]["described"][0], described)
    assert found[0]["labels"][0] == photos[first].label
    assert set(found[1]) == {"views", "described", "held_views", "held_described"}
    tail = recipe.trunk.Tail(trunk, 1)
    for kind, shape in {"views": (6, 2), "described": (6, 2), "held_views": (3, 3), "held_described": (3, 2)}.items():
        assert found[0][kind].shape == (*shape, WIDTH)
        with torch.inference_mode():
            again = tail(torch.cat([found[0][kind], found[1][kind]], -1))
        torch.testing.assert_close(again, found[0][kind].float(), rtol=5e-3, atol=2e-3)
