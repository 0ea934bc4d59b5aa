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


def test_settings_in_the_names_of_methods(dataset, tmp_path):
    """Variants are methods of one run: their records are those of runs with the settings apart, bit for bit."""
    methods = ["tpt+cots(k=2)", "tpt+cots", "tpt(steps=2)+cots", "tda(soc,weight=2)", "tda(soc)"]
    run = bench.run(config(dataset, tmp_path / "x", methods=methods))
    assert run.methods == tuple(methods)
    assert run.manifest.settings["photos"]["tpt(steps=2)+cots"].adapter == {"steps": 2, "lr": 0.005, "rho": 0.1}
    apart = {"tpt+cots(k=2)": {"cots": {"k": 2}}, "tpt(steps=2)+cots": {"tpt": {"steps": 2}}}
    apart |= {"tda(soc,weight=2)": {"tda(soc)": {"weight": 2.0}}, "tpt+cots": {}}
    for number, (method, settings) in enumerate(apart.items()):
        plain = {"tpt+cots(k=2)": "tpt+cots", "tpt(steps=2)+cots": "tpt+cots", "tda(soc,weight=2)": "tda(soc)"}
        other = config(dataset, tmp_path / str(number), methods=[plain.get(method, method)], settings=settings)
        (expected,) = figures(bench.run(other)).values()
        found = figures(run)
        (key,) = [key for key in found if method in key]
        assert found[key] == expected
    # Adding a method to the folder keeps what is there; a written default is the plain method.
    before = {f: f.stat().st_mtime_ns for f in run.folder.glob("shards/**/*.safetensors")}
    more = bench.run(config(dataset, run.folder, methods="tpt+cots(steps=50),tpt+cots(k=2,loss=l1)"))
    assert more.methods == (*methods, "tpt+cots(k=2,loss=l1)")
    assert {f: f.stat().st_mtime_ns for f in before} == before
    assert bench.check_run(more.folder).ok


def test_a_default_is_kept_where_the_run_or_a_protocol_changes_it():
    given = config("pets", "x", methods=["ctpt(weight=50)", "tpt+cots(k=3)"], settings={"cots": {"k": 3}})
    assert given.methods == ("ctpt(weight=50)", "tpt+cots(k=3)")
    assert config("pets", "x", methods="tpt+cots(solver=adam),tpt(steps=1)", solver="exact").methods == (
        *("tpt+cots(solver=adam)", "tpt"),
    )
    assert config("pets", "x", methods="tpt+cots,tpt+cots(k=4)").parsed[1].correction == "cots(k=4)"


def test_a_folder_from_before_a_setting_existed_can_be_extended(dataset, tmp_path):
    """A setting that a manifest lacks had its default then."""
    run = bench.run(config(dataset, tmp_path / "x", methods=["tda(soc)"]))
    content = json.loads((run.folder / "manifest.json").read_text())
    for name in ("steps", "lr"):
        del content["settings"]["photos"]["tda(soc)"]["adapter"][name]
    shutil.rmtree(run.folder / "shards")
    shutil.rmtree(run.folder / "state", ignore_errors=True)
    write_json(run.folder / "manifest.json", {key: content[key] for key in content if key != "checksum"})
    old = bench.run(config(dataset, run.folder, methods=["tda(soc)"]))
    before = {f: f.stat().st_mtime_ns for f in old.folder.glob("shards/**/*.safetensors")}
    assert before
    new = bench.run(config(dataset, old.folder, methods=["tda(soc)", "tda(soc)+cots"]))
    assert new.complete
    assert {f: f.stat().st_mtime_ns for f in before} == before
    with pytest.raises(cots.InputError, match=r"steps of tda\(soc\) on photos: 1, now 2"):
        bench.run(config(dataset, old.folder, methods=["tda(soc)"], settings={"tda(soc)": {"steps": 2}}))
