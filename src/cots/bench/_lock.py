"""Locks on a run folder: one process at a time, or the parts of one run."""

import contextlib
import errno
import hashlib
import json
import os
import platform
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from upath import UPath

from .._errors import CotsError
from .._files import Location, create, fresh, names, writing

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_NAME = "lock"
_PART, _MANIFEST = f"{_NAME}.part", f"{_NAME}.manifest"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL)  # file systems without record locks
_PATIENCE = 60.0  # seconds to wait for another part that updates the manifest

# Record locks belong to the process, so they do not exclude two threads of one process.
_held: set[str] = set()
_held_guard = threading.Lock()


class RunActive(CotsError):
    """Another process holds the lock."""


def is_lock(name: str) -> bool:
    return name.partition(".")[0] == _NAME


@contextlib.contextmanager
def locked(folder: Location, part: int | None = None) -> Iterator[None]:
    """Lock `folder` for this process, alone or as one `part`; an error names the process of another active run.

    A whole run excludes parts and other runs. Parts exclude whole runs and a second process with the same part, but not
    each other.
    """
    # A part may be restarted on any machine and would write the same bytes, so it takes over.
    with _hold(folder, _NAME if part is None else f"{_PART}{part}", take_over=part is not None):
        others = [_NAME] if part is not None else [name for name in names(folder) if name.startswith(_PART)]
        for other in others:
            lock = _lock(folder, other)
            holder = Holder.here() if str(lock.file) in _held else lock.holder()
            if holder:
                raise _refusal(folder / other, holder)
        yield


@contextlib.contextmanager
def updating_manifest(folder: Location) -> Iterator[None]:
    """Exclude other parts of the run while this one reads and writes the manifest."""
    deadline = time.monotonic() + _PATIENCE
    with contextlib.ExitStack() as held:
        while True:
            try:
                held.enter_context(_hold(folder, _MANIFEST))
                break
            except RunActive:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield


@contextlib.contextmanager
def _hold(folder: Location, name: str, *, take_over: bool = False) -> Iterator[None]:
    lock = _lock(folder, name)
    with _held_guard:
        if str(lock.file) in _held:
            raise _refusal(lock.file, Holder.here())
        _held.add(str(lock.file))
    try:
        with lock.acquire(take_over):
            yield
    finally:
        _held.discard(str(lock.file))


def _lock(folder: Location, name: str) -> "_FileLock | _ObjectLock":
    return _ObjectLock(folder / name) if isinstance(folder, UPath) else _FileLock(folder.resolve() / name)


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process as described in its lock file."""

    pid: int = 0  # 0: unknown
    host: str = "?"
    machine: str = ""
    since: str = ""
    id: str = ""  # of this lock, because a process can lock twice in a second

    @classmethod
    def here(cls) -> "Holder":
        now = datetime.now(UTC).isoformat(timespec="seconds")
        token = secrets.token_hex(8)
        return cls(pid=os.getpid(), host=platform.node(), machine=_machine(), since=now, id=token)

    @classmethod
    def parse(cls, data: bytes) -> "Holder | None":
        """From the content of a lock file; None if it is incomplete because its process was killed."""
        try:
            return cls(**json.loads(data))
        except (ValueError, TypeError):
            return None

    def description(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    def __str__(self) -> str:
        return f"process {self.pid or '?'} on {self.host}" + (f" since {self.since}" if self.since else "")

    @property
    def elsewhere(self) -> bool:
        """Whether it runs on another machine, so that its process cannot be checked."""
        return self.machine != _machine() and self.host != platform.node()

    @property
    def alive(self) -> bool:
        """Whether a process with this id runs, as far as can be checked."""
        if self.elsewhere or os.name != "posix":
            return True
        try:
            os.kill(self.pid, 0)
        except OSError as error:
            return error.errno == errno.EPERM  # a process of another user
        return self.pid > 0


@dataclass(frozen=True)
class _FileLock:
    """A record lock (`lockf`) on a local or shared file.

    The operating system releases it when its process ends for any reason. Unlike `flock`, child processes do not
    inherit it.
    """

    file: Path

    @contextlib.contextmanager
    def acquire(self, take_over: bool) -> Iterator[None]:
        with contextlib.ExitStack() as held:
            with writing(self.file):
                descriptor, free, last = held.enter_context(self._try())
                # A shared file system may not show locks of other machines: one that looks free may be held.
                if not free or (last and last.elsewhere and not take_over):
                    raise _refusal(self.file, last or Holder())
                os.ftruncate(descriptor, 0)
                os.lseek(descriptor, 0, os.SEEK_SET)
                description = Holder.here().description()
                os.write(descriptor, description)
            # Unlinked while still locked, so that a waiting process notices that its file is no longer the lock.
            held.callback(self._release, description)
            yield

    def holder(self) -> Holder | None:
        """The live process that holds the lock, if any; removes the file of a dead process."""
        if self.file.exists():
            with writing(self.file), self._try() as (_, free, last):
                if not free or (last and last.elsewhere):
                    return last or Holder()
                os.unlink(self.file)
        return None

    def _release(self, description: bytes) -> None:
        with contextlib.suppress(OSError):
            if self.file.read_bytes() == description:  # else another machine took over
                self.file.unlink()

    @contextlib.contextmanager
    def _try(self) -> Iterator[tuple[int, bool, Holder | None]]:
        """Open the file and try to lock it: its descriptor, whether that succeeded, and its last holder."""
        while True:
            descriptor, error = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o666), 0
            try:
                try:
                    if fcntl is not None:
                        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as problem:
                    error = problem.errno
                last = Holder.parse(os.read(descriptor, 4096))
                free = not (last and last.alive) if fcntl is None or error in _NO_LOCKS else not error
                if not free or self._is_current(descriptor):
                    yield descriptor, free, last
                    return
            finally:
                os.close(descriptor)

    def _is_current(self, descriptor: int) -> bool:
        """Whether the opened file still has the name of the lock: its last holder may have removed it."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self.file))
        except FileNotFoundError:
            return False


@dataclass(frozen=True)
class _ObjectLock:
    """An object behind a URL, whose existence is the lock: object stores cannot release locks of dead processes.

    A store deletes by name. An object is therefore compared and deleted under a second lock, named after its content:
    otherwise, of two processes that find a dead holder, the second could delete the lock that the first has just taken.
    """

    file: UPath

    @contextlib.contextmanager
    def acquire(self, take_over: bool) -> Iterator[None]:
        description = Holder.here().description()
        self._create(description, take_over)
        try:
            yield
        finally:
            with contextlib.suppress(Exception):  # packages of stores have their own
                if take_over:  # another machine may have taken over from this process, too
                    self._remove(description)
                else:
                    self.file.unlink()

    def holder(self) -> Holder | None:
        """The live process named in the object, as far as can be checked; removes the object of a dead process."""
        content = self._content()
        if content is None:
            return None
        holder = Holder.parse(content)
        if holder and holder.alive:
            return holder
        self._remove(content)
        return None

    def _create(self, description: bytes, take_over: bool = False) -> None:
        with writing(self.file):
            while not create(self.file, description):
                content = self._content()
                if content is None:
                    continue
                holder = Holder.parse(content)
                if holder and holder.alive and not (take_over and holder.elsewhere):
                    raise _refusal(self.file, holder)
                self._remove(content)

    def _content(self) -> bytes | None:
        try:
            return fresh(self.file).read_bytes()
        except FileNotFoundError:
            return None

    def _remove(self, content: bytes) -> None:
        """Remove the object if it still has this content."""
        digest = hashlib.sha256(content).hexdigest()[:16]
        guard = _ObjectLock(self.file.with_name(f"{self.file.name}.{digest}"))
        guard._create(Holder.here().description())
        try:
            if self._content() == content:
                self.file.unlink()
        finally:
            guard.file.unlink()  # by name: nobody takes over a guard from a live process


def _machine() -> str:
    """An id of the running kernel: a restarted container has a new host name but the same kernel."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()


def _refusal(file: Location, holder: Holder) -> RunActive:
    part = f"part {file.name.removeprefix(_PART)}, " if file.name.startswith(_PART) else ""
    checked = holder.host == platform.node() and fcntl is not None
    stale = "" if checked else f" If that process no longer exists, delete {file}."
    return RunActive(
        f"Another run is active in {file.parent}: {part}{holder}. Wait for it to finish or use another folder.{stale}"
    )
