"""One run at a time in a run folder: one process, or the ranks of one job."""

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
from ._files import cannot_write, names
from ._paths import Location, UrlPath

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

NAME = "lock"
_RANK = f"{NAME}.rank"

# The system's lock belongs to the process, so it cannot keep two threads of one process apart.
_held: set[str] = set()
_held_guard = threading.Lock()


def is_lock(name: str) -> bool:
    return name == NAME or name.startswith(_RANK)


@contextlib.contextmanager
def locked(folder: Location, rank: int | None = None) -> Iterator[None]:
    """Hold `folder` for this process, alone or as one `rank`; refuse, and name the holder, while another run lives.

    The operating system drops the lock with the process that holds it, however that ends, so the lock of a dead process
    is simply taken over. Record locks (`lockf`), because children of a killed run must not go on holding it.
    """
    file = folder / (NAME if rank is None else f"{_RANK}{rank}")
    key = _key(file)
    with _held_guard:
        if key in _held:
            raise _refusal(file, {"pid": os.getpid(), "host": platform.node()})
        _held.add(key)
    try:
        with _store_lock(file, rank) if isinstance(file, UrlPath) else _system_lock(file, rank):
            others = [NAME] if rank is not None else [name for name in names(folder) if name.startswith(_RANK)]
            for other in others:
                if holder := holder_of(folder / other):
                    raise _refusal(folder / other, holder)
            yield
    finally:
        with _held_guard:
            _held.discard(key)


def holder_of(file: Location) -> dict[str, Any] | None:
    """Who holds the lock `file`, as far as can be told; a dead process's is taken away."""
    if _key(file) in _held:
        return {"pid": os.getpid(), "host": platform.node()}
    if isinstance(file, UrlPath):
        return _holder_behind_url(file)
    try:
        descriptor = os.open(file, os.O_RDWR)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise cannot_write(file, error) from error
    try:
        holder = _read(descriptor)
        if not _take(descriptor, holder) or _elsewhere(holder):
            return _read(descriptor) or holder or {"pid": "?"}
        if _is_current(descriptor, file):
            with contextlib.suppress(OSError):
                os.unlink(file)
        return None
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _system_lock(file: Path, rank: int | None) -> Iterator[None]:
    descriptor = _acquire(file, rank)
    try:
        yield
    finally:
        # Unlinked while it is held: whoever waits on this file finds out that it is no longer the lock's.
        with contextlib.suppress(OSError):
            os.unlink(file)
        os.close(descriptor)


def _acquire(file: Path, rank: int | None) -> int:
    while True:
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise cannot_write(file, error) from error
        try:
            holder = _read(descriptor)
            if not _take(descriptor, holder):
                raise _refusal(file, _read(descriptor) or holder)
            if not _is_current(descriptor, file):
                os.close(descriptor)
                continue
            # A lock of another machine may not reach us through a shared file system: it can seem free and be held.
            # A rank starts again wherever there is room, and its double would write the same bytes: it may go on.
            if rank is None and _elsewhere(holder):
                raise _refusal(file, holder)
            _write(descriptor, file)
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise
        return descriptor


@contextlib.contextmanager
def _store_lock(file: UrlPath, rank: int | None) -> Iterator[None]:
    """Stores have no locks that end with a process: there the file itself is the lock."""
    try:
        while True:
            try:
                file.create(_me())
                break
            except FileExistsError:
                holder = _holder_behind_url(file)
                if holder and (rank is None or not _elsewhere(holder)):
                    raise _refusal(file, holder) from None
                if holder:
                    file.unlink()
    except OSError as error:
        raise cannot_write(file, error) from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink()


def _holder_behind_url(file: UrlPath) -> dict[str, Any] | None:
    try:
        holder = _parse(file.read_bytes())
        if holder and (_elsewhere(holder) or _alive(holder)):
            return holder
        file.unlink()
    except FileNotFoundError:
        pass
    return None


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
    return _parse(os.read(descriptor, 4096))


def _parse(data: bytes) -> dict[str, Any]:
    try:
        holder = json.loads(data or b"{}")
    except ValueError:
        return {}  # killed while writing it
    return holder if isinstance(holder, dict) else {}


def _write(descriptor: int, file: Path) -> None:
    try:
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, _me())
    except OSError as error:
        raise cannot_write(file, error) from error


def _me() -> bytes:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return json.dumps({"pid": os.getpid(), "host": platform.node(), "machine": _machine(), "since": now}).encode()


def _machine() -> str:
    """The running system: a container that starts again has another host name but the same kernel."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()


def _elsewhere(holder: dict[str, Any]) -> bool:
    return bool(holder) and holder.get("machine") != _machine() and holder.get("host") != platform.node()


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


def _key(file: Location) -> str:
    return file.url if isinstance(file, UrlPath) else os.path.realpath(file)


def _refusal(file: Location, holder: dict[str, Any]) -> CotsError:
    pid, host = holder.get("pid", "?"), holder.get("host", "?")
    since = f" since {holder['since']}" if "since" in holder else ""
    rank = f"rank {file.name.removeprefix(_RANK)}, " if file.name.startswith(_RANK) else ""
    known = host == platform.node() and fcntl is not None
    stale = "" if known else f" If that process is gone, delete {file}."
    return CotsError(
        f"Another run is working in {file.parent}: {rank}process {pid} on {host}{since}. Wait for it, or give another "
        "folder." + stale
    )
