"""Runs from generated images to records: the figures are those of the stages by hand, and the folder says how."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.models import tiny
from support.runs import COLUMNS, METHODS, config, figures, photos

import cots
from cots import bench
from cots.adapters import ADAPTERS
from cots.calibrators import CALIBRATORS
from cots.data import PROTOCOLS, Dataset, Sample


def by_hand(dataset: Dataset, method: str, seed: int, indices, batch_size: int, **settings) -> dict[str, np.ndarray]:
    """What the stages give, one batch of consecutive samples after the other, without cots.bench."""
    backbone, (adapter, _, calibrator) = tiny("vit"), method.partition("+")
    task = cots.Task(backbone, dataset.classes)
    view_settings = cots.ViewSettings.from_preprocess(backbone.preprocess, n=6, augmix=True)
    columns: dict[str, list] = {name: [] for name in COLUMNS}
    state = None
    for start in range(0, len(indices), batch_size):
        rows = indices[start : start + batch_size]
        pixels = []
        for i in rows:
            image = cots.read_image(dataset.read(i), orient=False, flatten=False)
            pixels.append(
                cots.make_views(image, view_settings, cots.sample_seed(seed, "photos", dataset.samples[i].id))
            )
        if adapter == "ttl":
            inputs = torch.stack(pixels)
        else:
            inputs = torch.stack([backbone.encode_images(p).half() for p in pixels]).float()
        extra = {"state": state} if adapter.startswith("tda") else {"seed": seed} if adapter == "ttl" else settings
        adapted = cots.adapt(adapter, inputs, task, **extra)
        state = adapted.state
        result = cots.calibrate(adapted.logits, adapted.zero_shot_logits, calibrator or "none", alpha=task.alpha)
        columns["label"] += [dataset.samples[i].label for i in rows]
        for name in COLUMNS[1:]:
            columns[name] += list(getattr(result, name).numpy())
    return {name: np.array(values) for name, values in columns.items()}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Dataset:
    return photos(tmp_path_factory.mktemp("data") / "photos")


@pytest.fixture(scope="module")
def finished(dataset, tmp_path_factory) -> bench.Run:
    return bench.run(config(dataset, tmp_path_factory.mktemp("runs") / "x", seeds=(0, 1)))


@pytest.mark.parametrize("method", METHODS)
def test_records_are_what_the_stages_give(dataset, finished, method):
    for seed in (0, 1):
        records = finished.records("photos", method, seed)
        expected = by_hand(dataset, method, seed, range(21), 4)
        assert records.ids == tuple(sample.id for sample in dataset.samples)
        for name in COLUMNS:
            np.testing.assert_array_equal(getattr(records, name), expected[name], err_msg=name)
        np.testing.assert_array_equal(records.correct, expected["prediction"] == expected["label"])
        assert records.failed == 0
        assert (records.milliseconds > 0).all()
        assert len(records) == 21


def test_seeds_change_views_and_only_ensembles_have_an_alpha(finished):
    first, second = (finished.records("photos", "tpt+cots", seed) for seed in (0, 1))
    assert not np.array_equal(first.probabilities, second.probabilities)
    assert first.alpha is None
    assert finished.records("photos", "tpt+ecots", 0).alpha == finished.dataset("photos")["alpha"]


def test_the_manifest_says_what_was_run(dataset, finished):
    manifest = json.loads((finished.folder / "manifest.json").read_text())
    assert manifest == finished.manifest
    assert (manifest["schema"], manifest["cots"], manifest["batch_size"]) == (1, "0.1.0", 4)
    assert manifest["model"]["weights_hash"] == tiny("vit").weights_hash
    assert manifest["versions"]["torch"]
    entry = finished.dataset("photos")
    assert (entry["n"], entry["views"], entry["augmix"], entry["average"]) == (21, 6, True, "own")
    assert entry["classes"] == ["car", "tabby cat", "tree"]
    assert entry["split_hash"] == dataset.split_hash
    assert entry["alpha"] == cots.Task(tiny("vit"), dataset.classes).alpha
    assert manifest["settings"]["photos"]["ctpt+cots"]["adapter"]["weight"] == 50
    assert finished.complete
    assert finished.missing() == []
    assert sorted(f.name for f in finished.folder.iterdir()) == ["DONE", "features", "manifest.json", "shards"]


def test_the_files_are_as_documented(finished):
    features = load_file(finished.folder / "features/photos/seed0/00000.safetensors")
    assert features["features"].dtype == torch.float16
    assert features["features"].shape == (21, 6, 12)
    shard = load_file(finished.folder / "shards/photos/seed1/tpt+cots/00002.safetensors")
    kinds = {name: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for name, tensor in shard.items()}
    assert kinds == {
        "label": ("int64", (5,)),
        "prediction": ("int64", (5,)),
        "confidence": ("float32", (5,)),
        "tau": ("float32", (5,)),
        "milliseconds": ("float32", (5,)),
        "probabilities": ("float32", (5, 3)),
        "views": ("int16", (5, 1)),
    }


def test_large_sets_can_be_read_piece_by_piece(finished):
    records = finished.records("photos", "tpt", 0)
    chunks = list(records.chunks())
    assert [len(chunk) for chunk in chunks] == [8, 8, 5]
    np.testing.assert_array_equal(np.concatenate(chunks), records.probabilities)
    assert records.views.shape == (21, 0)


@pytest.mark.parametrize("changes", [{"shard_size": 4}, {"shard_size": 64}, {"workers": 2, "shard_size": 12}])
def test_shards_and_workers_change_nothing(dataset, finished, tmp_path, changes):
    other = bench.run(config(dataset, tmp_path / "y", **changes))
    assert figures(other) == {key: value for key, value in figures(finished).items() if key[2] == 0}


def test_workers_that_cannot_share_memory_send_the_same_pixels(dataset, finished, tmp_path, monkeypatch):
    monkeypatch.setattr("cots.bench._loader.ViewSource._fits_shared_memory", lambda *args: False)
    other = bench.run(config(dataset, tmp_path / "y", methods=["tpt", "ttl+cots"], workers=1))
    expected = figures(finished)
    assert figures(other) == {key: expected[key] for key in figures(other)}


def test_batches_are_larger_on_a_gpu(tmp_path, monkeypatch):
    options = {"datasets": "pets", "methods": "tpt", "out": tmp_path / "x"}
    for available, more, batch in (
        (False, {}, 16),
        (True, {}, 64),
        (True, {"device": "cpu"}, 16),
        (False, {"device": "cuda:1"}, 64),
        (False, {"engine": "ray", "gpus_per_worker": 0.5}, 64),
        (True, {"model": tiny("vit")}, 16),
        (True, {"batch_size": 24}, 24),
    ):
        monkeypatch.setattr("torch.cuda.is_available", lambda available=available: available)
        made = bench.RunConfig(**options, **more)
        assert made.batch_size == batch
        assert made.shard_size is not None
        assert made.shard_size % batch == 0


def test_batch_sizes_differ_by_rounding_alone(dataset, finished, tmp_path):
    other = bench.run(config(dataset, tmp_path / "y", batch_size=16, shard_size=16))
    for method in METHODS:
        ours, theirs = (run.records("photos", method, 0) for run in (other, finished))
        np.testing.assert_allclose(ours.confidence, theirs.confidence, atol=2e-5)
        np.testing.assert_array_equal(ours.prediction, theirs.prediction)


def test_a_limit_is_spread_over_the_set(dataset, tmp_path):
    run = bench.run(config(dataset, tmp_path / "y", methods=["tpt+cots"], limit=6))
    records, indices = run.records("photos", "tpt+cots", 0), [i * 21 // 6 for i in range(6)]
    assert records.ids == tuple(dataset.samples[i].id for i in indices)
    np.testing.assert_array_equal(records.probabilities, by_hand(dataset, "tpt+cots", 0, indices, 4)["probabilities"])
    assert sorted(set(records.label)) == [0, 1, 2]
    # A limit above the number of samples is no limit.
    bench.run(config(dataset, tmp_path / "z", methods=["tpt"], limit=21))
    bench.run(config(dataset, tmp_path / "z", methods=["tpt"]))


def test_a_broken_image_is_a_record_with_its_error(tmp_path):
    broken = ("car/2.png", "tree/6.png")
    data = photos(tmp_path / "photos", broken=broken)
    good = [i for i, sample in enumerate(data.samples) if sample.id not in broken]
    run = bench.run(config(data, tmp_path / "y", workers=1))
    for method in METHODS:
        records = run.records("photos", method, 0)
        assert set(records.errors) == set(broken)
        assert "car/2.png" in records.errors["car/2.png"]
        assert (records.failed, len(records)) == (2, 19)
        assert records.ids == tuple(data.samples[i].id for i in good)
        assert np.isfinite(records.probabilities).all()
        assert records.views.shape[0] == 19
    # Its neighbours keep the batch that their places give them.
    third = by_hand(data, "tpt+cots", 0, [0, 1, 3], 4)
    np.testing.assert_array_equal(run.records("photos", "tpt+cots", 0).probabilities[:3], third["probabilities"])
    stored = load_file(run.folder / "shards/photos/seed0/tpt/00000.safetensors")
    assert int(stored["prediction"][2]) == -1
    assert bool(stored["probabilities"][2].isnan().all())


def test_data_that_is_gone_stops_the_run_instead_of_filling_it_with_errors(tmp_path):
    samples = [Sample(f"{i}.png", 0, str(tmp_path / f"{i}.png")) for i in range(70)]
    data = Dataset(name="gone", title="gone", classes=("car", "tree"), samples=samples)
    for methods in (["tpt"], ["ttl"]):
        with pytest.raises(cots.CotsError, match=r"Nor can the first 64 images of gone be read.*still where"):
            bench.run(config(data, tmp_path / methods[0], methods=methods, shard_size=64))
        assert not list((tmp_path / methods[0]).rglob("*.safetensors"))


def test_data_that_goes_away_in_between_stops_the_run(tmp_path, monkeypatch):
    data = photos(tmp_path / "photos")
    read, gone = Dataset.read, []
    monkeypatch.setattr(Dataset, "read", lambda self, i: read(self, i) if not gone else Path("/nowhere/x.png"))
    run = config(data, tmp_path / "y", methods=["ttl"])
    with pytest.raises(cots.CotsError, match="Nor can the first 21 images"):
        bench.run(run, lambda stage, dataset, seed, done, total: gone.append(1) if done == 12 else None)
    assert [f.name for f in (tmp_path / "y").rglob("*.safetensors")] == ["00000.safetensors"]
    gone.clear()
    assert bench.run(run).records("photos", "ttl", 0).failed == 0


def test_settings_come_from_the_method_the_protocol_and_the_config(dataset, tmp_path):
    pets = Dataset(**{**vars_of(dataset), "name": "pets", "protocol": PROTOCOLS["pets"]})
    variant = Dataset(**{**vars_of(dataset), "name": "imagenet-a", "protocol": PROTOCOLS["imagenet-a"]})
    both = config(pets, tmp_path / "y", datasets=[pets, variant], methods=["ctpt", "tda", "ttl+ecots"], views=None)
    resolved = both.resolved([pets, variant], tiny("vit"))
    fine, imagenet = resolved["settings"]["pets"], resolved["settings"]["imagenet-a"]
    assert (fine["ctpt"]["adapter"]["weight"], imagenet["ctpt"]["adapter"]["weight"]) == (50, 20)
    assert (fine["tda"]["adapter"]["positive"], imagenet["tda"]["adapter"]["positive"]) == ([2, 7], [2, 5])
    assert [entry["augmix"] for entry in resolved["datasets"]] == [True, False]
    assert [entry["views"] for entry in resolved["datasets"]] == [64, 64]
    assert [entry["average"] for entry in resolved["datasets"]] == ["fine-grained", "variants"]
    assert json.loads(json.dumps(resolved)) == resolved
    given = config(pets, tmp_path / "y", settings={"ctpt": {"weight": 3.0}}, methods=["ctpt+cots"], solver="exact")
    parts = given.resolved([pets], tiny("vit"))["settings"]["pets"]["ctpt+cots"]
    assert parts["adapter"]["weight"] == 3.0
    assert parts["calibrator"]["solver"] == "exact"
    assert parts["calibrator"]["steps"] == 50
    run = bench.run(config(dataset, tmp_path / "z", settings={"ctpt": {"weight": 3.0}}, methods=["ctpt"]))
    expected = by_hand(dataset, "ctpt", 0, range(21), 4, weight=3.0)
    np.testing.assert_array_equal(run.records("photos", "ctpt", 0).probabilities, expected["probabilities"])


def vars_of(dataset: Dataset) -> dict:
    return {name: getattr(dataset, name) for name in ("name", "title", "classes", "samples", "protocol")}


def test_views_are_encoded_once_and_logits_shared(dataset, tmp_path, monkeypatch):
    encoded, adapted = [], []
    encode, adapt = cots.Backbone.encode_images, cots.adapt
    monkeypatch.setattr(
        cots.Backbone,
        "encode_images",
        lambda self, pixels, **o: encoded.append(len(pixels)) or encode(self, pixels, **o),
    )
    monkeypatch.setattr("cots.bench._stream.adapt", lambda name, *a, **o: adapted.append(name) or adapt(name, *a, **o))
    bench.run(config(dataset, tmp_path / "y", methods=["tpt", "tpt+cots", "tpt+ecots", "ctpt", "zeroshot"]))
    assert encoded == [6] * 21
    assert sorted(adapted) == sorted(["tpt", "ctpt", "zeroshot"] * 6)


def test_a_cache_is_shared_between_runs_that_agree(dataset, finished, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    first = bench.run(config(dataset, tmp_path / "y", methods=["tpt"], cache=cache, seeds=(0, 1)))
    assert not (first.folder / "features").exists()
    assert len(list(cache.rglob("*.safetensors"))) == 2
    monkeypatch.setattr(cots.Backbone, "encode_images", None)
    second = config(dataset, tmp_path / "z", methods=["tpt", "tpt+cots"], cache=cache, batch_size=8, seeds=(0, 1))
    plan = bench.plan(second)
    assert plan.feature_bytes == 0
    np.testing.assert_allclose(
        plan.run().records("photos", "tpt", 1).confidence, finished.records("photos", "tpt", 1).confidence, atol=2e-5
    )
    for change in ({"views": 5}, {"augmix": False}, {"limit": 3}):
        assert bench.plan(config(dataset, tmp_path / "w", methods=["tpt"], cache=cache, **change)).feature_bytes > 0


def test_the_plan_counts_the_disk(dataset, tmp_path):
    plan = bench.plan(config(dataset, tmp_path / "y", methods=["tpt", "ttl"], seeds=(0, 1, 2)))
    assert plan.feature_bytes == 3 * 21 * 6 * 12 * 2
    assert not (tmp_path / "y").exists()
    text = plan.text()
    assert "21 samples, 3 classes, 6 views with AugMix" in text
    assert "9.07 kB of view features" in text
    assert "weights " + tiny("vit").weights_hash[:12] in text
    seen = []
    plan.run(lambda *event: seen.append(event))
    assert plan.feature_bytes == plan.record_bytes == 0
    assert [e for e in seen if e[0] == "views" and e[2] == 1] == [("views", "photos", 1, i, 21) for i in range(22)]
    assert [e[3] for e in seen if e[0] == "methods" and e[2] == 2][-1] == 42
    assert bench.plan(config(dataset, tmp_path / "ttl", methods=["ttl"])).feature_bytes == 0


def test_a_config_from_a_file(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        'datasets = ["pets", "dtd"]\nmethods = ["tpt", "ctpt"]\nout = "a"\n[settings.ctpt]\nweight = 20.0\n'
    )
    read = bench.RunConfig.from_toml(file, out="b", seeds=[0, 1, 1], limit=None)
    assert (read.datasets, read.out, read.seeds, read.limit) == (("pets", "dtd"), "b", (0, 1), None)
    assert read.settings == {"ctpt": {"weight": 20.0}}
    assert json.loads(json.dumps(read.as_dict()))["settings"] == {"ctpt": {"weight": 20.0}}
    file.write_text("dataset = 1")
    with pytest.raises(cots.InputError, match=r"Unknown key in .*run.toml: 'dataset'. Did you mean 'datasets'"):
        bench.RunConfig.from_toml(file)
    file.write_text("dataset = ")
    with pytest.raises(cots.InputError, match="not valid TOML"):
        bench.RunConfig.from_toml(file)
    with pytest.raises(cots.InputError, match=r"none.toml cannot be read"):
        bench.RunConfig.from_toml(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": []}, "methods is empty"),
        ({"datasets": ()}, "datasets is empty"),
        ({"methods": "tpt,tptt"}, "Unknown adapter 'tptt'. Did you mean 'tpt'"),
        ({"seeds": ()}, "seeds is empty"),
        ({"seeds": "0,x"}, "seeds must be whole numbers, 0 or more, not 'x'"),
        ({"batch_size": 0}, "batch_size must be a whole number, 1 or more"),
        ({"shard_size": 10}, "10 is no multiple of 4"),
        ({"limit": 0}, "limit must be a whole number, 1 or more"),
        ({"workers": -1}, "workers must be a whole number, 0 or more"),
        ({"precision": "bfloat16"}, "belong to cots.load"),
        ({"settings": {"ctp": {}}}, "Unknown method part in settings 'ctp'. Did you mean 'ctpt'"),
        ({"settings": {"ctpt": {"wait": 1}}}, "Unknown setting of adapter 'ctpt': 'wait'. Did you mean 'weight'"),
        ({"settings": {"tda": {"state": 1}}}, "The state of tda belongs to the run's stream"),
        ({"settings": {"ctpt": 3}}, "settings maps"),
        ({"solver": "exakt"}, "solver must be one of adam, exact"),
        ({"solver": "exact", "methods": "tpt"}, "has no effect: none of the methods fits a temperature"),
        ({"settings": {"cots": {"k": 99}}}, "k=99 is more than the 5 strong views"),
        ({"settings": {"ctpt": {"steps": -1}}}, "steps must be"),
        ({"classes": "x.txt", "datasets": "pets,dtd"}, "classes names the classes of one dataset"),
        ({"context": "none.pt"}, "none.pt"),
        ({"model": tiny("resnet"), "methods": "ttl"}, "ttl adapts the attention of a vision transformer"),
        ({"datasets": "petz", "data": "."}, "Unknown dataset 'petz'"),
        ({"model": "nonsense"}, "Unknown model 'nonsense'"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_is_written(dataset, tmp_path, changes, message):
    with pytest.raises(cots.InputError, match=message):
        bench.plan(config(dataset, tmp_path / "y", **changes)).run()
    assert not (tmp_path / "y").exists()


def test_a_run_needs_a_folder_of_its_own(dataset, tmp_path):
    with pytest.raises(cots.InputError, match="out is empty"):
        config(dataset, "")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(cots.InputError, match=r"holds 'notes.txt' but no run. Give a new or an empty folder"):
        bench.run(config(dataset, tmp_path))
    with pytest.raises(cots.CotsError, match=r"notes.txt could not be written \(File exists\)"):
        bench.run(config(dataset, tmp_path / "notes.txt"))
    assert [f.name for f in tmp_path.iterdir()] == ["notes.txt"]


def test_two_datasets_of_one_name_are_refused(dataset, tmp_path):
    with pytest.raises(cots.InputError, match="Two datasets are called 'photos'"):
        bench.run(config(dataset, tmp_path / "y", datasets=[dataset, dataset]))


def test_reading_what_is_not_there(finished, tmp_path):
    with pytest.raises(cots.InputError, match="does not exist: give the folder that a run was written to"):
        bench.Run.open(tmp_path / "none")
    with pytest.raises(cots.InputError, match=r"holds no manifest\.json"):
        bench.Run.open(tmp_path)
    with pytest.raises(cots.InputError, match=r"Unknown dataset in .*: 'photo'. Did you mean 'photos'"):
        finished.records("photo", "tpt", 0)
    with pytest.raises(cots.InputError, match=r"Unknown method in .*: 'tpt\+cot'. Did you mean 'tpt\+cots'"):
        finished.records("photos", "tpt+cot", 0)
    with pytest.raises(cots.InputError, match="has no seed 7; it has 0, 1"):
        finished.records("photos", "tpt", 7)


def test_methods_of_third_parties_run_too(dataset, tmp_path):
    @cots.adapter("counted")
    def counted(features, task, *, state=None, step=1):
        """Online: the n-th sample of the stream is n times surer."""
        logits = task.logit_scale * features @ task.text_features.T
        seen = (state or 0) + step * torch.arange(1, len(features) + 1)
        return cots.Adapted(zero_shot_logits=logits, logits=seen[:, None, None] * logits, state=int(seen[-1]))

    try:
        cut = config(dataset, tmp_path / "y", methods=["counted"])
        whole = bench.run(cut)
        expected = figures(whole)
        # Its state has no form on the disk, so its stream starts over; what is there is not written again.
        folder = whole.folder / "shards/photos/seed0/counted"
        kept = (folder / "00000.safetensors").stat().st_mtime_ns
        (folder / "00002.safetensors").unlink()
        assert figures(bench.run(cut)) == expected
        assert (folder / "00000.safetensors").stat().st_mtime_ns == kept
    finally:
        ADAPTERS.unregister("counted")


def test_an_adapter_and_a_calibrator_of_one_name_keep_their_settings_apart(dataset, tmp_path):
    def adapts(strength):
        def twin(features, task, *, strength=strength):
            logits = task.logit_scale * features @ task.text_features.T
            return cots.Adapted(zero_shot_logits=logits, logits=strength * logits)

        return twin

    cots.adapter("twin")(adapts(1.0))
    CALIBRATORS.register("twin")(lambda adapted, zero_shot, *, floor=0.5: (floor * adapted[:, 0]).softmax(-1))
    try:
        first = config(dataset, tmp_path / "y", methods=["twin+twin"], limit=2)
        assert "twin: strength 1.0\n  twin: floor 0.5\n" in bench.plan(first).text()
        bench.run(first)
        ADAPTERS.unregister("twin")
        cots.adapter("twin")(adapts(2.0))
        with pytest.raises(cots.InputError, match=r"strength of twin on photos: 1\.0, now 2\.0"):
            bench.run(first)
        with pytest.raises(cots.InputError, match="both an adapter and a calibrator of this run have that name"):
            config(dataset, tmp_path / "z", methods=["twin+twin"], settings={"twin": {"floor": 0.25}})
    finally:
        ADAPTERS.unregister("twin")
        CALIBRATORS.unregister("twin")
