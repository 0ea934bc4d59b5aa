"""What the driver of a cluster holds does not grow with the samples: they lie in a file, and shards are bytes."""

from __future__ import annotations

import pickle
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.runs import config, photos

import cots
from cots import bench
from cots.bench import _protocol
from cots.bench._numbers import Numbers
from cots.bench._paths import UrlPath
from cots.bench._samples import SampleFile, list_dataset, publish, write_samples
from cots.bench._shards import ShardWriter
from cots.data import Dataset, Sample, open_dataset
from cots.data._dataset import TarSlice

METHODS = ("tpt", "tpt+cots", "tda")
SHARD = 64


def listed(file: Path, count: int) -> Path:
    """A list of `count` images, of which the first is there."""
    file.parent.mkdir(parents=True)
    photos(file.parent / "images", 1)
    rows = [
        "path,label",
        "images/car/0.png,car",
        *(f"images/{i:07d}.png,{('car', 'tree')[i % 2]}" for i in range(count)),
    ]
    file.write_text("\n".join(rows[: count + 1]) + "\n")
    return file


class Loopback:
    """Stands in for Ray: one worker in this process, which writes the same records for every shard of a unit."""

    exceptions = SimpleNamespace(RayError=OSError)

    def __init__(self, out: Path, folder: Path) -> None:
        self.out, self.answers, self.units = out, {}, 0
        writer = ShardWriter(file=folder / "shard", ids=["a"] * SHARD, labels=[0] * SHARD, classes=2, first=0)
        for place in range(SHARD):
            writer.rows[place] = (torch.tensor(0), 0.5, 1.0, torch.tensor([0.5, 0.5]), torch.tensor([]), 1.0)
        writer.write()
        self.shard = (folder / "shard").read_bytes()

    def remote(self, **resources):
        actor = SimpleNamespace(
            place=self._method(lambda: ("here", 1)), prepare=self._method(self._prepare), work=self._method(self._work)
        )
        return lambda seat: SimpleNamespace(remote=lambda: actor)

    def _method(self, function):
        def call(*arguments):
            self.answers[answer := object()] = function(*arguments)
            return answer

        return SimpleNamespace(remote=call)

    def _prepare(self, config, settings):
        self.seen = [len(dataset.samples) for dataset in pickle.loads(config)]
        self.shards = -(-(self.seen[0] - 1) // SHARD)

    def _work(self, unit):
        self.units += 1
        methods = METHODS[2:] if unit.stream else METHODS[:2]
        folders = [self.out / "shards/list/seed0" / method for method in methods]
        folders += [] if unit.stream else [self.out / "features/list/seed0"]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            for shard in range(self.shards) if unit.stream else unit.shards:
                (folder / f"{shard:05d}.safetensors").write_bytes(self.shard)

    def wait(self, answers, num_returns, timeout):
        return answers[:1], answers[1:]

    def get(self, answer):
        return self.answers.pop(answer)

    def put(self, value):
        return pickle.dumps(value.datasets)

    def kill(self, actor, no_restart):
        return None

    def nodes(self):
        return [{"Alive": True, "NodeID": "here", "Resources": {"CPU": 1.0}}]

    def is_initialized(self):
        return True


def driver_peaks(folder: Path, count: int, monkeypatch) -> dict[str, int]:
    """Bytes that the driver of a run over `count` samples held at most, phase by phase."""
    file = listed(folder / "list.csv", count)
    ray = Loopback(folder / "run", folder)
    monkeypatch.setitem(sys.modules, "ray", ray)
    options = {"engine": "ray", "methods": METHODS, "views": 2, "shard_size": SHARD, "cpus_per_worker": 1}
    peaks: dict[str, int] = {}

    def phase_ends(name):
        peaks[name] = max(peaks.get(name, 0), tracemalloc.get_traced_memory()[1])
        tracemalloc.reset_peak()

    tracemalloc.start()
    try:
        plan = bench.plan(config(file, folder / "run", **options, limit=count - 1))
        phase_ends("plan")
        text = plan.text()
        phase_ends("text")
        run = plan.run(watch=lambda state: phase_ends("work" if "start" in peaks else "start"))
        phase_ends("end")
        failures = [run.failures("list", method, 0) for method in METHODS]
        phase_ends("count")
    finally:
        tracemalloc.stop()
    assert f"{count - 1} samples" in text
    assert run.complete
    assert not (folder / "run" / "samples").exists()
    assert failures == [(0, 0)] * 3
    assert ray.seen == [count]
    assert ray.units > 2
    return peaks


def test_the_driver_holds_less_than_two_bytes_a_sample(tmp_path, monkeypatch):
    driver_peaks(tmp_path / "first", 200, monkeypatch)  # what is imported and cached on first use
    few, many = 2_000, 42_000
    small, large = (driver_peaks(tmp_path / str(count), count, monkeypatch) for count in (few, many))
    assert set(small) == {"plan", "text", "start", "work", "end", "count"}
    growth = {name: (large[name] - small[name]) / (many - few) for name in small}
    assert max(growth.values()) < 2, f"a list with nothing but references would take 8: {growth}"


@pytest.fixture
def samples() -> list[Sample]:
    kinds = ["plain.png", "/x/\udcff\u00e9 \n.png", TarSlice("a.tar", 512, 9)]  # a name that is no UTF-8, a line break
    return [Sample(f"{i}/\u2028", i % 3, kinds[i % 3]) for i in range(SHARD * 20 + 5)]


@pytest.mark.parametrize("url", [False, True])
def test_samples_in_a_file_are_the_samples(samples, tmp_path, url):
    data = Dataset(name="x", title="x", classes=("a", "b", "c"), samples=samples)
    place = UrlPath(f"asyncwrapper::file://{tmp_path}/run/samples/x") if url else tmp_path / "run/samples/x"
    found = pickle.loads(pickle.dumps(publish(data, place)))
    assert isinstance(found.samples, SampleFile)
    assert len(found) == len(samples)
    assert list(found.samples) == samples
    assert [found.samples[i] for i in (0, 1284, 63, 64, 65, 700)] == [samples[i] for i in (0, 1284, 63, 64, 65, 700)]
    assert found.split_hash == data.split_hash
    for index in (-1, 1285):
        with pytest.raises(IndexError):
            found.samples[index]
    again = publish(found, place) if not url else publish(data, place)
    assert list(again.samples) == samples
    assert len(pickle.dumps(found)) < 600


def test_samples_of_the_callers_own_kind_are_sent_as_they_are(samples, tmp_path):
    class Special(Sample):
        pass

    data = Dataset(name="x", title="x", classes=("a",), samples=[*samples, Special("s", 0, "s.png")])
    assert publish(data, tmp_path / "x") is data
    with pytest.raises(TypeError, match="has no form in a file"):
        write_samples([replace(samples[0], source=3)], str(tmp_path / "y"))


def test_a_dataset_listed_by_another_process(tmp_path):
    file = listed(tmp_path / "data" / "list.csv", 300)
    here, there = open_dataset(file), list_dataset(file, None, None)
    assert list(there.samples) == list(here.samples)
    assert replace(there, samples=()) == replace(here, samples=())
    assert there.split_hash == here.split_hash
    kept = Path(there.samples.place)
    assert kept.stat().st_size > 300 * 20
    del there
    assert not kept.exists()
    with pytest.raises(cots.InputError, match=r"nowhere.* does not exist"):
        list_dataset(tmp_path / "nowhere", None, None)


def test_chosen_samples_are_spread_as_a_dataset_spreads_them(samples, tmp_path):
    data = Dataset(name="x", title="x", classes=("a", "b", "c"), samples=samples)
    for count in (1, 7, 500, 1284):
        chosen = _protocol.chosen(config(data, tmp_path, limit=count), data)
        assert tuple(chosen) == data.spread(count)
        assert len(chosen) == count


def test_numbers_are_a_set():
    found = Numbers([70000, 3, 3, 0])
    assert (list(found), len(found), bool(found), bool(Numbers())) == ([0, 3, 70000], 3, True, False)
    assert found == {0, 3, 70000}
    assert 3 in found
    assert not {1, -1, 70001} & found
    assert found.isdisjoint({4, 5})
    assert sys.getsizeof(found._there) < 80_000
