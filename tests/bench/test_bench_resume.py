"""Runs that are killed, refused, starved of disk or run twice: the same figures in the end, bit for bit."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support.models import tiny
from support.runs import config, figures, photos

import cots
from cots import bench
from cots.bench import _manifest

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="kills processes that are forks of this one"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]

METHODS = ("tpt", "tpt+ecots", "tda", "tda+cots", "ttl")
STEPS = ("open", "write", "fsync", "replace", "unlink")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos", broken=("car/2.png", "tree/0.png"))


@pytest.fixture(scope="module")
def expected(dataset, tmp_path_factory):
    """The figures of a run that nothing disturbed."""
    return figures(bench.run(config(dataset, tmp_path_factory.mktemp("runs") / "whole", methods=METHODS)))


@contextmanager
def step_by_step(act):
    """Call `act(count, name, arguments)` before every call that changes files."""
    originals = {name: getattr(os, name) for name in STEPS}
    count = 0

    def wrap(name):
        def call(*arguments, **options):
            nonlocal count
            count += 1
            act(count, name, arguments)
            return originals[name](*arguments, **options)

        return call

    try:
        for name in STEPS:
            setattr(os, name, wrap(name))
        yield lambda: count
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


def forked(job) -> int:
    """Run `job` in a fork of this process; its number."""
    if pid := os.fork():
        return pid
    try:
        job()
        os._exit(0)
    except BaseException as error:
        os.write(2, repr(error).encode())
        os._exit(1)


def killed(pid: int) -> bool:
    """Wait; whether it was killed (else it must have ended well)."""
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)


def die_at(step: int, kind: str | None = None):
    """Kill this process at its `step`-th file operation (of a kind); a write is cut in half first."""
    write, passed = os.write, []

    def act(count, name, arguments):
        if kind in (None, name):
            passed.append(name)
        if len(passed) == step:
            if name == "write":
                write(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    return step_by_step(act)


def whole_files(folder: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in folder.rglob("*.safetensors")}


def test_killed_at_every_kind_of_step_again_and_again(dataset, expected, tmp_path):
    rng = random.Random(4)
    plan = bench.plan(config(dataset, tmp_path / "y", methods=METHODS))
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
        now = whole_files(tmp_path / "y")
        states = {file for file in now if "state" in file.parts}
        assert {file: now.get(file) for file in seen} == seen, "a finished file was written again or lost"
        seen = {file: stamp for file, stamp in now.items() if file not in states}
        assert len(states) <= 2
    assert kills.total() > 15
    assert min(kills[kind] for kind in STEPS) > 0
    run = bench.Run.open(tmp_path / "y")
    assert run.complete
    assert figures(run) == expected
    assert sorted(f.name for f in run.folder.iterdir()) == ["DONE", "features", "manifest.json", "shards"]
    assert not [f for f in run.folder.rglob("*") if f.name.endswith(".tmp")]


@pytest.mark.parametrize("seed", range(4))
def test_killed_once_anywhere(dataset, expected, tmp_path, seed):
    plan = bench.plan(config(dataset, tmp_path / "y", methods=METHODS, shard_size=4 << seed % 3))
    step = random.Random(seed).randint(1, 250)

    def job():
        with die_at(step):
            plan.run()

    killed(forked(job))
    assert figures(plan.run()) == expected


def test_killed_at_any_time(dataset, expected, tmp_path):
    rng = random.Random(0)
    plan = bench.plan(config(dataset, tmp_path / "y", methods=METHODS, workers=1))
    for _ in range(12):
        pid = forked(plan.run)
        time.sleep(rng.uniform(0.0, 0.5))
        os.kill(pid, signal.SIGKILL)
        if not killed(pid):
            break
    assert figures(plan.run()) == expected


def test_a_killed_program_goes_on_in_another(dataset, expected, tmp_path):
    program = (
        "import torch; torch.set_num_threads(1)\n"
        "from support.runs import config; from cots import bench, data\n"
        f"dataset, out = data.open_dataset({dataset.where!r}), {str(tmp_path / 'y')!r}\n"
        f"bench.run(config(dataset, out, methods={METHODS!r}, workers=2))"
    )
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(tests), "OMP_NUM_THREADS": "1"}
    first = subprocess.Popen([sys.executable, "-c", program], env=environment, cwd=tests)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "y").glob("shards/*/*/*/*.safetensors")) and time.monotonic() < deadline:
        assert first.poll() is None
        time.sleep(0.01)
    first.kill()
    first.wait()
    assert not bench.Run.open(tmp_path / "y").complete
    assert figures(bench.run(config(dataset, tmp_path / "y", methods=METHODS))) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 8}, "batch_size: 4, now 8"),
        ({"views": 5}, "views of photos: 6, now 5"),
        ({"augmix": False}, "augmix of photos: true, now false"),
        ({"template": "a picture of a {}."}, r'template of photos: "a photo of a \{\}.", now "a picture of a \{\}."'),
        ({"limit": 9}, "limit of photos: null, now 9"),
        ({"settings": {"ctpt": {"weight": 7.0}}}, "weight of ctpt on photos: 50.0, now 7.0"),
        ({"methods": "ctpt", "settings": {"ctpt": {"weight": 7.0}}}, "weight of ctpt on photos: 50.0, now 7.0"),
        ({"solver": "exact"}, 'solver of cots on photos: "adam", now "exact"'),
        ({"model": tiny("vit", seed=1)}, r"model weights: \w{12}\.\.\., now \w{12}\.\.\."),
        ({"views": 5, "batch_size": 8}, "batch_size: 4, now 8; views of photos: 6, now 5"),
    ],
)
def test_a_change_that_changes_results_is_refused_by_name(dataset, tmp_path_factory, changes, message):
    folder = tmp_path_factory.getbasetemp() / "refusals"
    if not folder.exists():
        bench.run(config(dataset, folder, methods=["ctpt+cots"]))
    before = {f: f.stat().st_mtime_ns for f in folder.rglob("*") if f.is_file()}
    with pytest.raises(cots.InputError, match=f"refusals was run with other settings: {message}. Put them back"):
        bench.run(config(dataset, folder, **{"methods": ["ctpt+cots"], **changes}))
    assert {f: f.stat().st_mtime_ns for f in folder.rglob("*") if f.is_file()} == before


def test_another_split_is_refused(tmp_path):
    bench.run(config(photos(tmp_path / "photos"), tmp_path / "y", methods=["tpt"]))
    with pytest.raises(cots.InputError, match=r"split \(samples, labels or class names\) of photos: "):
        bench.run(config(photos(tmp_path / "photos", each=8), tmp_path / "y", methods=["tpt"]))


def test_methods_seeds_and_datasets_can_be_added(dataset, expected, tmp_path):
    small = photos(tmp_path / "small", each=2)
    first = bench.run(config(dataset, tmp_path / "y", methods=["tpt", "tda"], shard_size=4))
    before = whole_files(first.folder)
    # The folder keeps its shard size: what is there stays as it is.
    second = bench.run(config(dataset, first.folder, methods=METHODS, shard_size=64))
    assert second.methods == ("tpt", "tda", "tpt+ecots", "tda+cots", "ttl")
    assert second.manifest["shard_size"] == 4
    after = whole_files(first.folder)
    assert {file: after[file] for file in before} == before
    assert figures(second) == expected
    third = bench.run(config(dataset, first.folder, methods=["tpt"], seeds=(0, 1)))
    assert not third.complete
    assert {(m.method, m.seed) for m in third.missing()} == {(m, 1) for m in METHODS if m != "tpt"}
    with pytest.raises(cots.InputError, match=r"ttl on photos with seed 1 is not finished in .*: 6 of 6 shards are"):
        third.records("photos", "ttl", 1)
    assert "missing: tda+cots on photos with seed 1 (6 shards)" in third.text()
    fourth = bench.run(config(dataset, first.folder, methods=METHODS, datasets=[dataset, small], seeds=(0, 1)))
    assert fourth.complete
    assert fourth.text().endswith("complete")
    assert fourth.datasets == ("photos", "small")
    assert {key: value for key, value in figures(fourth).items() if key in expected} == expected


def test_what_is_there_can_be_read_while_the_rest_is_not(dataset, expected, tmp_path):
    run = bench.run(config(dataset, tmp_path / "y", methods=["tpt"]))
    (run.folder / "shards/photos/seed0/tpt/00001.safetensors").unlink()
    assert run.missing() == [("photos", "tpt", 0, (1,))]
    some = run.records("photos", "tpt", 0, partial=True)
    assert (len(some), some.failed, len(some.errors)) == (12, 1, 1)
    assert not bench.run(config(dataset, tmp_path / "y", methods=["tpt"])).missing()


def test_a_damaged_file_is_named_and_made_anew(dataset, expected, tmp_path):
    run = bench.run(config(dataset, tmp_path / "y", methods=["tpt"]))
    shard = run.folder / "shards/photos/seed0/tpt/00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(
        cots.CotsError, match=r"tpt/00001.safetensors is damaged .* Delete it and give the run's command"
    ):
        run.records("photos", "tpt", 0)
    shard.unlink()
    features = run.folder / "features/photos/seed0/00000.safetensors"
    features.write_bytes(b"")
    with pytest.raises(cots.CotsError, match=r"seed0/00000.safetensors is damaged"):
        bench.run(config(dataset, run.folder, methods=["tpt"]))
    assert not run.complete
    features.unlink()
    again = bench.run(config(dataset, run.folder, methods=["tpt"]))
    assert again.complete
    assert figures(again)["photos", "tpt", 0] == expected["photos", "tpt", 0]


@pytest.mark.parametrize("call", ["write", "replace", "fsync"])
def test_a_full_disk_stops_with_a_clear_message_and_the_run_goes_on_later(dataset, expected, tmp_path, call):
    plan = bench.plan(config(dataset, tmp_path / "y", methods=METHODS))

    def full(count, name, arguments):
        if count > 60 and name == call:
            raise OSError(errno.ENOSPC, "No space left on device")

    message = (
        r"The disk is full: .*\.safetensors could not be written .*Free some space, then give the same command again"
    )
    with step_by_step(full), pytest.raises(cots.CotsError, match=message):
        plan.run()
    assert not [f for f in (tmp_path / "y").rglob("*") if f.name.endswith(".tmp") or f.name == "lock"]
    assert 0 < len(whole_files(tmp_path / "y")) < 17
    assert figures(plan.run()) == expected


def test_other_errors_of_the_disk_are_named_too(dataset, tmp_path):
    def broken(count, name, arguments):
        if name == "fsync":
            raise OSError(errno.EIO, "Input/output error")

    with step_by_step(broken), pytest.raises(cots.CotsError, match=r"could not be written \(Input/output error\)"):
        bench.run(config(dataset, tmp_path / "y", methods=["tpt"]))


def test_two_runs_in_one_folder(dataset, expected, tmp_path):
    plan = bench.plan(config(dataset, tmp_path / "y", methods=METHODS))
    refusal = rf"Another run is working in .*y: process {os.getpid()} on .* Wait for it, or give another folder"
    with pytest.raises(cots.CotsError, match=refusal):
        plan.run(lambda *event: plan.run())
    ready, tell = os.pipe()
    told = []

    def wait(*event):
        if not told:
            told.append(os.write(tell, b"."))
            time.sleep(60)

    holder = forked(lambda: plan.run(wait))
    os.read(ready, 1)
    try:
        lock = json.loads((tmp_path / "y" / "lock").read_text())
        assert lock["pid"] == holder
        with pytest.raises(cots.CotsError, match=f"process {holder} on .* since"):
            plan.run()
        assert (tmp_path / "y" / "lock").exists()
    finally:
        os.kill(holder, signal.SIGKILL)
        assert killed(holder)
    # The lock file of a dead process is still there, and is taken over.
    assert (tmp_path / "y" / "lock").exists()
    assert figures(plan.run()) == expected
    assert not (tmp_path / "y" / "lock").exists()


def test_a_lock_of_another_machine_is_left_to_its_owner(dataset, tmp_path):
    plan = bench.plan(config(dataset, tmp_path / "y", methods=["zeroshot"]))
    lock = tmp_path / "y" / "lock"
    lock.parent.mkdir()
    lock.write_text(json.dumps({"pid": 1, "host": "elsewhere", "machine": "other"}))
    with pytest.raises(cots.CotsError, match=r"process 1 on elsewhere.* If that process is gone, delete .*y/lock"):
        plan.run()
    lock.write_text('{"pid": 12')
    assert plan.run().complete


def test_tda_goes_on_from_its_state(dataset, expected, tmp_path, monkeypatch):
    plan = bench.plan(config(dataset, tmp_path / "y", methods=["tda", "tda+cots"], shard_size=4))

    def stop(stage, dataset, seed, done, total):
        if stage == "methods" and done >= 34:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan.run(stop)
    states = sorted((tmp_path / "y" / "state").rglob("*.safetensors"))
    assert [state.name for state in states] == ["00003.safetensors"]
    seen = []
    adapt = cots.adapt
    monkeypatch.setattr("cots.bench._stream.adapt", lambda *a, **o: seen.append(o["state"]) or adapt(*a, **o))
    states[0].write_bytes(states[0].read_bytes())
    run = plan.run()
    assert len(seen) == 2, "only the two shards that were left are seen"
    assert isinstance(seen[0], cots.TDAState)
    assert not (run.folder / "state").exists()
    for method in run.methods:
        assert figures(run)["photos", method, 0] == expected["photos", method, 0]


def test_a_lost_or_damaged_state_costs_time_but_no_figure(dataset, expected, tmp_path):
    plan = bench.plan(config(dataset, tmp_path / "y", methods=["tda"], shard_size=4))

    def stop(stage, dataset, seed, done, total):
        if stage == "methods" and done >= 17:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan.run(stop)
    next((tmp_path / "y" / "state").rglob("*.safetensors")).write_bytes(b"torn")
    assert figures(plan.run())["photos", "tda", 0] == expected["photos", "tda", 0]


def test_another_environment_is_noted_and_warned_of(dataset, expected, tmp_path, monkeypatch):
    run = bench.run(config(dataset, tmp_path / "y", methods=["tpt"]))
    monkeypatch.setattr(_manifest, "versions", lambda: {**run.manifest["versions"], "torch": "9.9"})
    bench.run(config(dataset, run.folder, methods=["tpt"]))  # nothing to do: nothing to warn of
    with pytest.warns(UserWarning, match=r"another environment \(torch .* to 9\.9\)"):
        bench.run(config(dataset, run.folder, methods=["tpt", "zeroshot"]))
    manifest = bench.Run.open(run.folder).manifest
    assert [entry["versions"]["torch"] for entry in manifest["resumed"]] == ["9.9"]
    assert manifest["versions"] == run.manifest["versions"]
    bench.run(config(dataset, run.folder, methods=["tpt+cots"]))  # said once


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no manifest of a run"),
        ('{"schema": 99}', "has schema 99; this cots reads schema 1"),
        ("[]", "no manifest"),
    ],
)
def test_a_manifest_that_cannot_be_used(dataset, tmp_path, text, message):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(cots.CotsError, match=message):
        bench.Run.open(tmp_path)
    with pytest.raises(cots.CotsError, match=message):
        bench.run(config(dataset, tmp_path, methods=["zeroshot"]))
    assert (tmp_path / "manifest.json").read_text() == text


# torch, told of the death while it reads, opens temporary files to see whether any are left; one may stay unclosed.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO name=:pytest.PytestUnraisableExceptionWarning")
def test_a_worker_that_dies_is_no_broken_image(dataset, tmp_path, monkeypatch):
    main = os.getpid()
    read = type(dataset).read

    def fatal(self, index):
        if os.getpid() != main and index == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return read(self, index)

    monkeypatch.setattr(type(dataset), "read", fatal)
    with pytest.raises(cots.CotsError, match=r"A process that makes views died .*Lower workers or free some memory"):
        bench.run(config(dataset, tmp_path / "y", methods=["tpt"], workers=1))
    assert not whole_files(tmp_path / "y")
    assert np.isfinite(
        bench.run(config(dataset, tmp_path / "y", methods=["tpt"])).records("photos", "tpt", 0).tau
    ).all()
