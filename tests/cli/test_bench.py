"""`cots run`, `report`, `validate`, `ls` and `paper`, end to end on small generated photos."""

from __future__ import annotations

import hashlib
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from open_clip.model import CLIP
from PIL import Image
from safetensors.torch import save_file
from support.damage import flip
from typer.testing import CliRunner

import cots
from cots.adapters import ADAPTERS
from cots.calibrators import CALIBRATORS
from cots.cli import app
from cots.evaluate import LOGGERS

CLASSES = ["cat", "dog", "sports car"]
VIEWS = 12
MODEL_CFG = {
    "embed_dim": 12,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 16, "patch_size": 16, "head_width": 8},
    "text_cfg": {"context_length": 20, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with a tiny model, a folder of photos by class, and the same photos as OxfordPets in CoOp's layout."""
    root = tmp_path_factory.mktemp("world")
    model = root / "model"
    model.mkdir()
    (model / "open_clip_config.json").write_text(json.dumps({"model_cfg": MODEL_CFG, "preprocess_cfg": {}}))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        save_file(CLIP(**MODEL_CFG).state_dict(), model / "open_clip_model.safetensors")
    rng = np.random.default_rng(0)
    test = []
    (root / "data" / "oxford_pets" / "images").mkdir(parents=True)
    for label, name in enumerate(CLASSES):
        folder = root / "photos" / name.replace(" ", "_")
        folder.mkdir(parents=True)
        for i in range(2):
            photo = Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8))
            photo.save(folder / f"{i}.png")
            photo.save(root / "data" / "oxford_pets" / "images" / f"{label}_{i}.png")
            test.append([f"{label}_{i}.png", label, name])
    split = {"train": [], "val": [], "test": test}
    (root / "data" / "oxford_pets" / "split_zhou_OxfordPets.json").write_text(json.dumps(split))
    return root


def cli(*words, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def command(world, out, methods: str = "zeroshot,tpt,tpt+sals,tpt+cots,tpt+ecots", seeds: str = "0,1") -> list:
    places = ["--model", f"local-dir:{world / 'model'}", "--data", world / "data", "--datasets", "pets", "--out", out]
    return ["run", *places, "--methods", methods, "--seeds", seeds, "--views", VIEWS, "--device", "cpu"]


@pytest.fixture(scope="module")
def finished(world):
    out = world / "runs" / "x"
    output = cli(*command(world, out))
    assert "next: cots report" in output
    return out


def test_run_then_report(finished):
    output = cli("report", finished, "--resamples", "5", "--format", "md,csv", "--figures", "")
    assert "tpt+ecots" in output
    written = {file.name for file in (finished / "report").iterdir() if file.is_file()}
    assert {"report.md", "report.csv"} <= written
    assert not any(name.endswith((".html", ".tex")) for name in written)


def test_compare_methods(finished):
    pair = cli("compare", finished, "tpt+cots(steps=50)", "tpt", "--metric", "nll", "--resamples", "9")
    assert "tpt+cots" in pair.splitlines()[1]
    assert "Negative log-likelihood (NLL) in nats" in pair
    matrix = cli("compare", finished, "--resamples", "9")
    assert "of 1 dataset" in matrix
    assert "Holm's correction of 10 comparisons on datasets" in matrix
    error = CliRunner().invoke(app, ["compare", str(finished), "tpt"]).exception
    assert "A comparison needs two different methods" in str(error)
    listed = cli("compare", finished, "tpt+cots(steps=50,loss=l2),tpt", "--metric", "nll,ece", "--resamples", "9")
    assert pair.splitlines()[0] in listed.partition("Expected calibration error (ECE)")[0]
    error = CliRunner().invoke(app, ["compare", str(finished), str(finished)]).exception
    assert f"is a folder, not a method. To compare with another run: cots compare {finished} METHOD --with" in str(
        error
    )
    again = cli("compare", finished, "tpt", "tpt+cots", "--with", finished, "--resamples", "9")
    assert "difference" in again
    text = cli("report", finished, "--resamples", "5", "--format", "md", "--figures", "", "--baseline", "zeroshot")
    assert "report.md" in text


def test_part_of_a_grid_can_be_run_alone(finished, world):
    before = cots.bench.Run.open(finished).records("pets", "tpt", seed=0).confidence
    output = cli(*command(world, finished, "tpt+cor", "1"))
    assert "done:" in output
    run = cots.bench.Run.open(finished)
    assert not run.complete, "seed 0 of the new method is not there yet"
    assert np.array_equal(run.records("pets", "tpt", seed=0).confidence, before)


def test_the_same_command_changes_nothing(finished, world):
    before = {f: f.read_bytes() for f in finished.rglob("*.safetensors")}
    cli(*command(world, finished))
    assert before == {f: f.read_bytes() for f in finished.rglob("*.safetensors")}


def test_figures_of_a_run_match_the_stages_by_hand(finished, world):
    records = cots.bench.Run.open(finished).records("pets", "tpt+cots", seed=1)
    backbone = cots.load(f"local-dir:{world / 'model'}", device="cpu")
    task = cots.Task(backbone, CLASSES)
    settings = cots.ViewSettings.from_preprocess(backbone.preprocess, n=VIEWS, augmix=True)
    for place, name in enumerate(records.ids[:3]):
        image = cots.read_image(world / "data" / "oxford_pets" / "images" / name, orient=False, flatten=False)
        views = cots.make_views(image, settings, cots.sample_seed(1, "pets", name))
        adapted = cots.adapt("tpt", backbone.encode_images(views).half(), task)
        expected = cots.calibrate(adapted.logits, adapted.zero_shot_logits, solver="adam", rows="views")
        np.testing.assert_allclose(records.probabilities[place], expected.probabilities, atol=2e-3)
        assert records.tau[place] == pytest.approx(float(expected.tau), rel=5e-2)


def test_compare_and_draw_beside_the_paper(finished, world):
    output = cli("paper", "compare", finished, "table:fine-grained")
    assert "paper" in output
    assert "tpt+cots" in output
    assert "|" in cli("paper", "compare", finished, "table:fine-grained", "--markdown")
    cli(
        "paper", "run", "figure:scatter", "--data", world / "data", "--model", f"local-dir:{world / 'model'}",
        "--datasets", "pets", "--seeds", "0", "--limit", "3", "--out", world / "runs" / "figure", "--views", "12",
        "--no-augmix", "--template", "a picture of a {}.", "--solver", "exact", "--cache", world / "cache",
    )  # fmt: skip
    run = cots.bench.Run.open(world / "runs" / "figure")
    entry = run.dataset("pets")
    assert (entry.views, entry.augmix, entry.template) == (12, False, "a picture of a {}.")
    assert run.manifest.settings["pets"]["tpt+cots"].calibrator["solver"] == "exact"
    assert list((world / "cache").glob("pets-*"))
    assert "runs: " in cli("paper", "claims", world / "runs" / "figure")
    cli("paper", "draw", world / "runs" / "figure", "figure:scatter", "--formats", "svg")
    assert list((world / "runs" / "figure").rglob("*.svg"))


def test_validate_says_what_is_missing(world):
    output = cli("validate", "--data", world / "data", code=1)
    assert "3669" in output
    assert "images   6, 2 per class" in cli("validate", world / "photos")
    output = cli("validate", "nonsense", "--data", world / "data", code=1)
    assert "nonsense" in output


def test_own_data_in_one_flag(world):
    out, context = world / "runs" / "own", world / "ctx.safetensors"
    save_file({"ctx": torch.zeros(4, 16)}, context)
    cli(
        "run", "--model", f"local-dir:{world / 'model'}", "--datasets", world / "photos", "--methods", "zeroshot",
        "--out", out, "--limit", "5", "--quiet", "--views", "3", "--augmix", "--template", "{}.",
        "--context", context, "--stream-order", "list",
    )  # fmt: skip
    run = cots.bench.Run.open(out)
    assert len(run.records(run.datasets[0], "zeroshot", seed=0)) == 5
    entry = run.dataset(run.datasets[0])
    assert (entry.views, entry.augmix, entry.template) == (3, True, "{}.")
    assert entry.context == hashlib.sha256(context.read_bytes()).hexdigest()
    assert run.manifest.config.stream_order == "list"


def test_a_run_is_logged(world, tmp_path, monkeypatch):
    heard = []
    logger = SimpleNamespace(name="notes", start=lambda run, known: "here", close=lambda complete: None)
    logger.log = lambda dataset, method, seed, figures: heard.append((method, seed, figures["accuracy"]))
    monkeypatch.setitem(LOGGERS, "notes", lambda: logger)
    words = ["run", "--model", f"local-dir:{world / 'model'}", "--datasets", world / "photos", "--device", "cpu"]
    words += ["--methods", "zeroshot", "--out", tmp_path / "y", "--views", "2", "--log", "notes"]
    cli(*words)
    records = cots.bench.Run.open(tmp_path / "y").records("photos", "zeroshot", 0)
    assert heard == [("zeroshot", 0, records.correct.mean())]
    assert "0 damaged" in cli("validate", tmp_path / "y")
    for more, message in ((["--part", "1/2"], "--log has no effect with --part"), (["--log", "wandv"], "'wandb'")):
        with pytest.raises(cots.InputError, match=message):
            cli(*words, *more)


def test_a_config_file(world, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        f"model = 'local-dir:{world / 'model'}'\ndata = '{world / 'data'}'\ndatasets = ['pets']\n"
        f"methods = ['zeroshot', 'ctpt']\nlimit = 3\nout = '{tmp_path / 'a'}'\n[settings.ctpt]\nweight = 7.0\n"
    )
    output = cli("run", "--config", file, "--methods", "ctpt", "--device", "cpu", "--views", "4")
    assert "weight 7.0" in output
    assert cots.bench.Run.open(tmp_path / "a").methods == ("ctpt",)


def test_lists():
    assert "\nViT-B-16/openai " in cli("ls", "models")
    assert len(cli("ls", "datasets").splitlines()) == 16
    assert "\ntpt " in cli("ls", "methods")
    assert "\nece " in cli("ls", "metrics")
    assert cli("paper", "ls") == cli("ls", "experiments")
    assert {line.split()[0] for line in cli("paper", "ls").splitlines()[1:]} == set(cots.paper.EXPERIMENTS)
    assert "imagenet-a" in cli("paper", "ls", "table:imagenet-variants")
    assert cli("--version").count(".") >= 2


def test_methods_describe_themselves():
    listed = cli("ls", "methods")
    (line,) = [line for line in listed.splitlines() if line.startswith("ctpt ")]
    assert "C-TPT (episodic): TPT that also pushes" in line
    assert "Yoon et al., ICLR 2024" in line
    assert "weight=50.0" in line
    assert "TDA (online)" in listed
    markdown = cli("ls", "methods", "--markdown").splitlines()
    assert markdown[:2] == ["| adapter | summary | citation |", "| --- | --- | --- |"]
    names = {f"`{name}`" for name in (*ADAPTERS, *CALIBRATORS) if "(" not in name}
    assert {line.split(" | ")[0].removeprefix("| ") for line in markdown if " | " in line} >= names


def test_validate_checks_the_files_of_a_run(world):
    folder = world / "runs" / "checked"
    words = ["run", "--model", f"local-dir:{world / 'model'}", "--datasets", world / "photos", "--device", "cpu"]
    words += ["--methods", "zeroshot,tpt", "--out", folder, "--views", "4"]
    cli(*words)
    assert "5 files checked, 0 damaged" in " ".join(cli("validate", folder).split())
    shard, features = sorted(folder.rglob("tpt/*.safetensors"))[0], sorted(folder.rglob("features/**/*.safetensors"))[0]
    other = sorted(folder.rglob("zeroshot/*.safetensors"))[0]
    flip(shard)
    flip(features)
    other.unlink()
    output = cli("validate", folder, code=1)
    named = [f"damaged: {file.relative_to(folder)} (its checksum" for file in (shard, features)]
    for line in (*named, "missing: 1 shard of zeroshot"):
        assert line in output
    assert "Re-run the command of the run" in output
    with pytest.warns(UserWarning, match=r"is damaged .* recomputed"):
        cli(*words)
    assert "0 damaged" in cli("validate", folder)
    flip(folder / "manifest.json")
    output = cli("validate", folder, code=1)
    assert "manifest.json (its checksum does not match)" in output
    assert "Restore the manifest from a copy" in output


def test_unreadable_photos_are_counted_and_change_the_exit_status(world, tmp_path):
    shutil.copytree(world / "photos", tmp_path / "photos")
    for file in sorted(tmp_path.rglob("*.png"))[:2]:
        file.write_bytes(b"no photo")
    words = ["run", "--model", f"local-dir:{world / 'model'}", "--datasets", tmp_path / "photos", "--device", "cpu"]
    words += ["--methods", "zeroshot", "--out", tmp_path / "y", "--quiet", "--views", "4"]
    told = CliRunner().invoke(app, list(map(str, words)))
    assert (told.exit_code, told.stdout) == (3, "")
    assert "cots: 2 records contain errors; cots report lists them." in told.stderr
    told = CliRunner().invoke(app, [*map(str, words), "--allow-errors"])
    assert (told.exit_code, told.stdout) == (0, "")
    assert "cots: 2 records contain errors" in told.stderr
