"""Parts of a run in several processes: together they make the records of one."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from support.kills import forked, killed
from support.models import tiny
from support.runs import config, figures, photos
from typer.testing import CliRunner

import cots
from cots import bench
from cots.bench._job import units
from cots.bench._lock import locked
from cots.bench._plan import _own_jobs
from cots.cli import app

METHODS = ("tpt+ecots", "tda", "tda+cots")
EACH, SHARD, BLOCK = 6, 8, 16  # 18 samples: two feature files, three shards, two groups


@pytest.fixture(scope="module", autouse=True)
def small_feature_files():
    with pytest.MonkeyPatch.context() as patch:
        for module in ("_binding", "_features", "_job", "_walk"):
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


def run_part(dataset, out, part: str, **changes):
    plan = bench.plan(settings(dataset, out, part=part, **changes))
    return plan, plan.run()


def shard_files(folder: Path) -> set[str]:
    return {str(f.relative_to(folder)) for f in folder.glob("shards/**/*.safetensors")}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="parts are forks of this process")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_two_parts_one_killed_and_its_work_done_by_others(dataset, expected, tmp_path):
    out = tmp_path / "y"

    def fork_part(part: str, progress=lambda *event: None):
        plan = bench.plan(settings(dataset, out, part=part))
        return forked(lambda: plan.run(progress))

    def dies_half_way(stage, dataset, seed, done, total):
        if stage == "methods" and done >= total // 2:
            os.kill(os.getpid(), signal.SIGKILL)

    first, second = fork_part("1/2"), fork_part("2/2", dies_half_way)
    assert killed(second)
    assert not killed(first)
    assert not bench.Run.open(out).complete
    before = {name: (out / name).stat().st_mtime_ns for name in shard_files(out)}
    assert before
    assert list(map(str, bench.plan(settings(dataset, out, part="1/2")).unfinished_parts())) == ["2/2"]
    for part in ("3/3", "1/3", "2/3"):
        _, run = run_part(dataset, out, part)
    assert run.complete
    assert figures(run) == expected
    assert {name: (out / name).stat().st_mtime_ns for name in before} == before, "a finished file was written again"
    assert sorted(f.name for f in out.iterdir()) == ["DONE", "features", "manifest.json", "shards"]


def test_each_part_is_done_and_features_are_made_once(dataset, expected, tmp_path, monkeypatch):
    made = Counter()
    fill = bench._features.FeatureCache.fill

    def counting(self, blocks, *rest):
        made.update(blocks)
        return fill(self, blocks, *rest)

    monkeypatch.setattr(bench._features.FeatureCache, "fill", counting)
    found: list[set[str]] = []
    for part in ("1/2", "2/2"):
        plan, run = run_part(dataset, tmp_path, part)
        found.append(shard_files(tmp_path) - set().union(*found))
        assert plan.unfinished_parts() == ([bench.Part(2, 2)] if part == "1/2" else [])
    assert [sum("/tpt+ecots/" in name for name in part) for part in found] == [2, 1]
    assert run.complete
    assert figures(run) == expected
    # The first part has the stream: it made all features itself rather than wait.
    assert made == {0: 1, 1: 1}


@pytest.mark.parametrize(("size", "count"), [(4, 3), (16, 2), (20, 4), (12, 1), (28, 9)])
def test_the_assignment_covers_everything_once(dataset, tmp_path, size, count):
    plan = bench.plan(settings(dataset, tmp_path / "y", methods=["zeroshot", "tda"], shard_size=size, seeds=(0, 1, 2)))
    groups, streams = units(plan.jobs())
    shards = Counter((part.seed, shard) for part in groups for shard in part.shards)
    assert shards == {(seed, shard): 1 for seed in (0, 1, 2) for shard in range(-(-3 * EACH // size))}
    owners: dict[tuple[int, int], set[int]] = {}
    for number, part in enumerate(groups):
        for place in (place for shard in part.shards for place in part.positions(shard)):
            owners.setdefault((part.seed, place // BLOCK), set()).add(number)
    assert all(len(numbers) == 1 for numbers in owners.values()), "a feature file belongs to two groups"
    assert [(part.seed, part.shards) for part in streams] == [(seed, range(-(-3 * EACH // size))) for seed in (0, 1, 2)]
    shares = [_own_jobs(plan.jobs(), bench.Part(index, count)) for index in range(1, count + 1)]
    assert Counter((part.seed, part.is_stream, shard) for own in shares for part in own for shard in part.shards) == {
        (seed, stream, shard): 1 for seed, shard in shards for stream in (False, True)
    }
    assert [[part.seed for part in own if part.is_stream] for own in shares] == [
        [seed for seed in (0, 1, 2) if seed % count == index] for index in range(count)
    ]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="parts are forks of this process")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_parts_that_start_at_the_same_time_share_one_manifest(dataset, expected, tmp_path):
    for attempt in range(3):
        plans = [bench.plan(settings(dataset, tmp_path / str(attempt), part=f"{i}/3")) for i in (1, 2, 3)]
        assert not any(killed(pid) for pid in [forked(plan.run) for plan in plans])
        assert bench.check_run(tmp_path / str(attempt)).ok
        assert figures(bench.Run.open(tmp_path / str(attempt))) == expected


def test_parts_agree_on_settings_and_exclude_whole_runs(dataset, tmp_path):
    options = {"methods": ["zeroshot"], "limit": 8}
    run_part(dataset, tmp_path / "y", "1/2", **options)
    with pytest.raises(cots.InputError, match="was run with other settings: views of photos: 2, now 5"):
        run_part(dataset, tmp_path / "y", "2/2", **{**options, "views": 5})
    with locked(tmp_path / "y", 2):
        with pytest.raises(cots.CotsError, match=r"Another run is active in .*: part 2, process"):
            run_part(dataset, tmp_path / "y", "2/2", **options)
        with pytest.raises(cots.CotsError, match=r"Another run is active in .*: part 2, process"):
            bench.run(settings(dataset, tmp_path / "y", **options))
    assert run_part(dataset, tmp_path / "y", "2/2", **options)[1].complete
    with pytest.raises(cots.InputError, match=r"--retry-failed\) is not possible with part"):
        bench.plan(settings(dataset, tmp_path / "y", part="1/2", **options)).run(retry_failed=True)


def test_the_command_with_parts(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr("cots.bench._setup.load", lambda name, **options: tiny("vit"))
    options = {"datasets": dataset.where, "methods": "zeroshot+cots", "device": "cpu", "views": 2}
    expected = figures(bench.run(bench.RunConfig(**options, limit=17, shard_size=16, out=tmp_path / "x")))
    (tmp_path / "run.toml").write_text("views = 2\nlimit = 17\nshard_size = 16\n")
    words = ["run", "--config", str(tmp_path / "run.toml"), "--datasets", dataset.where, "--device", "cpu"]
    words += ["--methods", "zeroshot+cots", "--out", str(tmp_path / "y"), "--allow-errors"]  # one photo is broken
    first, second = (CliRunner().invoke(app, [*words, "--part", part]) for part in ("1/2", "2/2"))
    assert (first.exit_code, second.exit_code) == (0, 0), first.output + second.output
    assert "part: 1/2" in first.output
    assert "part 1/2 is done; not done yet: 2/2" in first.output
    assert "next: cots report" in second.output
    run = bench.Run.open(tmp_path / "y")
    assert run.complete
    assert figures(run) == expected
