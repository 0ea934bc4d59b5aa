"""Runs from generated images to records: equal to the stages called by hand, whatever the shards and workers."""

from __future__ import annotations

import dataclasses
import functools
import json

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file
from support import runs
from support.layouts import write_split
from support.models import mini, tiny
from support.runs import COLUMNS, METHODS, figures, photos, stream_order

import cots
from cots import bench
from cots.adapters import ADAPTERS
from cots.bench._manifest import differences
from cots.bench._schema import plain, read_as
from cots.bench._setup import open_setup
from cots.calibrators import CALIBRATORS
from cots.data import PROTOCOLS, Dataset

KINDS = ("tpt+ecots", "tda(soc)+cots", "ttl+cots")  # episodic, online, and of pixels
config = functools.partial(runs.config, augmix=True)
by_hand = functools.partial(runs.by_hand, augmix=True)
N = 9  # samples: a shard of 8 and one of 1, so that the last batch of 4 is incomplete


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Dataset:
    return photos(tmp_path_factory.mktemp("data") / "photos", N // 3)


@pytest.fixture(scope="module")
def finished(dataset, tmp_path_factory) -> bench.Run:
    return bench.run(config(dataset, tmp_path_factory.mktemp("runs") / "x"))


@pytest.fixture(scope="module")
def other(dataset, tmp_path_factory) -> bench.Run:
    """Under a second seed too, in another shard size, with views made by two processes."""
    options = {"methods": KINDS, "seeds": (0, 1), "workers": 2, "shard_size": 12}
    return bench.run(config(dataset, tmp_path_factory.mktemp("runs") / "y", **options))


@pytest.mark.parametrize("method", METHODS)
def test_records_equal_the_stages_by_hand(dataset, finished, other, method):
    for seed, run in ((0, finished), (1, other)) if method in KINDS else ((0, finished),):
        records = run.records("photos", method, seed)
        order = stream_order(dataset, seed) if method.startswith("tda") else range(N)
        expected = by_hand(dataset, method, seed, order, 4)
        assert records.ids == tuple(dataset.samples[i].id for i in order)
        for name in COLUMNS:
            np.testing.assert_array_equal(getattr(records, name), expected[name], err_msg=name)
        np.testing.assert_array_equal(records.correct, expected["prediction"] == expected["label"])
        assert (len(records), records.failed) == (N, 0)
        assert (records.milliseconds > 0).all()


def test_streams_in_list_order_when_asked_for(dataset, finished, tmp_path):
    assert len({tuple(stream_order(dataset, seed)) for seed in range(3)}) == 3
    listed = bench.run(config(dataset, tmp_path / "y", methods=["tda", "tpt"], stream_order="list"))
    records, expected = listed.records("photos", "tda", 0), by_hand(dataset, "tda", 0, range(N), 4)
    assert records.ids == tuple(sample.id for sample in dataset.samples)
    np.testing.assert_array_equal(records.probabilities, expected["probabilities"])
    assert listed.manifest.settings["photos"]["tda"].stream_order == "list"
    assert finished.manifest.settings["photos"]["tda+cots"].stream_order == "shuffled"
    assert listed.manifest.settings["photos"]["tpt"].stream_order is None
    with pytest.raises(cots.InputError, match='stream order of tda on photos: "list", now "shuffled"'):
        bench.run(config(dataset, tmp_path / "y", methods=["tda"]))
    # A manifest from before streams had an order means that of the list; episodic methods do not care.
    methods = listed.manifest.settings["photos"]
    old = replace(listed.manifest, settings={"photos": {m: replace(s, stream_order=None) for m, s in methods.items()}})
    new = bench.plan(config(dataset, tmp_path / "z", methods=["tda", "tpt"])).manifest
    assert differences(old, new) == ['stream order of tda on photos: "list", now "shuffled"']
    assert not differences(old, bench.plan(config(dataset, tmp_path / "z", methods=["tpt"])).manifest)


def test_a_dry_run_names_words_that_the_model_was_not_trained_on(dataset, tmp_path):
    """Planning is all that --dry-run does."""
    strange = dataclasses.replace(dataset, classes=("zyzzyva", *dataset.classes[1:]))
    with pytest.warns(cots.UntrainedWordWarning, match="zyzzyva"):
        bench.plan(config(strange, tmp_path / "z", model=mini(), methods=["zeroshot"]))
    assert not (tmp_path / "z").exists()


def test_published_names(tmp_path):
    write_split(tmp_path / "data", "food", classes=101, per_class=1)
    options = {"model": tiny("vit"), "data": tmp_path / "data", "methods": ["tpt"], "out": tmp_path / "y"}
    options |= {"published_names": True}
    entry = bench.plan(bench.RunConfig(datasets=["food"], **options)).manifest.datasets[0]
    assert entry.classes[15:18] == ("class 15", "class 17", "class 16")
    write_split(tmp_path / "data", "pets", classes=2)
    with pytest.raises(cots.InputError, match=r"--published-names\) only affects Food101"):
        bench.plan(bench.RunConfig(datasets=["pets"], **options))


def test_seeds_change_views_and_only_ensembles_have_an_alpha(finished, other):
    first, second = finished.records("photos", "tpt+ecots", 0), other.records("photos", "tpt+ecots", 1)
    assert not np.array_equal(first.probabilities, second.probabilities)
    assert first.alpha == second.alpha == finished.dataset("photos").alpha
    assert finished.records("photos", "tpt+cots", 0).alpha is None


def test_the_manifest_describes_the_run(dataset, finished):
    manifest = json.loads((finished.folder / "manifest.json").read_text())
    assert manifest.pop("cots_checksum").startswith("crc32:")
    assert manifest == plain(finished.manifest)
    assert (manifest["schema"], manifest["cots"], manifest["batch_size"]) == (1, "0.1.0", 4)
    assert manifest["model"]["weights_hash"] == tiny("vit").weights_hash
    assert manifest["versions"]["torch"]
    entry = finished.dataset("photos")
    assert (entry.n, entry.views, entry.augmix, entry.average) == (N, 6, True, "own")
    assert entry.classes == ("car", "tabby cat", "tree")
    assert entry.split_hash == dataset.split_hash
    assert entry.alpha == cots.Task(tiny("vit"), dataset.classes).alpha
    assert manifest["settings"]["photos"]["ctpt+cots"]["adapter"]["weight"] == 50
    assert sorted(f.name for f in finished.folder.iterdir()) == ["DONE", "features", "manifest.json", "shards"]


def test_files_have_the_documented_layout(finished):
    features = load_file(finished.folder / "features/photos/seed0/00000.safetensors")
    assert features["features"].dtype == torch.float16
    assert features["features"].shape == (N, 6, 12)
    shard = load_file(finished.folder / "shards/photos/seed0/tpt+cots/00001.safetensors")
    assert {name: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in shard.items()} == {
        "label": ("int64", (1,)),
        "prediction": ("int64", (1,)),
        "confidence": ("float32", (1,)),
        "tau": ("float32", (1,)),
        "milliseconds": ("float32", (1,)),
        "probabilities": ("float32", (1, 3)),
        "views": ("int16", (1, 1)),
    }


def test_shards_and_workers_change_nothing(finished, other):
    ours, theirs = figures(finished), figures(other)
    assert {key: ours[key] for key in ours if key[1] in KINDS} == {key: theirs[key] for key in theirs if not key[2]}


def test_batch_sizes_change_rounding_only(dataset, finished, tmp_path):
    larger = bench.run(config(dataset, tmp_path / "y", methods=KINDS, batch_size=16, shard_size=16))
    for method in KINDS:
        ours, theirs = (run.records("photos", method, 0) for run in (larger, finished))
        np.testing.assert_allclose(ours.confidence, theirs.confidence, atol=2e-5)
        np.testing.assert_array_equal(ours.prediction, theirs.prediction)


def test_a_limit_is_spread_over_the_dataset(dataset, tmp_path):
    run = bench.run(config(dataset, tmp_path / "y", methods=["tpt+cots"], limit=6))
    records, indices = run.records("photos", "tpt+cots", 0), [i * N // 6 for i in range(6)]
    assert records.ids == tuple(dataset.samples[i].id for i in indices)
    np.testing.assert_array_equal(records.probabilities, by_hand(dataset, "tpt+cots", 0, indices, 4)["probabilities"])
    # A limit above the number of samples is no limit.
    bench.run(config(dataset, tmp_path / "z", methods=["zeroshot"], views=2, limit=N))
    bench.run(config(dataset, tmp_path / "z", methods=["zeroshot"], views=2))


def test_settings_come_from_the_method_the_protocol_and_the_config(dataset, tmp_path):
    def named(name: str) -> Dataset:
        return Dataset(
            name=name, title=name, classes=dataset.classes, samples=dataset.samples, protocol=PROTOCOLS[name]
        )

    pets, variant = named("pets"), named("imagenet-a")
    both = config(
        pets,
        tmp_path / "y",
        datasets=[pets, variant],
        methods=["ctpt", "tda", "ttl+ecots", "onzeta"],
        views=None,
        augmix=None,
    )
    resolved = open_setup(both, [pets, variant], "cpu").manifest
    fine, imagenet = resolved.settings["pets"], resolved.settings["imagenet-a"]
    assert (fine["ctpt"].adapter["weight"], imagenet["ctpt"].adapter["weight"]) == (50, 20)
    assert (fine["tda"].adapter["positive"], imagenet["tda"].adapter["positive"]) == ([2, 7], [2, 5])
    streams = [(each["onzeta"].adapter["beta"], each["onzeta"].adapter["length"]) for each in (fine, imagenet)]
    assert streams == [(0.4, N), (0.8, N)]
    assert [(entry.views, entry.augmix) for entry in resolved.datasets] == [(64, True), (64, False)]
    assert [entry.average for entry in resolved.datasets] == ["fine-grained", "variants"]
    assert read_as(json.loads(json.dumps(plain(resolved))), bench.Manifest) == resolved
    given = config(pets, tmp_path / "y", settings={"ctpt": {"weight": 3.0}}, methods=["ctpt+cots"], solver="exact")
    made = open_setup(given, [pets], "cpu").manifest.settings["pets"]["ctpt+cots"]
    assert made.adapter["weight"] == 3.0
    assert (made.calibrator["solver"], made.calibrator["steps"]) == ("exact", 50)
    run = bench.run(config(dataset, tmp_path / "z", settings={"ctpt": {"weight": 3.0}}, methods=["ctpt"]))
    expected = by_hand(dataset, "ctpt", 0, range(N), 4, weight=3.0)
    np.testing.assert_array_equal(run.records("photos", "ctpt", 0).probabilities, expected["probabilities"])


def test_a_plan_writes_nothing_and_a_run_reports_progress(dataset, tmp_path):
    plan = bench.plan(config(dataset, tmp_path / "y", methods=["zeroshot", "tpt"], seeds=(0, 1)))
    assert not (tmp_path / "y").exists()
    text = plan.text()
    assert f"{N} samples, 3 classes, 6 views with AugMix" in text
    assert "weights " + tiny("vit").weights_hash[:12] in text
    seen = []
    plan.run(lambda *event: seen.append(event))
    assert [e for e in seen if e[0] == "views" and e[2] == 1] == [("views", "photos", 1, i, N) for i in range(N + 1)]
    assert [e[3] for e in seen if e[0] == "methods" and e[2] == 1][-1] == 2 * N


def test_a_run_needs_a_folder_and_dataset_names_of_its_own(dataset, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(cots.InputError, match=r"contains 'notes.txt' but no run. Use a new or empty folder"):
        bench.run(config(dataset, tmp_path, methods="zeroshot"))
    with pytest.raises(cots.CotsError, match=r"notes.txt could not be written \(File exists\)"):
        bench.run(config(dataset, tmp_path / "notes.txt", methods="zeroshot"))
    with pytest.raises(cots.InputError, match="Two datasets are called 'photos'"):
        bench.run(config(dataset, tmp_path, datasets=[dataset, dataset], methods="zeroshot"))
    assert [f.name for f in tmp_path.iterdir()] == ["notes.txt"]


def test_an_adapter_and_a_calibrator_of_one_name_keep_their_settings_apart(dataset, tmp_path):
    def adapts(strength):
        def same(batch, *, strength=strength):
            return cots.Adapted(zero_shot_logits=batch.zero_shot, logits=strength * batch.zero_shot)

        return same

    cots.adapter("same")(adapts(1.0))
    CALIBRATORS.register("same")(lambda adapted, zero_shot, *, floor=0.5: (floor * adapted[:, 0]).softmax(-1))
    try:
        first = config(dataset, tmp_path / "y", methods=["same+same"], limit=2)
        assert "same: strength 1.0\n  same: floor 0.5" in bench.plan(first).text()
        bench.run(first)
        ADAPTERS.unregister("same")
        cots.adapter("same")(adapts(2.0))
        with pytest.raises(cots.InputError, match=r"strength of same on photos: 1\.0, now 2\.0"):
            bench.run(first)
    finally:
        ADAPTERS.unregister("same")
        CALIBRATORS.unregister("same")
