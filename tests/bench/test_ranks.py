"""Ranks that share a run folder: each does its part, one may die, and the figures are those of a single process."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from support.models import tiny
from support.runs import config, figures, photos
from typer.testing import CliRunner

import cots
from cots import bench
from cots.bench import _parts, _ranks
from cots.cli import app

METHODS = ("tpt", "tpt+ecots", "tda", "tda+cots", "ttl")
FORKS = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forks of this process")
EACH, SHARD = 44, 32  # 132 samples: three files of features, five shards, three groups


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos", EACH, broken=("car/2.png", "tree/0.png"))


@pytest.fixture(scope="module")
def expected(dataset, tmp_path_factory):
    """The figures of one process."""
    return figures(
        bench.run(config(dataset, tmp_path_factory.mktemp("runs") / "x", methods=METHODS, shard_size=SHARD, views=2))
    )


def as_rank(monkeypatch, index: int, count: int) -> None:
    monkeypatch.setenv("RANK", str(index))
    monkeypatch.setenv("WORLD_SIZE", str(count))


def run_rank(monkeypatch, dataset, out, index: int, count: int, **changes):
    as_rank(monkeypatch, index, count)
    options = {"methods": METHODS, "shard_size": SHARD, "engine": "rank", "wait": 0.2, "views": 2, **changes}
    plan = bench.plan(config(dataset, out, **options))
    return plan, plan.run()


def start(index: int, count: int, job) -> tuple[int, int]:
    """Run `job(tell)` as a rank in a fork of this process; its number, and where to hear what it tells."""
    ready, tell = os.pipe()
    if pid := os.fork():
        os.close(tell)
        return pid, ready
    try:
        os.environ |= {"RANK": str(index), "WORLD_SIZE": str(count)}
        job(lambda: os.write(tell, b"."))
        os._exit(0)
    except BaseException as error:
        os.write(2, repr(error).encode())
        os._exit(1)


def shard_files(folder: Path) -> set[str]:
    return {str(f.relative_to(folder)) for f in folder.glob("shards/**/*.safetensors")}


@FORKS
def test_two_processes_one_killed_and_the_rest_done_by_others(dataset, expected, tmp_path, monkeypatch):
    out = tmp_path / "y"
    plan = bench.plan(config(dataset, out, methods=METHODS, shard_size=SHARD, engine="rank", wait=120, views=2))

    def stops_half_way(tell):
        def progress(stage, dataset, seed, done, total):
            if stage == "methods" and done >= total // 2:
                tell()
                signal.pause()

        plan.run(progress)

    first, _ = start(0, 2, lambda tell: plan.run())
    second, ready = start(1, 2, stops_half_way)
    try:
        assert os.read(ready, 1) == b"."
    finally:
        os.kill(second, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(second, 0)[1])
    assert os.waitpid(first, 0)[1] == 0
    run = bench.Run.open(out)
    assert not run.complete
    before = {name: (out / name).stat().st_mtime_ns for name in shard_files(out)}
    assert before
    # What rank 1 left is named, by rank; rank 1 itself is known to be dead.
    as_rank(monkeypatch, 0, 2)
    assert plan.unfinished().startswith("missing of rank 1 (not at work): photos seed 0: shards ")
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
    out = tmp_path / "y"
    found: list[set[str]] = []
    for index in range(3):
        plan, run = run_rank(monkeypatch, dataset, out, index, 3)
        found.append(shard_files(out) - set().union(*found))
        if index == 0:
            left = plan.unfinished().splitlines()
            assert [line.split(":")[0] for line in left] == [f"missing of rank {r} (not at work)" for r in (1, 2)]
            assert "photos seed 0: shards 2, 3" in left[0]
    assert [sum("/tpt/" in name for name in part) for part in found] == [2, 2, 1]
    assert plan.unfinished() == ""
    assert run.complete
    assert figures(run) == expected
    # Rank 0 has the stream and came first: it made all features itself rather than wait.
    assert made == {0: 1, 1: 1, 2: 1}


def test_the_parts_cover_everything_once(dataset, tmp_path):
    for size, count in ((8, 3), (64, 2), (72, 4), (24, 1), (100, 9)):
        options = {"methods": ["tpt", "tda"], "batch_size": 4, "shard_size": size, "seeds": (0, 1, 2)}
        jobs = list(bench.plan(config(dataset, tmp_path / "y", **options)).jobs(size))
        blocks: dict[tuple[int, int], set[int]] = {}
        for job, shares in _ranks.owners(jobs, count):
            assert sorted(s for shards in shares.values() for s in shards) == list(range(job.shards))
            for rank, shards in shares.items():
                for place in (place for shard in shards for place in job.places(shard)):
                    blocks.setdefault((job.seed, place // 64), set()).add(rank)
        assert all(len(ranks) == 1 for ranks in blocks.values()), "a file of features belongs to two ranks"
        assert [rank for _, rank in _ranks.stream_owners(jobs, count)] == [n % count for n in range(3)]
        assert _parts.group_size(jobs[0]) * size % 64 == 0


def test_ranks_wait_for_rank_0_and_say_so(dataset, tmp_path, monkeypatch):
    message = r"Rank 0 has not entered this run into .*manifest.json within 0 s.*\(--wait\)"
    with pytest.raises(cots.CotsError, match=message):
        run_rank(monkeypatch, dataset, tmp_path / "y", 1, 2, methods=["zeroshot"])
    run_rank(monkeypatch, dataset, tmp_path / "y", 0, 2, methods=["zeroshot"])
    # A manifest without this rank's methods is not the one that it waits for; one with other settings never will be.
    with pytest.raises(cots.CotsError, match=message):
        run_rank(monkeypatch, dataset, tmp_path / "y", 1, 2, methods=["zeroshot", "tpt"])
    with pytest.raises(cots.InputError, match="was run with other settings: views of photos: 2, now 5"):
        run_rank(monkeypatch, dataset, tmp_path / "y", 1, 2, methods=["zeroshot"], views=5)
    assert run_rank(monkeypatch, dataset, tmp_path / "y", 1, 2, methods=["zeroshot"])[1].complete


@FORKS
def test_ranks_and_other_runs_keep_out_of_each_others_way(dataset, tmp_path, monkeypatch):
    out = tmp_path / "y"
    plan = bench.plan(config(dataset, out, methods=["zeroshot"], engine="rank", views=2))

    def waits_for_rank_0(tell):
        bench._plan.wait_for = lambda *arguments: tell() and signal.pause()
        plan.run()

    holder, ready = start(1, 2, waits_for_rank_0)
    try:
        assert os.read(ready, 1) == b"."
        with pytest.raises(cots.CotsError, match=rf"rank 1, process {holder} on .* since"):
            bench.run(config(dataset, out, methods=["zeroshot"], views=2))
        with pytest.raises(cots.CotsError, match=rf"rank 1, process {holder} on"):
            run_rank(monkeypatch, dataset, out, 1, 2)
    finally:
        os.kill(holder, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(holder, 0)[1])
    plan = bench.plan(config(dataset, out, methods=["zeroshot"], views=2))

    def another(*event):
        with pytest.raises(cots.CotsError, match=rf"Another run is working in .*: process {os.getpid()} on"):
            run_rank(monkeypatch, dataset, out, 0, 2, methods=["zeroshot"])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan.run(another)
    # The lock of a dead rank does not stop anybody; that of a rank elsewhere stops other kinds of runs alone.
    assert plan.run().complete
    (out / "lock.rank1").write_text('{"pid": 1, "host": "elsewhere", "machine": "other"}')
    with pytest.raises(cots.CotsError, match=r"rank 1, process 1 on elsewhere.* delete .*lock.rank1"):
        plan.run()
    assert run_rank(monkeypatch, dataset, out, 1, 2, methods=["zeroshot"])[1].complete


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (3, 8, 1)),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}, (2, 4, 0)),
        ({"RANK": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, (0, 2, 0)),
        ({"RANK": "5", "WORLD_SIZE": "6"}, (5, 6, 5)),
    ],
)
def test_ranks_from_the_environment(environment, rank):
    found = bench.Rank.of_this_process(environment)
    assert (found.index, found.count, found.local) == rank


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "needs RANK and WORLD_SIZE, or SLURM_PROCID and SLURM_NTASKS"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 is no rank of WORLD_SIZE=2: they run from 0 to 1"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK must be a whole number, not 'one'"),
    ],
)
def test_ranks_that_cannot_be(environment, message):
    with pytest.raises(cots.InputError, match=message):
        bench.Rank.of_this_process(environment)


@pytest.mark.parametrize(
    ("environment", "launched"),
    [
        ({}, False),
        ({"RANK": "0", "WORLD_SIZE": "1"}, False),
        ({"RANK": "0", "WORLD_SIZE": "2"}, True),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, False),  # a batch script: one process, whatever it may start
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "4294967291"}, False),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, True),
    ],
)
def test_a_launcher_is_known_by_its_variables(environment, launched):
    assert bench.Rank.launched(environment) is launched


def test_settings_without_effect_are_refused(tmp_path):
    for options, message in (
        ({"wait": 5.0}, "wait has no effect with engine='inline'"),
        ({"engine": "rank", "max_workers": 2}, "max_workers has no effect with engine='rank'"),
        ({"engine": "rang"}, "Did you mean 'rank'"),
        ({"engine": "ray", "gpus_per_worker": 2}, "gpus_per_worker must be at most 1"),
        ({"engine": "ray", "cpus_per_worker": -1}, "cpus_per_worker must be a number, 0 or more"),
        ({"engine": "rank", "out": "memory://x"}, "needs a place that all share"),
    ):
        with pytest.raises(cots.InputError, match=message):
            bench.RunConfig(**{"model": tiny("vit"), "datasets": "pets", "methods": "tpt", "out": tmp_path, **options})


def test_the_command_line_under_a_launcher(dataset, tmp_path, monkeypatch):
    words = ["run", "--datasets", dataset.where, "--methods", "zeroshot", "--out", str(tmp_path / "y")]
    words += ["--limit", "66", "--device", "cpu"]

    def cli(*more):
        result = CliRunner().invoke(app, [*words, *more], catch_exceptions=False)
        assert result.exit_code == 0
        return result.output

    (tmp_path / "run.toml").write_text("views = 2\n")
    as_rank(monkeypatch, 0, 2)
    told = cli("--config", str(tmp_path / "run.toml"))
    assert "engine: rank 0 of 2 (RANK, WORLD_SIZE)" in told
    assert "missing of rank 1 (not at work): photos seed 0: shards 1" in told
    assert "re-run the command with any number of ranks" in told
    as_rank(monkeypatch, 1, 2)
    assert cli("--config", str(tmp_path / "run.toml"), "--wait", "9") == ""
    assert bench.Run.open(tmp_path / "y").complete
    told = cli("--config", str(tmp_path / "run.toml"), "--engine", "inline")
    assert "done:" in told
    assert "rank" not in told
