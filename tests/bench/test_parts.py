"""Ranks that share a run folder, and what a Ray worker checks: together they make the records of one process."""

from __future__ import annotations

import hashlib
import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.kills import forked, killed
from support.models import tiny
from support.runs import config, figures, photos, stop_at
from typer.testing import CliRunner

import cots
from cots import _registry, bench
from cots._kernels import card_bytes
from cots._registry import load_plugin, plugin_source
from cots.adapters import ADAPTERS
from cots.bench._parts import Worker, assignment
from cots.cli import app

METHODS = ("tpt+ecots", "tda", "tda+cots")
EACH, SHARD, BLOCK = 6, 8, 16  # 18 samples: two feature files, three shards, two groups


@pytest.fixture(scope="module", autouse=True)
def small_feature_files():
    with pytest.MonkeyPatch.context() as patch:
        for module in ("_features", "_job"):
            patch.setattr(f"cots.bench.{module}.BLOCK", BLOCK)
        yield


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos", EACH, broken=("car/2.png", "tree/0.png"))


def settings(dataset, out, **changes) -> bench.RunConfig:
    return config(dataset, out, **{"methods": METHODS, "shard_size": SHARD, "views": 2, **changes})


@pytest.fixture(scope="module")
def expected(dataset, tmp_path_factory):
    """The figures of one process."""
    return figures(bench.run(settings(dataset, tmp_path_factory.mktemp("runs") / "x")))


def as_rank(monkeypatch, index: int, count: int) -> None:
    monkeypatch.setenv("RANK", str(index))
    monkeypatch.setenv("WORLD_SIZE", str(count))


def run_rank(monkeypatch, dataset, out, index: int, count: int, **changes):
    as_rank(monkeypatch, index, count)
    plan = bench.plan(settings(dataset, out, engine="rank", wait=0.2, **changes))
    return plan, plan.run()


def shard_files(folder: Path) -> set[str]:
    return {str(f.relative_to(folder)) for f in folder.glob("shards/**/*.safetensors")}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forks of this process")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_two_ranks_one_killed_and_its_part_done_by_others(dataset, expected, tmp_path, monkeypatch):
    out = tmp_path / "y"
    plan = bench.plan(settings(dataset, out, engine="rank", wait=120))

    def rank(index: int, progress=lambda *event: None):
        def job():
            os.environ |= {"RANK": str(index), "WORLD_SIZE": "2"}
            plan.run(progress)

        return forked(job)

    def dies_half_way(stage, dataset, seed, done, total):
        if stage == "methods" and done >= total // 2:
            os.kill(os.getpid(), signal.SIGKILL)

    first, second = rank(0), rank(1, dies_half_way)
    assert killed(second)
    assert not killed(first)
    assert not bench.Run.open(out).complete
    before = {name: (out / name).stat().st_mtime_ns for name in shard_files(out)}
    assert before
    as_rank(monkeypatch, 0, 2)
    assert plan.unfinished().startswith("missing from rank 1 (not running): ")
    for index in (2, 0, 1):
        _, run = run_rank(monkeypatch, dataset, out, index, 3)
    assert run.complete
    assert figures(run) == expected
    assert {name: (out / name).stat().st_mtime_ns for name in before} == before, "a finished file was written again"
    assert sorted(f.name for f in out.iterdir()) == ["DONE", "features", "manifest.json", "shards"]


def test_each_rank_does_its_part_and_features_are_made_once(dataset, expected, tmp_path, monkeypatch):
    made = Counter()
    fill = bench._features.FeatureCache.fill

    def counting(self, blocks, *rest):
        made.update(blocks)
        return fill(self, blocks, *rest)

    monkeypatch.setattr(bench._features.FeatureCache, "fill", counting)
    found: list[set[str]] = []
    for index in range(2):
        plan, run = run_rank(monkeypatch, dataset, tmp_path, index, 2)
        found.append(shard_files(tmp_path) - set().union(*found))
        if index == 0:
            assert plan.unfinished() == "missing from rank 1 (not running): 1 shards of tpt+ecots on photos seed 0"
    assert [sum("/tpt+ecots/" in name for name in part) for part in found] == [2, 1]
    assert plan.unfinished() == ""
    assert run.complete
    assert figures(run) == expected
    # Rank 0 has the stream and came first: it made all features itself rather than wait.
    assert made == {0: 1, 1: 1}


@pytest.mark.parametrize(("size", "count"), [(4, 3), (16, 2), (20, 4), (12, 1), (28, 9)])
def test_the_assignment_covers_everything_once(dataset, tmp_path, size, count):
    plan = bench.plan(settings(dataset, tmp_path / "y", methods=["zeroshot", "tda"], shard_size=size, seeds=(0, 1, 2)))
    parts = list(assignment(list(plan.jobs()), count))
    shards = Counter((job.seed, shard) for _, job, group in parts if group is not None for shard in group)
    assert shards == {(seed, shard): 1 for seed in (0, 1, 2) for shard in range(-(-3 * EACH // size))}
    owners: dict[tuple[int, int], set[int]] = {}
    for rank, job, group in parts:
        for place in (place for shard in group or () for place in job.places(shard)):
            owners.setdefault((job.seed, place // BLOCK), set()).add(rank)
    assert all(len(ranks) == 1 for ranks in owners.values()), "a feature file belongs to two ranks"
    assert [rank for rank, _, group in parts if group is None] == [n % count for n in range(3)]


def test_ranks_wait_for_rank_0(dataset, tmp_path, monkeypatch):
    message = r"Rank 0 did not add this run to .*manifest.json within 0 s.*\(--wait\)"
    options = {"methods": ["zeroshot"], "limit": 8}
    with pytest.raises(cots.CotsError, match=message):
        run_rank(monkeypatch, dataset, tmp_path / "y", 1, 2, **options)
    run_rank(monkeypatch, dataset, tmp_path / "y", 0, 2, **options)
    # A manifest without this rank's methods is not the one it waits for; one with other settings never will be.
    with pytest.raises(cots.CotsError, match=message):
        run_rank(monkeypatch, dataset, tmp_path / "y", 1, 2, **{**options, "methods": ["zeroshot", "tpt"]})
    with pytest.raises(cots.InputError, match="was run with other settings: views of photos: 2, now 5"):
        run_rank(monkeypatch, dataset, tmp_path / "y", 1, 2, **options, views=5)
    assert run_rank(monkeypatch, dataset, tmp_path / "y", 1, 2, **options)[1].complete
    with pytest.raises(cots.InputError, match=r"--retry-failed\) does not work with ranks"):
        bench.plan(settings(dataset, tmp_path / "y", engine="rank", **options)).run(retry_failed=True)


@pytest.mark.parametrize(
    ("environment", "rank", "launched"),
    [
        (
            {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
            (3, 8, 1),
            True,
        ),
        ({"RANK": "5", "WORLD_SIZE": "6"}, (5, 6, 5), True),
        ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 1, 0), False),
        # A batch script is one process, whatever it may start; a step has tasks.
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}, (2, 4, 0), False),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "4294967291"}, (0, 4, 0), False),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, (0, 4, 0), True),
        ({"RANK": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}, (0, 2, 0), True),
        ({}, "needs RANK and WORLD_SIZE, or SLURM_PROCID and SLURM_NTASKS", False),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 must be less than WORLD_SIZE=2", None),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK must be a whole number, not 'one'", None),
    ],
)
def test_ranks_from_the_environment(environment, rank, launched):
    if isinstance(rank, str):
        with pytest.raises(cots.InputError, match=rank):
            bench.Rank.of_this_process(environment)
    else:
        found = bench.Rank.of_this_process(environment)
        assert (found.index, found.count, found.local) == rank
    if launched is not None:
        assert bench.Rank.launched(environment) is launched


@pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forks of this process")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_the_command_on_two_ranks(dataset, tmp_path, monkeypatch):
    """`cots run` in two processes with torchrun's variables: rank 0 prints for both."""
    monkeypatch.setattr("cots.bench._plan.load", lambda name, **options: tiny("vit"))
    options = {"datasets": dataset.where, "methods": "zeroshot+cots", "device": "cpu", "views": 2}
    expected = figures(bench.run(bench.RunConfig(**options, limit=17, shard_size=16, out=tmp_path / "x")))
    (tmp_path / "run.toml").write_text("views = 2\nlimit = 17\nshard_size = 16\n")
    words = ["run", "--config", str(tmp_path / "run.toml"), "--datasets", dataset.where, "--device", "cpu"]
    words += ["--methods", "zeroshot+cots", "--out", str(tmp_path / "y"), "--allow-errors"]  # one photo is broken

    def rank(index: int):
        os.environ |= {"RANK": str(index), "WORLD_SIZE": "2", "LOCAL_RANK": str(index)}
        result = CliRunner().invoke(app, words)
        (tmp_path / f"printed{index}").write_text(result.output)
        assert result.exit_code == 0, result.output

    assert not any(killed(pid) for pid in [forked(partial(rank, index)) for index in range(2)])
    first, second = ((tmp_path / f"printed{index}").read_text() for index in range(2))
    assert first.count("engine: rank 0 of 2 (RANK, WORLD_SIZE)") == first.count("engine: ") == 1
    assert "engine: " not in second
    run = bench.Run.open(tmp_path / "y")
    assert run.complete
    assert figures(run) == expected


@pytest.fixture
def worker(dataset, tmp_path, monkeypatch):
    """Makes workers of a run that has begun, as Ray would in a process of their own."""
    monkeypatch.setattr("signal.signal", lambda *arguments: None)
    with pytest.raises(KeyboardInterrupt):
        bench.run(settings(dataset, tmp_path / "y", methods=["zeroshot"]), stop_at(0))
    given = {"folder": os.getcwd(), "threads": torch.get_num_threads(), "cots": "0.1.0", "device": "cpu", "gpus": 0}
    given["plugins"] = {}
    given["created"] = bench.Run.open(tmp_path / "y").manifest["created"]

    def make(changes=(), **config_changes):
        options = {"methods": ["zeroshot"], "engine": "ray", **config_changes}
        return partial(Worker().ready, settings(dataset, tmp_path / "y", **options), {**given, **dict(changes)})

    before = torch.get_num_threads()
    yield make
    torch.set_num_threads(before)


def test_a_worker_computes_as_the_driver_does_or_refuses(worker):
    """Ray sets one thread per CPU of a worker, and TTL's last bits depend on their number."""
    worker({"threads": 2})()
    assert torch.get_num_threads() == 2
    for made, message in (
        (worker({"cots": "0.0.1"}), r"has cots 0\.1\.0, the driver 0\.0\.1"),
        (worker({"created": "earlier"}), "does not see the run in .* on a shared file system"),
        (worker(views=3), "would give different results than the driver: views of photos: 2, now 3"),
    ):
        with pytest.raises(cots.CotsError, match=f"The worker on .* {message}"):
            made()


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
    monkeypatch.setattr("cots._kernels._share", 1.0)
    for gpus, share in ((0, 1), (1, 1), (0.5, 0.5)):
        worker({"gpus": gpus})()
        assert card_bytes(torch.device("cuda")) == share * 32 * 2**30
    assert told == [pytest.approx(0.475)]
