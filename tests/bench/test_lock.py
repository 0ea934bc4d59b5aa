"""One run at a time in a folder, or the parts of one run; the locks of dead processes are free."""

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
from cots._files import create, location
from cots.bench import _lock
from cots.bench._lock import locked, updating_manifest

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="holders are forks of this process"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]
ELSEWHERE = json.dumps({"pid": 1, "host": "elsewhere", "machine": "other"})


class Holder:
    """A process that holds a lock until it is killed."""

    def __init__(self, folder, part=None) -> None:
        ready, tell = os.pipe()

        def hold():
            with locked(folder, part):
                os.write(tell, b".")
                signal.pause()

        self.pid = forked(hold)
        os.read(ready, 1)

    def __enter__(self) -> int:
        return self.pid

    def __exit__(self, *error) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert killed(self.pid)


def refused(folder, message: str, part: int | None = None) -> None:
    with pytest.raises(cots.CotsError, match=message), locked(folder, part):
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


def test_parts_and_runs_exclude_each_other(tmp_path):
    with Holder(tmp_path, part=1) as pid:
        refused(tmp_path, rf"part 1, process {pid} on .* since")
        refused(tmp_path, rf"part 1, process {pid} on", part=1)
        with locked(tmp_path, part=0):
            pass
    with locked(tmp_path):
        assert not (tmp_path / "lock.part1").exists(), "the lock of a dead process is removed"
        refused(tmp_path, rf"active in .*: process {os.getpid()} on", part=0)


def test_a_process_on_another_machine_is_trusted_to_be_alive(folder):
    with locked(folder):
        pass
    (folder / "lock").write_text(ELSEWHERE)
    refused(folder, r"process 1 on elsewhere.* If that process no longer exists, delete .*lock\.")
    (folder / "lock").write_text('{"pid": 12')  # killed while it wrote
    with locked(folder):
        pass
    # A whole run does not know whether a part elsewhere is alive, and leaves its lock alone.
    (folder / "lock.part1").write_text(ELSEWHERE)
    refused(folder, r"part 1, process 1 on elsewhere")
    assert (folder / "lock.part1").read_text() == ELSEWHERE
    # A part that was moved takes over from its double; other kinds of runs do not.
    (folder / "lock.part1").write_text(ELSEWHERE)
    refused(folder, r"part 1, process 1 on elsewhere.* delete .*lock.part1")
    with locked(folder, part=1):
        pass
    assert not (folder / "lock.part1").exists()


def test_a_part_takes_nothing_over_from_a_live_process_on_this_machine(tmp_path):
    lock = location(f"memory://{tmp_path.name}/lock.part1")
    held = _lock.Holder.here().description()
    lock.write_bytes(held)
    refused(lock.parent, rf"part 1, process {os.getpid()} on", part=1)
    assert lock.read_bytes() == held


def test_parts_take_turns_with_the_manifest(folder, monkeypatch):
    with updating_manifest(folder):
        monkeypatch.setattr(_lock, "_PATIENCE", 0.1)
        with pytest.raises(cots.CotsError, match="Another run is active"), updating_manifest(folder):
            pass
    with updating_manifest(folder):
        pass


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
    with contextlib.suppress(cots.CotsError), locked(folder, part=1):
        (folder / "lock.part1").write_text(ELSEWHERE)
    assert (folder / "lock.part1").read_text() == ELSEWHERE


def test_two_processes_create_one_object(tmp_path, monkeypatch):
    """The second writes between the check of the first and its write, which the store then refuses."""
    file = location(f"memory://{tmp_path.name}/lock")
    meanwhile = MemoryFileSystem.pipe_file

    def refuse_existing(self, path, value, mode="overwrite", **options):
        """As stores with conditional writes do."""
        if mode == "create" and self.exists(path):
            raise FileExistsError(path)
        return meanwhile(self, path, value, **options)

    def late(self, path, value, mode="overwrite", **options):
        monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse_existing)
        refuse_existing(self, path, b"second", "create")
        return refuse_existing(self, path, value, mode, **options)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", late)
    assert create(file, b"first") is False
    assert file.read_bytes() == b"second"
    assert create(file, b"third") is False, "it exists"
    assert create(location(f"memory://{tmp_path.name}/other"), b"first") is True
