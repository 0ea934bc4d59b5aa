"""One run at a time in a folder, or the ranks of one job; the locks of dead processes are free."""

from __future__ import annotations

import json
import os
import signal

import pytest
from support.kills import forked, killed

import cots
from cots._files import location
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
