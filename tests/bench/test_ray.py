"""A Ray cluster of two machines on this one: workers are killed, a machine is lost, and the figures stay the same."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.runs import config, figures, photos

import cots
from cots import bench
from cots._memory import card_bytes
from cots.bench import _ray
from cots.bench._connect import import_ray
from cots.bench._parts import Unit
from cots.bench._worker import Worker
from cots.data import Dataset

ray = pytest.importorskip("ray", reason="needs cots[ray]")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

METHODS = ("tpt+ecots", "tda", "ttl")
CURSED = 65  # of 66 samples: in the third shard of 32, which is a group of its own
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}


class Fragile(Dataset):
    """Photos of which one kills the process that reads it, once, and another can never be dealt with."""

    def read(self, index: int) -> Path | bytes:
        deadly = Path(self.where).parent / "deadly"
        if self.name == "photos" and index == 5 and deadly.exists():
            deadly.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.name == "small" and index == CURSED:
            raise ValueError("a curse")
        return super().read(index)


def fragile(dataset: Dataset) -> Fragile:
    return Fragile(**{field.name: getattr(dataset, field.name) for field in fields(dataset)})


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not know this file
    made = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return photos(folder / "photos", 30, broken=("car/2.png",)), photos(folder / "small", 22)


def settings(data, out, **changes) -> bench.RunConfig:
    return config(None, out, **{"datasets": data, "methods": METHODS, "views": 2, "shard_size": 32, **changes})


@pytest.fixture(scope="module")
def expected(data, tmp_path_factory):
    """The figures of one process that nothing disturbs."""
    return figures(bench.run(settings(data, tmp_path_factory.mktemp("runs") / "x")))


@contextmanager
def stopped():
    with pytest.raises(KeyboardInterrupt):
        yield


def stop_at(records: int):
    def progress(stage, dataset, seed, done, total):
        if stage == "methods" and done >= records:
            raise KeyboardInterrupt

    return progress


def test_a_killed_worker_a_lost_machine_and_a_shard_that_always_fails(cluster, data, expected, tmp_path):
    out = tmp_path / "y"
    with stopped():
        bench.run(settings(data[:1], out, methods=["tpt+ecots"]), stop_at(40))  # in one process, to be gone on with
    begun = {f: f.stat().st_mtime_ns for f in out.glob("shards/**/*.safetensors")}
    assert len(begun) == 1
    second = cluster.add_node(**NODE)
    deadly = Path(data[0].where).parent / "deadly"
    deadly.touch()
    states: list[bench.ClusterState] = []

    def watch(state):
        states.append(state)
        if state.failures and len(cluster.list_all_nodes()) == 2:
            cluster.remove_node(second, allow_graceful=False)

    broken = [fragile(dataset) for dataset in data]
    options = settings(broken, out, engine="ray", ray_address=cluster.address, cpus_per_worker=1)
    with pytest.warns(
        UserWarning, match=r"Shard 2 of small, seed 0, failed 3 times, .* ValueError: a curse\. .* goes on"
    ):
        run = bench.run(options, watch=watch)
    assert run.complete
    assert not deadly.exists()
    assert len(cluster.list_all_nodes()) == 1
    assert {f: f.stat().st_mtime_ns for f in begun} == begun
    found = figures(run)
    for method in METHODS:
        assert found["photos", method, 0] == expected["photos", method, 0]
        records = run.records("small", method, 0)
        assert (len(records), records.failed) == (64, 2)
        reason = records.errors[data[1].samples[CURSED].id]
        assert "This shard failed 3 times, the last time on " in reason
        assert reason.endswith("ValueError: a curse")
        whole = expected["small", method, 0]
        for column in ("label", "prediction", "confidence", "tau", "probabilities", "views"):
            assert whole[column].startswith(found["small", method, 0][column]), "the other shards are as they should be"
    last = states[-1]
    assert last.done == last.total == len(METHODS) * (90 + 66)
    assert last.given_up == 2, "the shard of the episodic methods and the rest of the stream"
    assert last.failures >= 7, "three tries of each, and the worker that was killed"
    assert max(state.workers for state in states) <= 2
    assert sorted(f.name for f in out.iterdir()) == ["DONE", "features", "manifest.json", "shards"]


def test_stopped_by_hand_behind_a_url_and_gone_on_with_in_one_process(cluster, data, expected, tmp_path):
    out = f"asyncwrapper::file://{tmp_path}/y"  # fsspec's general way, as for a store
    seen = []
    with stopped():
        bench.run(
            settings(data, out, engine="ray", ray_address=cluster.address, cpus_per_worker=1, max_workers=1),
            lambda *event: (seen.append(event), stop_at(1)(*event)),
        )
    assert seen
    assert not ray.is_initialized()
    run = bench.Run.open(out)
    left = run.missing()
    assert left
    assert not run.complete
    assert bench.run(settings(data, out)).complete
    assert figures(bench.Run.open(out)) == expected
    assert not list(tmp_path.rglob("lock*"))


def test_a_cluster_without_room_says_what_was_asked_and_what_there_is(cluster, data, tmp_path):
    states = []
    message = (
        r"No room for a worker within 0\.5 s: it needs 64 CPU and 0\.5 GPU on one machine; the cluster has "
        r"\d with \d CPU and 0 GPU in all, of which .* are free\. Ask for less \(--cpus-per-worker, --gpus-per-worker\)"
    )
    options = {"engine": "ray", "ray_address": cluster.address, "cpus_per_worker": 64, "gpus_per_worker": 0.5}
    options |= {"wait": 0.5, "model": "mini", "methods": ["tpt"]}
    with pytest.raises(cots.CotsError, match=message):
        bench.run(
            settings(data, tmp_path / "y", **options),
            watch=states.append,
        )
    assert states
    assert all(state.waiting and state.workers == 0 for state in states)
    assert bench.Run.open(tmp_path / "y").missing(), "the folder can be gone on with"
    assert not (tmp_path / "y" / "lock").exists()


def test_a_worker_computes_as_the_driver_does_or_refuses(data, tmp_path):
    """Ray sets one thread for each CPU of a worker, and TTL's last bits depend on their number."""
    with stopped():
        bench.run(settings(data, tmp_path / "y"), stop_at(0))
    options = settings(data, tmp_path / "y", engine="ray")
    given = {"folder": os.getcwd(), "threads": 2, "cots": "0.1.0", "device": "cpu", "gpus": 0}
    given["created"] = bench.Run.open(tmp_path / "y").manifest["created"]
    before = torch.get_num_threads()
    try:
        Worker(options, given)
        assert torch.get_num_threads() == 2
        for change, message in (
            ({"cots": "0.0.1"}, r"has cots 0\.1\.0, the driver 0\.0\.1"),
            ({"created": "earlier"}, "does not see the run in .* has to lie on a file system that all machines share"),
        ):
            with pytest.raises(cots.CotsError, match=f"The worker on .* {message}"):
                Worker(options, {**given, **change})
        with pytest.raises(cots.CotsError, match=r"would give other results than .* expects: views of photos: 2"):
            Worker(settings(data, tmp_path / "y", engine="ray", views=3), given)
    finally:
        torch.set_num_threads(before)


def test_a_worker_on_half_a_gpu_reckons_with_half_of_its_memory(data, tmp_path, monkeypatch):
    """No GPU is needed: what torch would be asked and told is watched."""
    with stopped():
        bench.run(settings(data, tmp_path / "y"), stop_at(0))
    told = []
    monkeypatch.setattr("torch.cuda.set_per_process_memory_fraction", told.append)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(total_memory=32 * 2**30))
    monkeypatch.setattr("cots._memory._share", 1.0)
    card = torch.device("cuda")
    assert card_bytes(card) == 32 * 2**30
    given = {"folder": os.getcwd(), "threads": torch.get_num_threads(), "cots": "0.1.0", "device": "cpu"}
    given["created"] = bench.Run.open(tmp_path / "y").manifest["created"]
    for gpus, share in ((0, 1), (1, 1), (0.5, 0.5)):
        Worker(settings(data, tmp_path / "y", engine="ray"), {**given, "gpus": gpus})
        assert card_bytes(card) == share * 32 * 2**30
    assert told == [pytest.approx(0.475)]


def driver(answers: dict, others: int = 0) -> tuple[Any, list, list]:
    """A driver without a cluster, whose calls are answered by `answers`; what it hears of units, whom it ends."""
    made: Any = object.__new__(_ray._Driver)
    failed, ended = [], []

    def get(answer):
        if isinstance(answers[answer], BaseException):
            raise answers[answer]
        return answers[answer]

    made.ray = SimpleNamespace(exceptions=ray.exceptions, get=get, kill=lambda actor, no_restart: ended.append(actor))
    made.queue = SimpleNamespace(failed=lambda *event: failed.append(event))
    made.gpus, made._seen, made._bad_starts, made._refused, made._told = 0.0, 0.0, 0, {}, set()
    made._hands = {}
    made._idle = [_ray._Hand(number=n, actor=f"other {n}", machine="here", ready=True) for n in range(others)]
    return made, failed, ended


def test_a_worker_that_ray_ended_gets_no_more_work():
    """Each call to one would fail at once: with no other worker it would use up the three tries of every shard."""
    unit = Unit(job=0, shards=(0,), records=32)
    told = []
    for number, error in enumerate((ray.exceptions.OutOfMemoryError("full"), ray.exceptions.RaySystemError("gone"))):
        made, failed, ended = driver({"answer": error})
        made._hands["answer"] = _ray._Hand(
            number=number, actor="it", machine="here", host="here (process 1)", ready=True, unit=unit
        )
        made._hear("answer")
        assert (made._all, ended) == ([], ["it"])
        told.append(str(failed[0][-1]))
    assert "machine's memory was nearly full" in told[0]
    assert told[1] == "the worker's process or its machine was lost"


def test_a_machine_that_takes_no_part_is_named_once_though_others_work():
    refusal = cots.CotsError("The worker on b does not see the run in /x.").with_traceback(None)
    made, failed, ended = driver({n: ray.exceptions.RayTaskError("work", "", refusal) for n in range(2)}, others=1)
    for number in range(2):
        made._hands[number] = _ray._Hand(number=7 + number, actor=number, machine="b", host="b (process 2)")
    with pytest.warns(UserWarning, match=r"No worker on b takes part for now: The worker on b does not see the run"):
        made._hear(0)
    made._hear(1)  # a second warning would be an error
    assert (failed, ended, made._bad_starts) == ([], [0, 1], 2)


def test_a_machine_that_joins_is_tried_though_others_could_not_start():
    made, _, _ = driver({}, others=1)
    made.cpus, made._bad_starts, made._known = 1.0, 3, {"a"}
    nodes = [{"Alive": True, "NodeID": "a", "Resources": {"CPU": 1.0}}]
    made.ray.nodes = lambda: nodes
    made._look_around()
    assert made._bad_starts == 3
    nodes.append({"Alive": True, "NodeID": "b", "Resources": {"CPU": 2.0}})
    made._look_around()
    assert (made._bad_starts, made._room) == (0, 3)


@pytest.mark.parametrize(("given", "expected"), [(None, "0"), ("1", "1")])
def test_below_uv_run_workers_keep_the_environment_of_their_machine(given, expected, monkeypatch):
    """Ray's way of building one for each worker needs a network and minutes, or never ends; it reads this at import."""
    name, found = "RAY_ENABLE_UV_RUN_RUNTIME_ENV", []
    monkeypatch.setenv(name, given or "")  # so that it is put back
    if given is None:
        del os.environ[name]

    class Looking:
        def find_spec(self, module, path=None, target=None):
            found.append(os.environ.get(name))
            raise ImportError(module)

    monkeypatch.delitem(sys.modules, "ray")
    monkeypatch.setattr(sys, "meta_path", [Looking()])
    with pytest.raises(cots.InputError, match="needs Ray"):
        import_ray()
    assert found == [expected]


def test_without_ray_the_extra_is_named(data, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(cots.InputError, match=r"needs Ray: pip install 'cots\[ray\]'"):
        bench.run(settings(data, tmp_path / "y", engine="ray"))


def test_a_cluster_that_is_not_there(data, tmp_path):
    with pytest.raises(cots.CotsError, match=r"No Ray cluster could be reached at 127\.0\.0\.1:1 "):
        bench.run(settings(data, tmp_path / "y", engine="ray", ray_address="127.0.0.1:1"))
