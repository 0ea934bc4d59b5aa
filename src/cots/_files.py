"""Atomic file operations, in a local folder or behind an fsspec URL (s3://, gs://, ...)."""

import contextlib
import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from upath import UPath

from ._errors import CotsError, InputError

Location = Path | UPath

# Object stores write a file atomically with one request and have no cheap rename; elsewhere, a rename is atomic.
_OBJECT_STORES = frozenset({"memory", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "obs"})
_TEMPORARY, DAMAGED = ".tmp", ".damaged"
_ABANDONED = 24 * 3600.0  # seconds after which a temporary file in a shared folder belongs to a dead run


class Halt(CotsError):
    """A write failed; the whole run stops, because error records could not be written either."""


def location(where: str | Path | UPath) -> Location:
    """The file or folder that `where` names: a Path, or a UPath for URLs other than file://."""
    if isinstance(where, UPath):
        return where
    text = os.fspath(where)
    if isinstance(where, Path):
        if re.match(r"[\w.+-]{2,}:/", text):
            raise InputError(f"{text} is a URL that lost a slash as a Path. Pass the URL as a string.")
        return where
    for local in ("file://", "local://"):
        if text.startswith(local):
            return Path(text.removeprefix(local))
    if "://" not in text:
        return Path(text)
    try:
        path = UPath(text.rstrip("/"))
        _ = path.fs
    except (ImportError, ValueError) as error:
        raise InputError(f"{text} cannot be opened: {error}.") from None
    return path


def names(folder: Location) -> list[str]:
    """Names of the files and folders in `folder`; empty if it does not exist."""
    try:
        return [entry.name for entry in fresh(folder).iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def fresh(where: Location) -> Location:
    """`where` without cached listings of its file system, because other processes may have written since."""
    if isinstance(where, UPath):
        where.fs.invalidate_cache()
    return where


def write_whole(file: Location, data: bytes) -> None:
    """Write `file` atomically: readers see all of it or nothing, even if this process is killed."""
    with writing(file):
        _write_url(file, data) if isinstance(file, UPath) else _write_local(file, data)


def create(file: UPath, data: bytes) -> bool:
    """Write `file` unless it exists; whether it was written. Atomic if the store has conditional writes."""
    if fresh(file).is_file():
        return False
    try:
        with _store_errors():
            _make_url_folder(file)
            file.fs.pipe_file(file.path, data, mode="create")
    except FileExistsError:
        return False
    return True


def make_folder(folder: Location) -> None:
    """Create `folder` and its parents durably; behind a URL, folders exist through their files."""
    if isinstance(folder, UPath) or folder.is_dir():
        return
    make_folder(folder.parent)
    with writing(folder):
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def remove(file: Location) -> None:
    """Remove `file` durably, if it exists."""
    with writing(file), contextlib.suppress(FileNotFoundError):
        file.unlink()
        if isinstance(file, Path):
            _sync_folder(file.parent)


def set_aside(file: Location) -> None:
    """Rename `file` to NAME.damaged, so that it does not count as finished; does nothing if it is gone."""
    with writing(file), contextlib.suppress(FileNotFoundError):
        if isinstance(file, UPath):
            file.fs.mv(file.path, file.path + DAMAGED)
        else:
            os.replace(file, f"{file}{DAMAGED}")
            _sync_folder(file.parent)


def remove_tree(folder: Location) -> None:
    """Remove `folder` with everything in it, as far as possible."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        folder.fs.rm(folder.path, recursive=True)


def remove_temporary(folder: Location, *, shared: bool = False) -> None:
    """Remove partial files of killed processes; in a `shared` folder, only those older than a day."""
    if isinstance(folder, UPath):
        return
    for file in folder.rglob(f".*{_TEMPORARY}"):
        with writing(file), contextlib.suppress(FileNotFoundError):
            if not shared or time.time() - file.stat().st_mtime > _ABANDONED:
                file.unlink()


def is_temporary(name: str) -> bool:
    return name.startswith(".") and name.endswith(_TEMPORARY)


@contextlib.contextmanager
def writing(file: Location) -> Iterator[None]:
    """Turn file-system errors into `Halt`, which stops the run."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise Halt(
            f"{'The disk is full: ' if full else ''}{file} could not be written ({error.strerror or error}). "
            f"{'Free some space' if full else 'Check permissions and storage'}, then re-run the same command to resume."
        ) from error


def _write_local(file: Path, data: bytes) -> None:
    temporary = file.with_name(_temporary_name(file.name))
    make_folder(file.parent)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, file)
        _sync_folder(file.parent)
    except BaseException:
        with contextlib.suppress(OSError):  # otherwise `remove_temporary` removes it next time
            temporary.unlink(missing_ok=True)
        raise


def _write_url(file: UPath, data: bytes) -> None:
    fs, temporary = file.fs, file.with_name(_temporary_name(file.name))
    with _store_errors():
        if file.protocol in _OBJECT_STORES:
            fs.pipe_file(file.path, data)
            return
        _make_url_folder(file)
        fs.pipe_file(temporary.path, data)
        fs.mv(temporary.path, file.path)


@contextlib.contextmanager
def _store_errors() -> Iterator[None]:
    """Turn connection errors, of which each store's package has its own types, into OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(errno.EIO, str(error)) from error


def _make_url_folder(file: UPath) -> None:
    if file.protocol not in _OBJECT_STORES:
        file.fs.makedirs(file.parent.path, exist_ok=True)


def _temporary_name(name: str) -> str:
    return f".{name}.{secrets.token_hex(6)}{_TEMPORARY}"


def _sync_folder(folder: Path) -> None:
    """Flush the entries of a folder: without it, a crash of the machine can lose a rename."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
