"""What may change between two commands on one folder, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.models import tiny
from support.runs import config, figures, photos

import cots
from cots import bench
from cots._checked import read_json, write_json
from cots.bench import _manifest


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos", 3)


@pytest.fixture(scope="module")
def finished(dataset, tmp_path_factory):
    return bench.run(config(dataset, tmp_path_factory.mktemp("runs") / "x", methods=["ctpt+cots"]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 8}, "batch_size: 4, now 8"),
        ({"views": 5}, "views of photos: 6, now 5"),
        ({"augmix": True}, "augmix of photos: false, now true"),
        ({"template": "a picture of a {}."}, r'template of photos: "a photo of a \{\}.", now "a picture of a \{\}."'),
        ({"limit": 8}, "limit of photos: null, now 8"),
        ({"settings": {"ctpt": {"weight": 7.0}}}, "weight of ctpt on photos: 50.0, now 7.0"),
        ({"methods": "ctpt", "settings": {"ctpt": {"weight": 7.0}}}, "weight of ctpt on photos: 50.0, now 7.0"),
        ({"solver": "exact"}, 'solver of cots on photos: "adam", now "exact"'),
        ({"model": tiny("vit", seed=1)}, r"model weights: \w{12}\.\.\., now \w{12}\.\.\."),
        ({"views": 5, "batch_size": 8}, "batch_size: 4, now 8; views of photos: 6, now 5"),
    ],
)
def test_a_change_that_changes_results_is_refused_by_name(dataset, finished, changes, message):
    before = {f: f.stat().st_mtime_ns for f in finished.folder.rglob("*") if f.is_file()}
    with pytest.raises(cots.InputError, match=f"x was run with other settings: {message}. Use the same settings"):
        bench.run(config(dataset, finished.folder, **{"methods": ["ctpt+cots"], **changes}))
    assert {f: f.stat().st_mtime_ns for f in finished.folder.rglob("*") if f.is_file()} == before


def test_another_split_is_refused(finished, tmp_path):
    with pytest.raises(cots.InputError, match=r"split \(samples, labels or class names\) of photos: "):
        bench.run(config(photos(tmp_path / "photos", 4), finished.folder, methods=["ctpt+cots"]))


def test_methods_seeds_and_datasets_can_be_added(dataset, tmp_path):
    methods = ("zeroshot", "tda", "tda+cots")
    expected = figures(bench.run(config(dataset, tmp_path / "x", methods=methods)))
    small = photos(tmp_path / "small", each=1)
    first = bench.run(config(dataset, tmp_path / "y", methods=methods[:2], shard_size=4))
    before = {f: f.stat().st_mtime_ns for f in first.folder.glob("shards/**/*.safetensors")}
    # The folder keeps its shard size, and what exists stays as it is.
    second = bench.run(config(dataset, first.folder, methods=methods, shard_size=64))
    assert (second.methods, second.manifest.shard_size) == (methods, 4)
    assert {f: f.stat().st_mtime_ns for f in before} == before
    assert figures(second) == expected
    third = bench.run(config(dataset, first.folder, methods=["zeroshot"], seeds=(0, 1)))
    assert not third.complete
    assert {(m.method, m.seed) for m in third.missing()} == {("tda", 1), ("tda+cots", 1)}
    with pytest.raises(cots.InputError, match=r"tda on photos with seed 1 is unfinished in .*: 3 of 3 shards are"):
        third.records("photos", "tda", 1)
    fourth = bench.run(config(dataset, first.folder, methods=methods, datasets=[dataset, small], seeds=(0, 1)))
    assert fourth.complete
    assert fourth.datasets == ("photos", "small")
    assert {key: value for key, value in figures(fourth).items() if key in expected} == expected


def test_another_environment_is_noted_and_warned_of(dataset, tmp_path, monkeypatch):
    run = bench.run(config(dataset, tmp_path / "y", methods=["zeroshot"]))
    monkeypatch.setattr(_manifest, "versions", lambda: {**run.manifest.versions, "torch": "9.9"})
    bench.run(config(dataset, run.folder, methods=["zeroshot"]))  # nothing to do, no warning
    with pytest.warns(UserWarning, match=r"resumes in another environment \(torch .* to 9\.9\)"):
        bench.run(config(dataset, run.folder, methods=["zeroshot", "zeroshot+cots"]))
    manifest = bench.Run.open(run.folder).manifest
    assert [entry.versions["torch"] for entry in manifest.resumed] == ["9.9"]
    assert manifest.versions == run.manifest.versions
    bench.run(config(dataset, run.folder, methods=["zeroshot+sals"]))  # warned of once


def test_folders_with_the_renderers_former_name_resume(dataset, tmp_path):
    run = bench.run(config(dataset, tmp_path / "y", methods=["zeroshot"]))
    content = read_json(run.folder / "manifest.json") | {"renderer": "torch"}
    del content["id"]
    write_json(run.folder / "manifest.json", content)
    old = bench.Run.open(run.folder).manifest
    assert _manifest.differences(old, replace(run.manifest, renderer="gpu")) == []
    assert _manifest.differences(old, run.manifest) == ['renderer: "gpu", now "pil"']


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"manifest.json is damaged \(not JSON: .*Restore it from a copy, or run into a new folder"),
        ("[]", r"manifest.json is damaged \(not a JSON object\)"),
        ("[" * 100_000, r"manifest.json is damaged \(nested too deeply"),
        ('{"schema": 1}', r"manifest.json is damaged \(cots is missing\)"),
        (json.dumps({"schema": 99}), "has schema 99; this cots reads schema 1"),
    ],
)
def test_an_unusable_manifest_is_left_alone(dataset, tmp_path, text, message):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(cots.CotsError, match=message):
        bench.Run.open(tmp_path)
    with pytest.raises(cots.CotsError, match=message):
        bench.run(config(dataset, tmp_path, methods=["zeroshot"]))
    assert (tmp_path / "manifest.json").read_text() == text


def test_a_manifest_of_0_1_0_opens_and_compares(tmp_path):
    file = Path(__file__).with_name("manifest-0.1.0.json")
    shutil.copyfile(file, tmp_path / "manifest.json")
    old = bench.Run.open(tmp_path).manifest
    assert (old.id, old.model.name, old.datasets[0].n, old.config.out) == ("", "tiny-vit", 6, "runs/x")
    # What comes from the run's seed and the task's alpha is not a setting.
    assert old.settings["photos"]["ttl"].adapter == {
        "steps": 1, "lr": 0.005, "rank": 16, "lora_alpha": 32.0, "blocks": 3,
    }  # fmt: skip
    assert "alpha" not in old.settings["photos"]["tpt+ecots"].calibrator
    small = photos(tmp_path / "photos", 2)
    options = {"methods": old.methods, "views": 2, "settings": {"tpt": {"lr": 0.01}}}
    new = bench.plan(config(small, tmp_path / "y", **options)).manifest
    model = replace(new.model, weights_hash=old.model.weights_hash)  # random weights of another version of torch
    assert _manifest.differences(old, replace(new, model=model)) == []
    assert _manifest.differences(replace(new, model=model), old) == []
    changed = replace(new, model=model, batch_size=8)
    assert _manifest.differences(old, changed) == ["batch_size: 4, now 8"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, r"batch_size must be a whole number >= 1, not 0"),
        ({"seeds": "0"}, r"seeds must be a list, not '0'"),
        ({"model": {"name": "x"}}, r"model.weights_hash is missing"),
        ({"nothing": 1}, r"nothing is unknown"),
        ({"methods": ["../x"]}, r"methods\[0\] must be printable text, without / if it names a file, not '../x'"),
        ({"methods": ["\ud800"]}, r"methods\[0\] must be printable text"),
        ({"created": None}, r"created must be text, not None"),
        ({"settings": {"photos": {"tpt": 3}}}, r"settings.photos.tpt must be a mapping, not 3"),
        ({"shard_size": 10**9, "methods": ["tpt"]}, r"settings of photos are missing"),
        ({"resumed": [{"cots": "0", "versions": {}, "threads": 1}]}, r"resumed\[0\].when is missing"),
    ],
)
def test_errors_in_a_manifest_name_the_key(tmp_path, change, message):
    content = json.loads(Path(__file__).with_name("manifest-0.1.0.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(content | change))
    with pytest.raises(cots.CotsError, match=rf"manifest.json is damaged \({message}"):
        bench.Run.open(tmp_path)
