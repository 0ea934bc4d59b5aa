"""One run at a time in a folder, or the ranks of one job; the locks of dead processes are free."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support.kills import forked, killed

import cots
from cots._files import location
from cots.bench import _lock
from cots.bench._lock import locked, rank_holder

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="holders are forks of this process"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]
ELSEWHERE = json.dumps({"pid": 1, "host": "elsewhere", "machine": "other"})


class Holder:
    """A process that holds a lock until it is killed."""

    def __init__(self, folder, rank=None) -> None:
        ready, tell = os.pipe()

        def hold():
            with locked(folder, rank):
                os.write(tell, b".")
                signal.pause()

        self.pid = forked(hold)
        os.read(ready, 1)

    def __enter__(self) -> int:
        return self.pid

    def __exit__(self, *error) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert killed(self.pid)


def refused(folder, message: str, rank: int | None = None) -> None:
    with pytest.raises(cots.CotsError, match=message), locked(folder, rank):
        pass


@pytest.fixture(params=["folder", "memory"])
def folder(request, tmp_path):
    """A local folder, or one behind a URL."""
    return tmp_path if request.param == "folder" else location(f"memory://{tmp_path.name}")


def test_two_threads_of_one_process(folder):
    with locked(folder):
        refused(folder, rf"Another run is active in .*: process {os.getpid()} on .* Wait for it to finish")
        assert (folder / "lock").exists()
    assert not (folder / "lock").exists()
    with locked(folder):
        pass


def test_two_processes(tmp_path):
    with Holder(tmp_path) as pid:
        assert json.loads((tmp_path / "lock").read_text())["pid"] == pid
        refused(tmp_path, f"process {pid} on .* since")
        assert (tmp_path / "lock").exists()
    # The file of a dead process stays behind, and its lock is free.
    assert (tmp_path / "lock").exists()
    with locked(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


def test_ranks_and_runs_exclude_each_other(tmp_path):
    with Holder(tmp_path, rank=1) as pid:
        refused(tmp_path, rf"rank 1, process {pid} on .* since")
        refused(tmp_path, rf"rank 1, process {pid} on", rank=1)
        holder = rank_holder(tmp_path, 1)
        assert holder is not None
        assert holder.pid == pid
        with locked(tmp_path, rank=0):
            pass
    assert rank_holder(tmp_path, 1) is None
    with locked(tmp_path):
        refused(tmp_path, rf"active in .*: process {os.getpid()} on", rank=0)


def test_a_process_on_another_machine_is_trusted_to_be_alive(folder):
    with locked(folder):
        pass
    (folder / "lock").write_text(ELSEWHERE)
    refused(folder, r"process 1 on elsewhere.* If that process no longer exists, delete .*lock\.")
    (folder / "lock").write_text('{"pid": 12')  # killed while it wrote
    with locked(folder):
        pass
    # A rank that was moved takes over from its double; other kinds of runs do not.
    (folder / "lock.rank1").write_text(ELSEWHERE)
    refused(folder, r"rank 1, process 1 on elsewhere.* delete .*lock.rank1")
    with locked(folder, rank=1):
        pass
    assert not (folder / "lock.rank1").exists()


class Store:
    """Counts the operations on the store behind memory:// URLs, and does something else before one of them."""

    def __init__(self, patch) -> None:
        self.count, self.at, self.meanwhile = 0, 0, lambda: None
        for name in ("info", "_open", "cat_file", "pipe_file", "rm", "rm_file", "_rm"):
            patch.setattr(MemoryFileSystem, name, self.counting(getattr(MemoryFileSystem, name)))

    def counting(self, operation):
        def counted(*args, **options):
            self.count += 1
            if self.count == self.at:
                self.meanwhile()
            return operation(*args, **options)

        return counted


@pytest.mark.parametrize("dead", [1, 2])
def test_a_live_lock_taken_in_between_stays(tmp_path, monkeypatch, dead):
    """Two processes find a dead holder: whatever the second does in between, one of them has the lock."""
    (process := forked(lambda: None)) and killed(process)
    left = json.dumps({"pid": process, "host": "here", "machine": _lock._machine()}).encode()
    store, outcomes = Store(monkeypatch), set()
    for step in range(1, 200):
        folder = location(f"memory://{tmp_path.name}-{dead}-{step}")
        with contextlib.ExitStack() as second, contextlib.ExitStack() as first:
            got = {}

            def lock(name, held, folder=folder, got=got):
                try:
                    held.enter_context(_lock._ObjectLock(folder / "lock").acquire(take_over=False))
                except cots.CotsError:
                    return
                got[name] = (folder / "lock").read_bytes()

            (folder / "lock").write_bytes(left)
            if dead == 2:  # the process that removed the first died too
                name = f"lock.{hashlib.sha256(left).hexdigest()[:16]}"
                (folder / name).write_bytes(left)
            store.count, store.at, store.meanwhile = 0, step, lambda: lock("second", second)
            lock("first", first)
            if store.count < step:
                break
            store.at = 0
            assert len(got) <= 1, f"both have the lock after step {step}"
            if got:
                assert (folder / "lock").read_bytes() == next(iter(got.values()))
            outcomes.add(tuple(got))
    assert step > 5
    assert {("first",), ("second",)} <= outcomes


def test_a_lock_that_was_taken_over_is_not_released(folder):
    """A process that was given up for dead on another machine ends after all."""
    with contextlib.suppress(cots.CotsError), locked(folder, rank=1):
        (folder / "lock.rank1").write_text(ELSEWHERE)
    assert (folder / "lock.rank1").read_text() == ELSEWHERE
