"""Ranks that share a run folder: together they make the records of one process."""

from __future__ import annotations

import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from support.kills import forked, killed
from support.models import tiny
from support.runs import config, figures, photos
from typer.testing import CliRunner

import cots
from cots import bench
from cots.bench._job import parts
from cots.bench._plan import _own_parts
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
    plan = bench.plan(settings(dataset, out, engine="rank", wait=0.02, **changes))
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
    groups, streams = parts(plan.jobs())
    shards = Counter((part.seed, shard) for part in groups for shard in part.shards)
    assert shards == {(seed, shard): 1 for seed in (0, 1, 2) for shard in range(-(-3 * EACH // size))}
    owners: dict[tuple[int, int], set[int]] = {}
    for number, part in enumerate(groups):
        for place in (place for shard in part.shards for place in part.places(shard)):
            owners.setdefault((part.seed, place // BLOCK), set()).add(number)
    assert all(len(numbers) == 1 for numbers in owners.values()), "a feature file belongs to two groups"
    assert [(part.seed, part.shards) for part in streams] == [(seed, range(-(-3 * EACH // size))) for seed in (0, 1, 2)]
    ranks = [_own_parts(plan.jobs(), bench.Rank(index=rank, count=count)) for rank in range(count)]
    assert Counter((part.seed, part.is_stream, shard) for own in ranks for part in own for shard in part.shards) == {
        (seed, stream, shard): 1 for seed, shard in shards for stream in (False, True)
    }
    assert [[part.seed for part in own if part.is_stream] for own in ranks] == [
        [seed for seed in (0, 1, 2) if seed % count == rank] for rank in range(count)
    ]


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
