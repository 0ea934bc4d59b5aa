"""Files of a run that were written for another place: named, set aside and computed again."""

from __future__ import annotations

import json
import shutil

import pytest
from msgspec.structs import replace
from support.runs import config, figures, photos

import cots
from cots import bench
from cots._checked import read_json, read_tensors, write_json, write_tensors
from cots.bench import _manifest
from cots.bench._binding import Bindings

METHODS = ["zeroshot", "tpt+cots", "tda"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos", 6)


@pytest.fixture(scope="module")
def made(dataset, tmp_path_factory):
    """Two runs with other settings, in one folder, which tests copy."""
    folder = tmp_path_factory.mktemp("runs")
    bench.run(config(dataset, folder / "x", methods=METHODS, seeds=(0, 1), views=2))
    bench.run(config(dataset, folder / "other", methods=METHODS, views=2, settings={"tpt": {"lr": 0.1}}))
    return folder


@pytest.fixture
def runs(made, tmp_path):
    return shutil.copytree(made, tmp_path / "runs")


@pytest.mark.parametrize("name", ["descriptions", "attributes"])
def test_a_setting_that_a_version_adds_leaves_earlier_files_in_place(made, monkeypatch, name):
    manifest = bench.Run.open(made / "x").manifest
    now = Bindings(manifest).shard("photos", "tpt+cots", 0, 0)
    given = replace(manifest, datasets=tuple(replace(entry, **{name: "of a file"}) for entry in manifest.datasets))
    assert Bindings(given).shard("photos", "tpt+cots", 0, 0).settings != now.settings
    assert Bindings(given).features("photos", 0, 0) == Bindings(manifest).features("photos", 0, 0)
    of_dataset = _manifest._of_dataset

    def earlier(entry):
        values = of_dataset(entry)
        del values[name]
        return values

    monkeypatch.setattr(_manifest, "_of_dataset", earlier)
    assert Bindings(manifest).shard("photos", "tpt+cots", 0, 0) == now


def without_binding(folder):
    """The run as cots 0.1.0 wrote it."""
    manifest = read_json(folder / "manifest.json")
    del manifest["id"]
    write_json(folder / "manifest.json", manifest)
    for file in folder.rglob("*.safetensors"):
        tensors, metadata = read_tensors(file, framework="pt")
        del metadata["binding"]
        write_tensors(file, tensors, metadata)


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("x/shards/photos/seed0/zeroshot/00000", "seed0/tpt+cots/00000", r"part zeroshot, not tpt\+cots"),
        ("x/shards/photos/seed1/tpt+cots/00000", "seed0/tpt+cots/00000", "seed 1, not 0"),
        ("x/shards/photos/seed0/zeroshot/00001", "seed0/zeroshot/00000", "index 1, not 0"),
        ("x/shards/photos/seed0/zeroshot/00001", "seed0/zeroshot/00007", "index 1, not 7"),
        ("other/shards/photos/seed0/tpt+cots/00000", "seed0/tpt+cots/00000", r"run \w{16}, not \w{16}"),
    ],
)
def test_a_shard_of_another_place(runs, dataset, source, target, reason):
    settings = config(dataset, runs / "x", methods=METHODS, seeds=(0, 1), views=2)
    whole, file = figures(bench.Run.open(runs / "x")), runs / f"x/shards/photos/{target}.safetensors"
    known = file.exists()
    shutil.copyfile(runs / f"{source}.safetensors", file)
    check = bench.check_run(runs / "x")
    assert [error.file for error in check.damaged] == [file]
    assert check.damaged[0].reason.startswith("it belongs to ")
    assert not check.ok
    if known:
        with pytest.raises(cots.CotsError, match=f"{file.name} is damaged .it belongs to {reason}"):
            figures(bench.Run.open(runs / "x"))
    with pytest.warns(UserWarning, match=f"it belongs to {reason}.*recomputed"):
        assert figures(bench.run(settings)) == whole
    assert bench.check_run(runs / "x").ok


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"seeds": [1]}, "seed 1, not 0"), ({"corrupt": "fog:5"}, "settings"), ({"augmix": True}, "settings")],
)
def test_features_of_another_place(dataset, tmp_path, shared, changes, reason):
    """Of another seed, of corrupted photos or with other views, in the run's folder or in a shared cache."""

    def settings(name, **changes):
        options = {"methods": ["zeroshot"], "views": 2, "cache": tmp_path / f"cache-{name}" if shared else None}
        return config(dataset, tmp_path / name, **{**options, **changes})

    def features(name):
        folder = tmp_path / (f"cache-{name}" if shared else f"{name}/features")
        return next(folder.rglob("*.safetensors"))

    whole = figures(bench.run(settings("x")))
    bench.run(settings("other", **changes))
    shutil.copyfile(features("other"), features("x"))
    if not shared:
        assert [error.file for error in bench.check_run(tmp_path / "x").damaged] == [features("x")]
    shutil.rmtree(tmp_path / "x" / "shards")
    with pytest.warns(UserWarning, match=rf"00000.safetensors is damaged \(it belongs to {reason}"):
        assert figures(bench.run(settings("x"))) == whole


def test_a_state_of_another_seed(runs, dataset):
    """A stream that was killed does not resume from the state of another stream."""

    def stop(stage, name, seed, done, total):
        if stage == "methods" and done >= 8 + 4:
            raise KeyboardInterrupt

    states = {}
    options = {"methods": ["tda"], "seeds": (0, 1), "views": 2}
    for seed in (0, 1):
        out = runs / f"seed{seed}"
        with pytest.raises(KeyboardInterrupt):
            bench.run(config(dataset, out, **{**options, "seeds": (seed,)}), stop)
        (states[seed],) = out.glob("state/photos/*/tda/*.safetensors")
    shutil.copyfile(states[1], states[0])
    with pytest.warns(UserWarning, match=r"is damaged \(it belongs to run .*recomputed"):
        again = bench.run(config(dataset, runs / "seed0", **{**options, "seeds": (0,)}))
    assert figures(again)["photos", "tda", 0] == figures(bench.Run.open(runs / "x"))["photos", "tda", 0]


def test_runs_of_0_1_0_open_and_resume(runs, dataset):
    whole = figures(bench.Run.open(runs / "x"))
    without_binding(runs / "x")
    assert bench.check_run(runs / "x").ok
    assert figures(bench.Run.open(runs / "x")) == whole
    shards = runs / "x/shards/photos/seed0/zeroshot"
    (shards / "00000.safetensors").unlink()
    settings = config(dataset, runs / "x", methods=METHODS, seeds=(0, 1), views=2)
    assert figures(bench.run(settings)) == whole
    shutil.copyfile(shards / "00001.safetensors", shards / "00000.safetensors")  # has other samples
    with pytest.warns(UserWarning, match=r"zeroshot/00000.safetensors is damaged \(it has other samples|it belongs to"):
        assert figures(bench.run(settings)) == whole


def test_a_shard_without_a_binding_is_not_of_a_new_run(runs, dataset):
    without_binding(runs / "other")
    file = runs / "x/shards/photos/seed0/tpt+cots/00000.safetensors"
    shutil.copyfile(runs / "other/shards/photos/seed0/tpt+cots/00000.safetensors", file)
    assert [error.reason for error in bench.check_run(runs / "x").damaged] == ["it is not from this run"]


@pytest.mark.parametrize("content", ["", "{}}", json.dumps({"cots_checksum": "crc32:00000000"})])
def test_a_damaged_done_is_named_and_written_again(runs, dataset, content):
    (runs / "x/DONE").write_text(content)
    check = bench.check_run(runs / "x")
    assert [error.file.name for error in check.damaged] == ["DONE"]
    settings = config(dataset, runs / "x", methods=METHODS, seeds=(0, 1), views=2)
    with pytest.warns(UserWarning, match="DONE is damaged"):
        bench.run(settings)
    assert bench.check_run(runs / "x").ok
