"""One process at a time in a run folder."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .._errors import CotsError
from ._files import cannot_write

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

NAME = "lock"

# The system's lock belongs to the process, so it cannot keep two threads of one process apart.
_held: set[str] = set()
_held_guard = threading.Lock()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process; refuse, and name the holder, while another one lives.

    The operating system drops the lock with the process that holds it, however that ends, so the lock of a dead process
    is simply taken over. Record locks (`lockf`), because children of a killed run must not go on holding it.
    """
    key = os.path.realpath(folder)
    with _held_guard:
        if key in _held:
            raise _refusal(folder, {"pid": os.getpid(), "host": platform.node()})
        _held.add(key)
    try:
        descriptor = _acquire(folder / NAME)
        try:
            yield
        finally:
            # Unlinked while it is held: whoever waits on this file finds out that it is no longer the lock's.
            with contextlib.suppress(OSError):
                os.unlink(folder / NAME)
            os.close(descriptor)
    finally:
        with _held_guard:
            _held.discard(key)


def _acquire(file: Path) -> int:
    while True:
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise cannot_write(file, error) from error
        try:
            holder = _read(descriptor)
            if not _take(descriptor, holder):
                raise _refusal(file.parent, _read(descriptor) or holder)
            if not _is_current(descriptor, file):
                os.close(descriptor)
                continue
            # A lock of another machine may not reach us through a shared file system: it can seem free and be held.
            if holder and holder.get("machine") != _machine() and holder.get("host") != platform.node():
                raise _refusal(file.parent, holder)
            _write(descriptor, file)
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise
        return descriptor


def _take(descriptor: int, holder: dict[str, Any]) -> bool:
    if fcntl is None:
        return not holder
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # A file system without locks: there the number of the process has to do.
        return error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL) and not _alive(holder)
    return True


def _is_current(descriptor: int, file: Path) -> bool:
    """Whether the file that was locked is still the one of that name: its last holder may have removed it meanwhile."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


def _read(descriptor: int) -> dict[str, Any]:
    os.lseek(descriptor, 0, os.SEEK_SET)
    try:
        holder = json.loads(os.read(descriptor, 4096) or b"{}")
    except ValueError:
        return {}  # killed while writing it
    return holder if isinstance(holder, dict) else {}


def _write(descriptor: int, file: Path) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    holder = {"pid": os.getpid(), "host": platform.node(), "machine": _machine(), "since": now}
    try:
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, json.dumps(holder).encode())
    except OSError as error:
        raise cannot_write(file, error) from error


def _machine() -> str:
    """The running system: a container that starts again has another host name but the same kernel."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()


def _alive(holder: dict[str, Any]) -> bool:
    pid = holder.get("pid", 0)
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _refusal(folder: Path, holder: dict[str, Any]) -> CotsError:
    pid, host = holder.get("pid", "?"), holder.get("host", "?")
    since = f" since {holder['since']}" if "since" in holder else ""
    known = host == platform.node() and fcntl is not None
    stale = "" if known else f" If that process is gone, delete {folder / NAME}."
    return CotsError(
        f"Another run is working in {folder}: process {pid} on {host}{since}. Wait for it, or give another folder."
        + stale
    )
