"""Views that cannot be made, and features: encoded once, shared between methods and between runs that agree."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from support.models import tiny
from support.runs import by_hand, config, figures, photos, stream_order

import cots
from cots import adaptation, bench
from cots.data import Dataset, Sample
from cots.views import corrupt


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos", 3)


def test_views_are_encoded_once_for_all_methods(dataset, tmp_path, monkeypatch):
    encoded = []
    encode = cots.Backbone.encode_images
    monkeypatch.setattr(
        cots.Backbone,
        "encode_images",
        lambda self, pixels, **o: encoded.append(len(pixels)) or encode(self, pixels, **o),
    )
    bench.run(config(dataset, tmp_path / "y", methods=["tpt", "tpt+ecots", "ctpt", "zeroshot"]))
    assert encoded == [6] * 9


def test_single_samples_are_timed_after_a_warm_up(dataset, tmp_path, monkeypatch):
    """With batch_size=1: noise first, for encoder and methods, then one sample per pass, with the same results."""
    encoded, adapted = [], []
    encode, adapt = cots.Backbone.encode_images, adaptation.Pipeline.adapt
    monkeypatch.setattr(
        cots.Backbone,
        "encode_images",
        lambda self, pixels, **o: encoded.append(len(pixels)) or encode(self, pixels, **o),
    )
    monkeypatch.setattr(
        adaptation.Pipeline, "adapt", lambda self, name, batch: adapted.append(name) or adapt(self, name, batch)
    )
    plan = bench.plan(config(dataset, tmp_path / "y", methods=["tpt+cots", "tda"], batch_size=1, stream_order="list"))
    adapted.clear()
    run = plan.run()
    assert encoded == [6] * (3 + 9)
    assert adapted == ["tpt"] * (3 + 9) + ["tda"] * (3 + 9)
    for method in run.methods:
        records, expected = run.records("photos", method, 0), by_hand(dataset, method, 0, range(9), 1)
        np.testing.assert_array_equal(records.probabilities, expected["probabilities"])
        assert 0 < records.encoding < 1e4
    file = load_file(next((run.folder / "features").rglob("*.safetensors")))
    assert records.encoding == pytest.approx(float(file["encoding"].mean()))


def test_corrupted_photos(dataset, tmp_path):
    """Views of the corrupted photo, with a seed of its own; caches of other corruptions are not mixed up."""
    options = {"methods": ["zeroshot"], "cache": tmp_path / "cache", "corrupt": "gaussian_noise:5"}
    run = bench.run(config(dataset, tmp_path / "y", **options))
    backbone = tiny("vit")
    settings = cots.ViewSettings.from_preprocess(backbone.preprocess, n=6, augmix=False)
    about = (0, dataset.name, dataset.samples[4].id)
    image = cots.read_image(dataset.read(4), orient=False, flatten=False)
    noisy = corrupt(image, "gaussian_noise:5", cots.sample_seed(*about, "corruption"))
    expected = backbone.encode_images(cots.make_views(noisy, settings, cots.sample_seed(*about)))
    file = load_file(next((tmp_path / "cache").rglob("*.safetensors")))
    np.testing.assert_array_equal(file["features"][4].numpy(), expected.half().numpy())
    assert run.dataset("photos").corrupt == "gaussian_noise:5"
    assert "with gaussian_noise:5" in bench.plan(config(dataset, tmp_path / "y", **options)).text()
    bench.run(config(dataset, tmp_path / "z", **{**options, "corrupt": None}))
    assert len(list((tmp_path / "cache").iterdir())) == 2
    with pytest.raises(cots.InputError, match='corrupt of photos: "gaussian_noise:5", now "fog:1"'):
        bench.run(config(dataset, tmp_path / "y", **{**options, "corrupt": "fog:1"}))


def test_a_cache_is_shared_between_runs_that_agree(dataset, tmp_path, monkeypatch):
    cache, seeds = tmp_path / "cache", (0, 1)
    alone = bench.run(config(dataset, tmp_path / "x", methods=["zeroshot"], seeds=seeds))
    first = bench.run(config(dataset, tmp_path / "y", methods=["zeroshot"], cache=cache, seeds=seeds))
    assert not (first.folder / "features").exists()
    assert len(list(cache.rglob("*.safetensors"))) == 2
    assert figures(first) == figures(alone)
    monkeypatch.setattr(cots.Backbone, "encode_images", None)
    second = config(
        dataset, tmp_path / "z", methods=["zeroshot", "zeroshot+cots"], cache=cache, shard_size=4, seeds=seeds
    )
    found = figures(bench.run(second))
    assert {key: found[key] for key in figures(first)} == figures(first)
    for change in ({"views": 5}, {"augmix": True}, {"limit": 3}):
        with pytest.raises(TypeError, match="not callable"):  # has to encode
            bench.run(config(dataset, tmp_path / str(change), methods=["zeroshot"], cache=cache, **change))


def test_a_broken_image_becomes_an_error_record(tmp_path):
    broken, methods = ("car/2.png", "tree/2.png"), ("tpt", "tpt+cots", "tda(soc)+cots", "ttl")
    data = photos(tmp_path / "photos", 3, broken=broken)
    good = [i for i, sample in enumerate(data.samples) if sample.id not in broken]
    run = bench.run(config(data, tmp_path / "y", methods=methods, workers=1))
    for method in methods:
        records = run.records("photos", method, 0)
        assert set(records.errors) == set(broken)
        assert "car/2.png" in records.errors["car/2.png"]
        assert (records.failed, len(records)) == (2, 7)
        order = stream_order(data, 0) if method.startswith("tda") else good
        assert records.ids == tuple(data.samples[i].id for i in order if i in good)
        assert np.isfinite(records.probabilities).all()
        assert records.views.shape[0] == 7
    # Its neighbours stay in the batch of their position.
    third = by_hand(data, "tpt+cots", 0, [0, 1, 3], 4)
    np.testing.assert_array_equal(run.records("photos", "tpt+cots", 0).probabilities[:3], third["probabilities"])
    stored = load_file(run.folder / "shards/photos/seed0/tpt/00000.safetensors")
    assert int(stored["prediction"][2]) == -1
    assert bool(stored["probabilities"][2].isnan().all())


@pytest.mark.parametrize("method", ["zeroshot", "ttl"])
def test_missing_data_stops_the_run_instead_of_filling_it_with_errors(tmp_path, method):
    samples = [Sample(f"{i}.png", 0, str(tmp_path / f"{i}.png")) for i in range(70)]
    data = Dataset(name="gone", title="gone", classes=("car", "tree"), samples=samples)
    with pytest.raises(cots.CotsError, match=r"The first 64 images of gone cannot be read either.*still in place"):
        bench.run(config(data, tmp_path / "y", methods=[method], shard_size=64))
    assert not list((tmp_path / "y").rglob("*.safetensors"))


def test_data_that_goes_away_during_the_run_stops_it(tmp_path, monkeypatch):
    data = photos(tmp_path / "photos", 3)
    read, gone = Dataset.read, []
    monkeypatch.setattr(Dataset, "read", lambda self, i: read(self, i) if not gone else Path("/nowhere/x.png"))
    run = config(data, tmp_path / "y", methods=["ttl"])
    with pytest.raises(cots.CotsError, match="The first 9 images of photos cannot be read"):
        bench.run(run, lambda stage, dataset, seed, done, total: gone.append(1) if done == 8 else None)
    assert [f.name for f in (tmp_path / "y").rglob("*.safetensors")] == ["00000.safetensors"]
    gone.clear()
    assert bench.run(run).records("photos", "ttl", 0).failed == 0


# torch, told of the death while it reads, opens temporary files to see whether any are left; one may stay unclosed.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO name=:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a fork of this process")
def test_a_worker_that_dies_is_no_broken_image(tmp_path, monkeypatch):
    data, main, read = photos(tmp_path / "photos", 4), os.getpid(), Dataset.read

    def fatal(self, index):
        if os.getpid() != main and index == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return read(self, index)

    monkeypatch.setattr(Dataset, "read", fatal)
    with pytest.raises(cots.CotsError, match=r"A worker process that makes views died .*Lower workers or free"):
        bench.run(config(data, tmp_path / "y", methods=["zeroshot"], workers=1))
    assert not list((tmp_path / "y").rglob("*.safetensors"))
    assert bench.run(config(data, tmp_path / "y", methods=["zeroshot"])).records("photos", "zeroshot", 0).failed == 0
