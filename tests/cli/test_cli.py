"""Every verb end to end on small generated photos, and what the command line says when something is wrong."""

from __future__ import annotations

import json

import numpy as np
import open_clip
import pytest
import torch
from open_clip.model import CLIP
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

import cots
from cots.cli import app, main

CLASSES = ["cat", "dog", "sports car"]
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
        for i in range(4):
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


@pytest.fixture(scope="module")
def finished(world):
    out = world / "runs" / "x"
    told = cli(
        "run", "--model", f"local-dir:{world / 'model'}", "--data", world / "data", "--datasets", "pets",
        "--methods", "zeroshot,tpt,tpt+sals,tpt+cots,tpt+ecots", "--seeds", "0,1", "--out", out, "--device", "cpu",
    )  # fmt: skip
    assert "next: cots report" in told
    return out


def test_run_then_report(finished):
    told = cli("report", finished, "--resamples", "20")
    assert "tpt+ecots" in told
    for name in ("report.html", "report.md", "report.tex", "report.csv"):
        assert (finished / "report" / name).stat().st_size > 500
    assert list((finished / "report" / "figures").glob("*.pdf"))


def test_part_of_a_grid_can_be_run_alone(finished, world):
    before = cots.bench.Run.open(finished).records("pets", "tpt", seed=0).confidence
    told = cli(
        "run", "--model", f"local-dir:{world / 'model'}", "--data", world / "data", "--datasets", "pets",
        "--methods", "tpt+cor", "--seeds", "1", "--out", finished, "--device", "cpu",
    )  # fmt: skip
    assert "done:" in told
    run = cots.bench.Run.open(finished)
    assert not run.complete, "seed 0 of the new method is not there yet"
    assert np.array_equal(run.records("pets", "tpt", seed=0).confidence, before)


def test_the_same_command_changes_nothing(finished, world):
    before = {f: f.read_bytes() for f in finished.rglob("*.safetensors")}
    cli(
        "run", "--model", f"local-dir:{world / 'model'}", "--data", world / "data", "--datasets", "pets",
        "--methods", "zeroshot,tpt,tpt+sals,tpt+cots,tpt+ecots", "--seeds", "0,1", "--out", finished, "--device", "cpu",
    )  # fmt: skip
    assert before == {f: f.read_bytes() for f in finished.rglob("*.safetensors")}


def test_figures_of_a_run_match_the_stages_by_hand(finished, world):
    records = cots.bench.Run.open(finished).records("pets", "tpt+cots", seed=1)
    backbone = cots.load(f"local-dir:{world / 'model'}", device="cpu")
    task = cots.Task(backbone, CLASSES)
    settings = cots.ViewSettings.from_preprocess(backbone.preprocess, n=64, augmix=True)
    for place, name in enumerate(records.ids[:3]):
        image = cots.read_image(world / "data" / "oxford_pets" / "images" / name, orient=False, flatten=False)
        views = cots.make_views(image, settings, cots.sample_seed(1, "pets", name))
        adapted = cots.adapt("tpt", backbone.encode_images(views).half(), task)
        expected = cots.calibrate(adapted.logits, adapted.zero_shot_logits)
        np.testing.assert_allclose(records.probabilities[place], expected.probabilities, atol=2e-3)
        assert records.tau[place] == pytest.approx(float(expected.tau), rel=5e-2)


def test_compare_and_draw_beside_the_paper(finished, world):
    told = cli("paper", "compare", finished, "table:fine-grained")
    assert "paper" in told
    assert "tpt+cots" in told
    assert "|" in cli("paper", "compare", finished, "table:fine-grained", "--markdown")
    cli(
        "paper", "run", "figure:reliability", "--data", world / "data", "--model", f"local-dir:{world / 'model'}",
        "--datasets", "pets", "--seeds", "0", "--limit", "6", "--out", world / "runs" / "figure",
    )  # fmt: skip
    cli("paper", "draw", world / "runs" / "figure", "figure:reliability", "--formats", "svg")
    assert list((world / "runs" / "figure").rglob("*.svg"))


def test_validate_says_what_is_missing(world):
    told = cli("validate", "--data", world / "data", code=1)
    assert "3669" in told
    assert "12" in cli("validate", world / "photos")
    told = cli("validate", "nonsense", "--data", world / "data", code=1)
    assert "nonsense" in told


def test_own_data_in_one_flag(world):
    out = world / "runs" / "own"
    cli(
        "run", "--model", f"local-dir:{world / 'model'}", "--datasets", world / "photos", "--methods", "zeroshot",
        "--out", out, "--limit", "5", "--quiet",
    )  # fmt: skip
    run = cots.bench.Run.open(out)
    assert len(run.records(run.datasets[0], "zeroshot", seed=0)) == 5


def test_a_config_file(world, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        f"model = 'local-dir:{world / 'model'}'\ndata = '{world / 'data'}'\ndatasets = ['pets']\n"
        f"methods = ['zeroshot', 'ctpt']\nlimit = 3\nout = '{tmp_path / 'a'}'\n[settings.ctpt]\nweight = 7.0\n"
    )
    told = cli("run", "--config", file, "--methods", "ctpt", "--device", "cpu")
    assert "weight 7.0" in told
    assert cots.bench.Run.open(tmp_path / "a").methods == ("ctpt",)


def test_lists(world):
    assert "ViT-B-16/openai" in cli("ls", "models")
    assert cli("ls", "datasets").count("images") == 15
    assert "ecots" in cli("ls", "methods")
    assert "table:imagenet-variants" in cli("ls", "experiments")
    assert cli("paper", "ls") == cli("ls", "experiments")
    assert {line.split()[0] for line in cli("paper", "ls").splitlines()} == set(cots.paper.EXPERIMENTS)
    assert "imagenet-a" in cli("paper", "ls", "table:imagenet-variants")
    assert cli("--version").count(".") >= 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--datasets", "pets", "--methods", "tpt"], "out"),
        (["run", "--datasets", "pts", "--methods", "tpt", "--out", "x", "--data", "."], "pets"),
        (["run", "--datasets", "pets", "--methods", "tppt", "--out", "x"], "Did you mean 'tpt'"),
        (["report", "nowhere"], "nowhere"),
        (["paper", "compare", "nowhere", "table:nothing"], "table:"),
        (["validate"], "--data"),
    ],
)
def test_errors_are_one_message(words, message, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["cots", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    told = capsys.readouterr().err
    assert told.startswith("cots: ")
    assert message in told
    assert "Traceback" not in told


def test_ctrl_c_says_that_the_run_goes_on(monkeypatch, capsys):
    def interrupted(config):
        raise KeyboardInterrupt

    monkeypatch.setattr("cots.bench.plan", interrupted)
    monkeypatch.setattr("sys.argv", ["cots", "run", "--datasets", "pets", "--methods", "tpt", "--out", "x"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "cots: stopped. The same command goes on where it was.\n"


def test_tokenizer_of_the_tiny_model_is_clip(world):
    backbone = cots.load(f"local-dir:{world / 'model'}", device="cpu")
    assert torch.equal(backbone.tokenize(["a cat"]).cpu(), open_clip.SimpleTokenizer(context_length=20)(["a cat"]))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError("Unable to allocate 46.6 TiB"), "not enough memory (Unable to allocate 46.6 TiB)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "give fewer views"),
        (OSError(28, "No space left on device"), "make room"),
    ],
)
def test_what_the_machine_lacks_is_one_message(error, told, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["cots", "paper", "ls"])
    monkeypatch.setattr("cots.cli._app.app", lambda: (_ for _ in ()).throw(error))
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    assert told in capsys.readouterr().err


def test_other_failures_keep_their_traceback(monkeypatch):
    monkeypatch.setattr("cots.cli._app.app", lambda: (_ for _ in ()).throw(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        main()


@pytest.mark.parametrize(("verb", "goes_on"), [("run", True), ("report", False)])
def test_an_interrupted_command_says_what_is_true_of_it(verb, goes_on, monkeypatch, capsys, tmp_path):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cots.bench.RunConfig", stop)
    monkeypatch.setattr("cots.bench.Run.open", stop)
    monkeypatch.setattr("sys.argv", ["cots", verb, *(["x"] if verb == "report" else ["--out", "x"])])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 130
    err = capsys.readouterr().err
    assert "cots: stopped." in err
    assert ("The same command goes on" in err) == goes_on


@pytest.mark.parametrize("device", ["tpu", "cuda:99"])
def test_a_device_that_is_not_there_is_named(device):
    with pytest.raises(cots.InputError, match=f"device '{device}' cannot be used .*: give cpu, or leave it out"):
        cots.load("mini", device=device)
