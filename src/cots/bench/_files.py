"""Files that are either whole or not there: written beside their place, flushed to the disk, renamed."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from .._errors import CotsError
from ._paths import TEMPORARY, Location, UrlPath, temporary_name

_OLD = 24 * 3600.0  # seconds after which a temporary file in a folder that several runs share is a dead run's


class Halt(CotsError):
    """The disk failed: what cannot be written cannot become a record with an error either."""


def write_whole(file: Location, data: bytes) -> None:
    """Write `data` as `file` in one step: a reader, or a process killed at any point, sees all of it or nothing."""
    if isinstance(file, UrlPath):
        try:
            file.write_whole(data)
        except OSError as error:
            raise cannot_write(file, error) from error
        return
    temporary = file.with_name(temporary_name(file.name))
    try:
        make_folder(file.parent)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, file)
        sync_folder(file.parent)
    except OSError as error:
        _forget(temporary)
        raise cannot_write(file, error) from error
    except BaseException:
        _forget(temporary)
        raise


def copy_whole(source: str, file: Location) -> None:
    """Copy a file of this machine to `file`, piece by piece."""
    try:
        if isinstance(file, UrlPath):
            file.upload(source)
            return
        make_folder(file.parent)
        temporary = file.with_name(temporary_name(file.name))
        try:
            shutil.copyfile(source, temporary)
            os.replace(temporary, file)
        except BaseException:
            _forget(temporary)
            raise
    except OSError as error:
        raise cannot_write(file, error) from error


def read_part(file: Location, start: int, stop: int) -> bytes:
    """The bytes of `file` from `start` to `stop`; it is not kept open, so that forks and threads can share in it."""
    if isinstance(file, UrlPath):
        return file.read_bytes(start, stop)
    with open(file, "rb") as opened:
        opened.seek(start)
        return opened.read(stop - start)


def make_folder(folder: Location) -> None:
    """Make `folder` and those above it, each entered durably into the one that holds it."""
    if isinstance(folder, UrlPath) or folder.is_dir():
        return  # behind a URL folders come with their files
    make_folder(folder.parent)
    try:
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)
    except OSError as error:
        raise cannot_write(folder, error) from error


def remove(file: Location) -> None:
    """Remove `file`, durably; it may be gone already."""
    try:
        if isinstance(file, UrlPath):
            file.unlink()
            return
        os.unlink(file)
        sync_folder(file.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise cannot_write(file, error) from error


def remove_tree(folder: Location) -> None:
    """Remove `folder` and all that is in it; what cannot go stays."""
    if isinstance(folder, UrlPath):
        folder.remove_tree()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def names(folder: Location) -> Iterator[str]:
    """Names of the files in `folder`, one after the other; none where there is no folder."""
    try:
        if isinstance(folder, UrlPath):
            yield from folder.names()
            return
        with os.scandir(folder) as entries:
            yield from (entry.name for entry in entries)
    except FileNotFoundError:
        return


def sync_folder(folder: Path) -> None:
    """Without this a crash of the machine can lose a rename although the file's content was flushed."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def tidy(folder: Location, *, shared: bool = False) -> None:
    """Remove what killed processes left half-written; in a `shared` folder only what is too old to be in the making."""
    if isinstance(folder, UrlPath):
        return  # stores keep nothing half-written
    for file in folder.rglob(f".*{TEMPORARY}"):
        try:
            if not shared or time.time() - file.stat().st_mtime > _OLD:
                file.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise cannot_write(file, error) from error


def is_temporary(name: str) -> bool:
    return name.startswith(".") and name.endswith(TEMPORARY)


def cannot_write(file: Location, error: OSError) -> Halt:
    """What a user can do about an error of the file system."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Halt(
            f"The disk is full: {file} could not be written ({error.strerror}). Nothing that was finished is lost. "
            "Free some space, then give the same command again: it goes on where it stopped."
        )
    return Halt(
        f"{file} could not be written ({error.strerror or error}). Check the folder's permissions and the disk, then "
        "give the same command again: it goes on where it stopped."
    )


def _forget(temporary: Path) -> None:
    try:
        temporary.unlink(missing_ok=True)
    except OSError:
        return  # the error that led here says more; `tidy` takes the rest away next time
