"""Jobs that are killed, resumed and repeated: the same records in the end, bit for bit."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support import runs
from support.damage import flip
from support.kills import STEPS, die_at, forked, killed
from support.runs import figures, photos, stop_at, stream_order

import cots
from cots import bench
from cots.adapters import ADAPTERS

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="kills processes that are forks of this one"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]
METHODS = ("tpt+ecots", "tda", "tda+cots", "ttl")
config = functools.partial(runs.config, views=2)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos", 4, broken=("car/2.png", "tree/0.png"))


@pytest.fixture(scope="module")
def expected(dataset, tmp_path_factory):
    """The figures of an undisturbed run."""
    return figures(bench.run(config(dataset, tmp_path_factory.mktemp("runs") / "whole", methods=METHODS)))


def written(folder: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in folder.rglob("*.safetensors")}


def test_killed_at_every_kind_of_step_again_and_again(dataset, expected, tmp_path):
    rng = random.Random(4)
    methods = ("tpt+ecots", "tda")  # ttl, the slowest, is killed in the tests below
    plan = bench.plan(config(dataset, tmp_path / "y", methods=methods, shard_size=4))
    kills, seen = Counter(), {}
    while True:
        kind = rng.choice(STEPS)
        # Few steps each time, so that many kills fit into one run; the first write is the lock's.
        step = {"open": rng.randint(1, 6), "write": rng.randint(1, 3), "fsync": rng.randint(1, 4)}.get(kind, 1)

        def job(step=step, kind=kind):
            with die_at(step, kind):
                plan.run()

        if not killed(forked(job)):
            break
        kills[kind] += 1
        now = written(tmp_path / "y")
        states = {file for file in now if "state" in file.parts}
        assert {file: now.get(file) for file in seen} == seen, "a finished file was written again or lost"
        seen = {file: stamp for file, stamp in now.items() if file not in states}
        assert len(states) <= 2
    assert kills.total() > 15
    assert min(kills[kind] for kind in STEPS) > 0
    run = bench.Run.open(tmp_path / "y")
    assert run.complete
    assert figures(run) == {key: expected[key] for key in expected if key[1] in methods}
    assert sorted(f.name for f in run.folder.iterdir()) == ["DONE", "features", "manifest.json", "shards"]
    assert not [f for f in run.folder.rglob("*") if f.name.endswith(".tmp")]


@pytest.mark.parametrize("seed", range(2))
def test_killed_once_anywhere(dataset, expected, tmp_path, seed):
    plan = bench.plan(config(dataset, tmp_path / "y", methods=METHODS, shard_size=4 << seed))
    step = random.Random(seed).randint(1, 100)

    def job():
        with die_at(step):
            plan.run()

    assert killed(forked(job))
    assert figures(plan.run()) == expected


def test_killed_at_any_time(dataset, expected, tmp_path):
    rng = random.Random(0)
    plan = bench.plan(config(dataset, tmp_path / "y", methods=METHODS, workers=1))

    def job():
        os.setpgrp()
        plan.run()

    for _ in range(3):
        pid = forked(job)
        time.sleep(rng.uniform(0.0, 0.3))
        os.kill(pid, signal.SIGKILL)
        finished = not killed(pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # its own worker, which may still wait for a reader
        if finished:
            break
    assert figures(plan.run()) == expected


def test_tda_resumes_from_its_state(dataset, expected, tmp_path):
    plan = bench.plan(config(dataset, tmp_path / "y", methods=["tda", "tda+cots"], shard_size=4))
    with pytest.raises(KeyboardInterrupt):
        plan.run(stop_at(18))
    (state,) = (tmp_path / "y" / "state").rglob("*.safetensors")
    assert state.name == "00001.safetensors"
    # Without the features of the first shards the stream could not start over.
    features = next((tmp_path / "y" / "features").rglob("*.safetensors"))
    seen = []
    read = bench._features.FeatureCache.read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            bench._features.FeatureCache, "read", lambda self, places: seen.append(places) or read(self, places)
        )
        run = plan.run()
    order = stream_order(dataset, 0)
    assert seen == [order[8:]]
    assert features.exists()
    assert not (run.folder / "state").exists()
    assert figures(run) == {("photos", m, 0): expected["photos", m, 0] for m in ("tda", "tda+cots")}


def test_every_online_method_resumes_in_mid_stream(dataset, tmp_path):
    methods = [info.name for info in ADAPTERS.infos() if info.online and "(" not in info.name]
    sentences = tmp_path / "names.json"  # reta needs three texts per class
    sentences.write_text(json.dumps({name: [f"the {name}", f"art of {name}"] for name in dataset.classes}))
    options = {"methods": methods, "shard_size": 4, "descriptions": sentences}
    expected = figures(bench.run(config(dataset, tmp_path / "x", **options)))
    plan = bench.plan(config(dataset, tmp_path / "y", **options))
    with pytest.raises(KeyboardInterrupt):
        plan.run(stop_at(11 * len(methods)))
    assert {state.parent.name for state in (tmp_path / "y" / "state").rglob("*.safetensors")} == set(methods)
    assert figures(plan.run()) == expected


def test_a_damaged_state_costs_time_but_no_figure(dataset, expected, tmp_path):
    plan = bench.plan(config(dataset, tmp_path / "y", methods=["tda"], shard_size=4))
    with pytest.raises(KeyboardInterrupt):
        plan.run(stop_at(9))
    state = next((tmp_path / "y" / "state").rglob("*.safetensors"))
    flip(state)
    with pytest.warns(UserWarning, match=f"{state} is damaged .* recomputed"):
        assert figures(plan.run())["photos", "tda", 0] == expected["photos", "tda", 0]


@dataclass
class Count:
    seen: torch.Tensor


@pytest.mark.parametrize(("make", "saved"), [(Count, True), (lambda seen: int(seen), False)])
def test_online_methods_of_third_parties_resume(dataset, tmp_path, make, saved):
    @cots.adapter("counted")
    def counted(batch, *, state=None, step=1):
        """Online: the n-th sample of the stream is n times surer."""
        logits = batch.zero_shot
        before = state.seen if isinstance(state, Count) else torch.tensor(state or 0)
        seen = before + step * torch.arange(1, len(batch) + 1)
        return cots.Adapted(zero_shot_logits=logits, logits=seen[:, None, None] * logits, state=make(seen[-1]))

    try:
        expected = figures(bench.run(config(dataset, tmp_path / "x", methods=["counted"])))
        plan = bench.plan(config(dataset, tmp_path / "y", methods=["counted"]))
        with pytest.raises(KeyboardInterrupt):
            plan.run(stop_at(12))
        # A state without a form on disk starts its stream over; finished shards are not written again.
        assert bool(list((tmp_path / "y").glob("state/**/*.safetensors"))) is saved
        before = written(tmp_path / "y/shards")
        assert figures(plan.run()) == expected
        after = written(tmp_path / "y/shards")
        assert {file: after[file] for file in before} == before
    finally:
        ADAPTERS.unregister("counted")


def test_retrying_repeats_failed_shards_and_what_depends_on_them(tmp_path):
    broken, methods = "tree/3.png", ("tpt", "tda")
    whole = figures(bench.run(config(photos(tmp_path / "whole" / "photos", 5), tmp_path / "x", methods=methods)))
    dataset = photos(tmp_path / "photos", 5, broken=(broken, "car/2.png"))
    options, out = config(dataset, tmp_path / "y", methods=methods, shard_size=4), tmp_path / "y"
    run = bench.run(options)
    assert [run.failures("photos", method, 0) for method in methods] == [(2, 0)] * 2
    before = written(out / "shards")
    assert bench.run(options).failures("photos", "tpt", 0) == (2, 0), "only on request"
    assert written(out / "shards") == before
    (tmp_path / "photos" / broken).write_bytes((tmp_path / "whole" / "photos" / broken).read_bytes())
    bench.run(options, retry_failed=True)
    after = written(out / "shards")
    repeated = {(file.parent.name, file.stem) for file in after if after[file] != before[file]}
    # Samples 2 and 13 of 15, in shards 0 and 3; of an online stream, all that comes after the first of them.
    first = min(map(stream_order(dataset, 0).index, (2, 13))) // 4
    stream = {("tda", f"{shard:05d}") for shard in range(first, 4)}
    assert repeated == {("tpt", shard) for shard in ("00000", "00003")} | stream
    (tmp_path / "photos/car/2.png").write_bytes((tmp_path / "whole/photos/car/2.png").read_bytes())
    assert figures(bench.run(options, retry_failed=True)) == whole


def test_a_run_stopped_while_forgetting_failures_is_unfinished(tmp_path, monkeypatch):
    options = config(photos(tmp_path / "photos", 3, broken=("car/2.png",)), tmp_path / "y", methods=["zeroshot"])
    assert bench.run(options).complete
    removed = []

    def stop(file):
        removed.append(file.name)
        if len(removed) == 2:
            raise KeyboardInterrupt
        file.unlink()

    monkeypatch.setattr(bench._plan, "remove", stop)
    with pytest.raises(KeyboardInterrupt):
        bench.run(options, retry_failed=True)
    assert removed[0] == "DONE"
    assert not bench.Run.open(tmp_path / "y").complete
