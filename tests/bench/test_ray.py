"""A real Ray cluster on this machine: workers are killed, shards keep failing, and the figures stay the same."""

from __future__ import annotations

import functools
import hashlib
import os
import signal
import sys
import time
import zlib
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from msgspec.structs import asdict
from support.runs import COLUMNS, config, figures, photos, stop_at

import cots
from cots import _registry, bench
from cots._registry import load_plugin, plugin_source
from cots.adapters import ADAPTERS
from cots.backbones._mini import Mini
from cots.bench import _cluster
from cots.bench._cluster import import_ray
from cots.bench._job import units
from cots.bench._ray import Worker, WorkerSetup
from cots.data import Dataset
from cots.fast.memory import card_bytes

SIGNAL = signal.signal  # the fixture `worker` replaces it

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray's own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

METHODS = ("tpt+ecots", "tda")
CURSED = 65  # of 66 samples: in the third shard of 32, a group of its own


class Fragile(Dataset):
    """Photos of which one kills the process that reads it, once, and another always raises an error."""

    def read(self, index: int) -> Path | bytes:
        deadly = Path(self.where).parent / "deadly"
        if index == 5 and deadly.exists():
            deadly.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if index == CURSED and (Path(self.where).parent / "cursed").exists():
            raise ValueError("a curse")
        return super().read(index)


class Words:
    """A tokenizer: start, a number for each word, end."""

    context_length = 16

    def __call__(self, texts, context_length=None):
        rows = [[1, *(2 + zlib.crc32(word.encode()) % 60 for word in text.split()), 63] for text in texts]
        return torch.tensor([row + [0] * ((context_length or self.context_length) - len(row)) for row in rows])


@functools.cache
def light() -> cots.Backbone:
    """A tiny model whose modules are torch's and cots's own: workers that read it need not import open_clip."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Mini(embed_dim=12, context_length=16, vocab_size=64, width=16, heads=2, layers=1)
        parts = torch.nn.Conv2d(3, 8, 8, stride=8), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(128, 12)
        model.visual = torch.nn.Sequential(*parts)
        for parameter in (model.positional_embedding, model.text_projection):
            torch.nn.init.normal_(parameter, std=0.3)
        torch.nn.init.constant_(model.logit_scale, 2.0)
    return cots.Backbone(name="light", model=model, tokenizer=Words(), preprocess={"size": 32})


@pytest.fixture(scope="module")
def ray():
    try:
        return import_ray()  # as cots does it: under `uv run`, workers must not build environments of their own
    except cots.InputError:
        pytest.skip("needs cots[ray]")


@pytest.fixture(scope="module")
def cluster(ray):
    """One machine without the processes that tests do not need: API server, autoscaler and log monitor."""
    from ray.cluster_utils import Cluster

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not know this file
    lean = {"include_dashboard": False, "no_monitor": True, "include_log_monitor": False}
    with pytest.MonkeyPatch.context() as patch:
        # Tokens, as Ray asks for everywhere from version 2.61 on; it reads these settings when it is imported.
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", "a" * 64)
        ray._raylet.Config.initialize("")
        assert ray._raylet.get_authentication_mode() == ray._raylet.AuthenticationMode.TOKEN
        patch.setenv("RAY_timeout_ms_task_wait_for_death_info", "50")  # until a driver hears of a killed worker
        patch.setattr("ray._private.node.Node.start_api_server", lambda *given, **options: None, raising=False)
        machine = Cluster(True, head_node_args={"num_cpus": 1, "object_store_memory": 80_000_000, **lean})
        try:
            yield ray.init(machine.address, log_to_driver=False, logging_level="ERROR")
        finally:
            ray.shutdown()
            machine.shutdown()


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Fragile:
    made = photos(tmp_path_factory.mktemp("data") / "photos", 22, broken=("car/2.png",))
    return Fragile(**{field.name: getattr(made, field.name) for field in fields(made)})


def settings(data, out, **changes) -> bench.RunConfig:
    # In list order, the failing samples come late in the stream of the online method.
    options = {"model": light(), "methods": METHODS, "views": 2, "shard_size": 32, "stream_order": "list", **changes}
    if options.get("engine") == "ray":
        options = {"cpus_per_worker": 1, **options}
    return config(data, out, **options)


@pytest.fixture(scope="module")
def expected(data, tmp_path_factory):
    """The figures of one undisturbed process."""
    return figures(bench.run(settings(data, tmp_path_factory.mktemp("runs") / "x")))


def test_a_killed_worker_costs_nothing_and_a_cursed_shard_becomes_error_records(ray, cluster, data, expected, tmp_path):
    out, marks = tmp_path / "y", Path(data.where).parent
    with pytest.raises(KeyboardInterrupt):
        bench.run(settings(data, out), stop_at(40))  # begun in one process
    begun = {f: f.stat().st_mtime_ns for f in out.glob("shards/**/*.safetensors")}
    assert len(begun) == 1
    for file in out.glob("features/**/*.safetensors"):
        file.unlink()
    for mark in ("deadly", "cursed"):
        (marks / mark).touch()
    states: list[bench.ClusterState] = []

    def watch(state):
        states.append(state)
        if state.done == state.total:
            raise KeyboardInterrupt

    with (
        pytest.warns(UserWarning, match=r"Shard 2 of photos, seed 0, failed 3 times, .* ValueError: a curse\. "),
        pytest.raises(KeyboardInterrupt),
    ):
        bench.run(settings(data, f"simplecache::file://{out}", engine="ray"), watch=watch)
    assert not bench.Run.open(out).complete
    freed = ray.remote(num_cpus=1)(lambda: True).remote()  # on the CPU of the worker, which has been stopped
    run = bench.run(settings(data, out))
    assert run.complete
    assert ray.get(freed, timeout=60)
    assert not (marks / "deadly").exists()
    assert {f: f.stat().st_mtime_ns for f in begun} == begun
    found = figures(run)
    for method in METHODS:
        records = run.records("photos", method, 0)
        assert (len(records), records.failed) == (63, 3)
        assert run.failures("photos", method, 0) == (3, 2)
        reason = records.errors[data.samples[CURSED].id]
        assert "This shard failed 3 times, the last time on " in reason
        assert reason.endswith("ValueError: a curse")
        whole = expected["photos", method, 0]
        for column in COLUMNS:
            assert whole[column].startswith(found["photos", method, 0][column]), (
                "the other shards are as they should be"
            )
    assert states[-1].done == states[-1].total == len(METHODS) * 66
    assert states[-1].given_up == 2, "the shard of the episodic methods and the rest of the stream"
    assert states[-1].failures == 1 + 3 + 4, "killed; cursed; and once after progress in the stream"
    assert max(state.workers for state in states) == 1
    assert sorted(f.name for f in out.iterdir()) == ["DONE", "features", "manifest.json", "shards"]
    (marks / "cursed").unlink()
    [kept] = out.glob(f"shards/*/*/{METHODS[0]}/00001.safetensors")  # the only shard without an error
    written = kept.stat().st_mtime_ns
    assert figures(bench.run(settings(data, out), retry_failed=True)) == expected
    assert kept.stat().st_mtime_ns == written, "what a worker wrote is kept"


def test_workers_that_cannot_start_end_the_run_which_resumes_in_one_process(ray, data, expected, tmp_path, monkeypatch):
    """With a worker in this process: another one would import torch only to refuse."""
    killed = []

    class Actor:
        def __init__(self):
            self.ready = SimpleNamespace(remote=lambda *given: functools.partial(Worker().ready, *given))
            self.__ray_ready__ = SimpleNamespace(remote=lambda: str)

    def get(call):
        try:
            return call()
        except cots.CotsError as error:
            raise ray.exceptions.RayTaskError("ready", "", error) from error

    fake = SimpleNamespace(is_initialized=lambda: True, exceptions=ray.exceptions, get=get, kill=killed.append)
    vars(fake).update(remote=lambda **options: lambda kind: SimpleNamespace(remote=Actor), put=lambda given: given)
    vars(fake).update(wait=lambda calls, timeout: (calls, []), nodes=list)
    monkeypatch.setattr("signal.signal", lambda *arguments: None)
    monkeypatch.setattr("cots.bench._cluster.import_ray", lambda: fake)
    versions = iter(("0.0.1", "0.0.2"))
    monkeypatch.setattr("cots.bench._ray.version", lambda package: next(versions))
    out = f"simplecache::file://{tmp_path}/y"
    with pytest.raises(KeyboardInterrupt):
        bench.run(settings(data, out), stop_at(40))
    message = r"No worker could start: The worker on .* has cots 0\.0\.2, the driver 0\.0\.1\. Install the same"
    with pytest.raises(cots.CotsError, match=message):
        bench.run(settings(data, out, engine="ray"))
    assert len(killed) == 1
    run = bench.Run.open(out)
    assert run.missing()
    assert not run.complete
    assert figures(bench.run(settings(data, out))) == expected
    assert not list(tmp_path.rglob("lock*"))


def test_a_cluster_without_room_says_what_is_needed_and_what_there_is(cluster, data, tmp_path):
    states = []
    message = (
        r"No resources for a worker within 0\.1 s: it needs 64 CPU and 0\.5 GPU on one machine; the cluster has "
        r"1 CPU and 0 GPU in total and .* free\. Request less \(--cpus-per-worker, --gpus-per-worker\)"
    )
    options = {"engine": "ray", "cpus_per_worker": 64, "gpus_per_worker": 0.5, "wait": 0.1, "model": "mini"}
    with pytest.raises(cots.CotsError, match=message):
        bench.run(settings(data, tmp_path / "y", **options, methods=["zeroshot"]), watch=states.append)
    assert states
    assert all(state.waiting and state.workers == 0 for state in states)
    assert bench.Run.open(tmp_path / "y").missing(), "the folder can be resumed"
    assert not (tmp_path / "y" / "lock").exists()

    def interrupt(state):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.run(settings(data, tmp_path / "z", engine="ray", cpus_per_worker=64, wait=0.1), watch=interrupt)
    assert bench.run(settings(data, tmp_path / "z")).complete, "in one process"


def test_the_driver_of_a_gpu_cluster_needs_no_gpu(ray, data, tmp_path):
    """Without a cluster: it plans and counts what the workers will make."""
    options = {"engine": "ray", "gpus_per_worker": 1, "cpus_per_worker": None, "model": "mini", "methods": ["zeroshot"]}
    for renderer in ("auto", "gpu"):
        plan = bench.plan(settings(data, tmp_path / "y", **options, renderer=renderer))
        assert (plan.manifest.device, plan.manifest.renderer) == ("cuda", "gpu")
        assert "Ray, 1 CPU and 1 GPU per worker" in plan.text()
        assert sum(part.count(part.missing()) for part in units(plan.jobs())[0]) == 66


@pytest.mark.parametrize(("given", "expected"), [(None, "0"), ("1", "1")])
def test_under_uv_run_workers_keep_the_environment_of_their_machine(ray, given, expected, monkeypatch):
    """Ray's way of building one per worker needs a network and minutes; it reads this variable at import."""
    name, found = "RAY_ENABLE_UV_RUN_RUNTIME_ENV", []
    monkeypatch.setenv(name, given or "")  # so that it is restored
    if given is None:
        del os.environ[name]

    class Looking:
        def find_spec(self, module, path=None, target=None):
            found.append(os.environ.get(name))
            raise ImportError(module)

    monkeypatch.delitem(sys.modules, "ray")
    monkeypatch.setattr(sys, "meta_path", [Looking()])
    with pytest.raises(cots.InputError, match=r"needs Ray: .*uv sync --extra ray"):
        import_ray()
    assert found == [expected]


WAIT_SETTING = "RAY_gcs_server_port_wait_time_s"


class SlowRay:
    """Ray on a busy machine: the node registers after `takes` seconds, and Ray itself waits for 0.2."""

    def __init__(self, takes: float) -> None:
        self.takes, self.calls = takes, []
        self._private = SimpleNamespace(services=SimpleNamespace(get_node=self.get_node))

    def is_initialized(self):
        return False

    def init(self, *args, **options):
        self.calls.append(os.environ.get(WAIT_SETTING))
        self.start = time.monotonic()
        while True:
            try:
                return self._private.services.get_node()
            except RuntimeError:
                if time.monotonic() > self.start + 0.2:
                    raise Exception("The current node timed out during startup.") from None

    def get_node(self):
        if time.monotonic() < self.start + self.takes:
            raise RuntimeError("not registered")

    def shutdown(self):
        self.calls.append("shutdown")


@pytest.mark.parametrize("given", [None, "7"])
def test_a_slow_node_gets_more_time_than_ray_gives_it(given, monkeypatch):
    monkeypatch.delenv(WAIT_SETTING, raising=False)
    if given:
        monkeypatch.setenv(WAIT_SETTING, given)
    slow = SlowRay(0.6)
    monkeypatch.setattr(_cluster, "import_ray", lambda: slow)
    monkeypatch.setattr(_cluster, "START_WAIT", 5.0)
    with _cluster.connected(None) as ray:
        assert ray is slow
    assert slow.calls == [given or "5", "shutdown"]
    assert os.environ.get(WAIT_SETTING) == given
    assert slow._private.services.get_node == slow.get_node


def test_a_node_that_does_not_start_in_time(monkeypatch):
    monkeypatch.setattr(_cluster, "import_ray", lambda: SlowRay(60))
    monkeypatch.setattr(_cluster, "START_WAIT", 0.3)
    message = r"Ray could not be started on this machine \(The current node timed out during startup\)\. If the machine"
    with pytest.raises(cots.CotsError, match=message), _cluster.connected(None):
        pass


def test_a_cluster_that_does_not_answer(ray, data, tmp_path, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(cots.CotsError, match=r"reached at 127\.0\.0\.1:1 .*RAY_AUTH_MODE=token"):
        bench.run(settings(data, tmp_path / "y", engine="ray", ray_address="127.0.0.1:1", methods=["zeroshot"]))


@pytest.fixture
def worker(data, tmp_path, monkeypatch):
    """Makes workers of a run that has begun, as Ray would in a process of their own."""
    monkeypatch.setattr("signal.signal", lambda *arguments: None)
    with pytest.raises(KeyboardInterrupt):
        bench.run(settings(data, tmp_path / "y", methods=["zeroshot"], limit=4), stop_at(0))
    given = {"folder": os.getcwd(), "threads": torch.get_num_threads(), "cots": "0.1.0", "device": "cpu", "gpus": 0}
    given["plugins"] = {}
    given["created"] = bench.Run.open(tmp_path / "y").manifest.created

    def make(changes=(), **config_changes):
        options = {"methods": ["zeroshot"], "limit": 4, "engine": "ray", **config_changes}
        options = asdict(settings(data, tmp_path / "y", **options))
        return functools.partial(Worker().ready, WorkerSetup(options=options, **{**given, **dict(changes)}))

    before = torch.get_num_threads()
    yield make
    torch.set_num_threads(before)


def test_a_worker_computes_as_the_driver_does_or_refuses(worker, monkeypatch):
    """Ray sets one thread per CPU of a worker, and TTL's last bits depend on their number."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    worker({"threads": 2})()
    assert torch.get_num_threads() == 2
    for made, message in (
        (worker({"cots": "0.0.1"}), r"has cots 0\.1\.0, the driver 0\.0\.1"),
        (worker({"created": "earlier"}), "does not see the run in .* on a shared file system"),
        (worker({"device": "cuda"}), "was assigned a GPU but finds none"),
        (worker(views=3), "would give different results than the driver: views of photos: 2, now 3"),
    ):
        with pytest.raises(cots.CotsError, match=f"The worker on .* {message}"):
            made()


def test_ctrl_c_is_for_the_driver(worker, monkeypatch):
    """The terminal sends it to all processes of the run; a worker that it ended would count as lost."""
    seen = []
    before = SIGNAL(signal.SIGINT, lambda *arguments: seen.append("seen"))
    try:
        made = worker()
        monkeypatch.setattr("signal.signal", SIGNAL)
        os.kill(os.getpid(), signal.SIGINT)
        assert seen == ["seen"]
        made()
        os.kill(os.getpid(), signal.SIGINT)
        assert seen == ["seen"]
    finally:
        SIGNAL(signal.SIGINT, before)


def test_a_worker_runs_the_plugins_of_the_driver(worker, tmp_path):
    """By their content: the machine of a worker may not have the file."""
    file = tmp_path / "mine.py"
    file.write_text("import cots\ncots.adapter('mine')(cots.adapters.ADAPTERS.get('zeroshot'))\n")
    path = load_plugin(file)
    try:
        made = worker({"plugins": {path: plugin_source(path)}}, methods=["zeroshot", "mine"])
        ADAPTERS.unregister("mine")
        file.unlink()
        _registry._SOURCES.clear()
        made()
        assert ADAPTERS.info("mine").plugin == hashlib.sha256(plugin_source(path)).hexdigest()
    finally:
        ADAPTERS.unregister("mine")
        _registry._SOURCES.clear()


def test_a_worker_on_half_a_gpu_uses_half_of_its_memory(worker, monkeypatch):
    """No GPU is needed: the calls to torch are watched."""
    told = []
    monkeypatch.setattr("torch.cuda.set_per_process_memory_fraction", told.append)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(total_memory=32 * 2**30))
    monkeypatch.setattr("cots.fast.memory._share", 1.0)
    for gpus, share in ((0, 1), (1, 1), (0.5, 0.5)):
        worker({"gpus": gpus})()
        assert card_bytes(torch.device("cuda")) == share * 32 * 2**30
    assert told == [pytest.approx(0.475)]
