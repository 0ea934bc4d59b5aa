"""Where a run lies: a folder of this machine or a shared one, or a URL that fsspec knows (s3://, gs://, ...)."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._errors import InputError

# There one request puts a whole object in place, and a rename would be a copy. Elsewhere a rename is the one step.
_WHOLE_PUT = frozenset({"memory", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "obs", "tos"})
TEMPORARY = ".tmp"


class UrlPath:
    """A file or folder behind an fsspec URL, with those operations of `Path` that a run needs.

    >>> (UrlPath("memory://runs/x") / "shards" / "00000").name
    '00000'
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def __truediv__(self, name: str) -> UrlPath:
        return UrlPath(f"{self.url}/{name}")

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"UrlPath({self.url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UrlPath) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> UrlPath:
        return UrlPath(self.url.rpartition("/")[0])

    @property
    def protocol(self) -> str:
        return self.url.partition("://")[0]

    def is_file(self) -> bool:
        return bool(self._fresh("isfile"))

    def is_dir(self) -> bool:
        return bool(self._fresh("isdir"))

    def iterdir(self) -> Iterator[UrlPath]:
        return (self / name for name in self.names())

    def names(self) -> list[str]:
        """Names of the files and folders in this folder; FileNotFoundError where there is none."""
        return [found.rstrip("/").rpartition("/")[2] for found in self._fresh("ls", detail=False)]

    def read_bytes(self, start: int | None = None, stop: int | None = None) -> bytes:
        return self._do("cat_file", start=start, end=stop)

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def write_whole(self, data: bytes) -> None:
        """In one step: one request where that is the store's way, else under another name and renamed."""
        if self.protocol in _WHOLE_PUT:
            self._do("pipe_file", data)
            return
        temporary = self.parent / temporary_name(self.name)
        try:
            self._make_folder()
            temporary._do("pipe_file", data)
            temporary._do("mv", self._opened()[1])
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def upload(self, source: str) -> None:
        """Write what a file of this machine holds, piece by piece."""
        self._make_folder()
        fs, path = self._opened()
        with _os_errors():
            fs.put_file(source, path)

    def create(self, data: bytes) -> None:
        """Write it if it is not there yet, else FileExistsError; stores that can tell make that one step."""
        if self.is_file():
            raise FileExistsError(self.url)
        self._make_folder()
        self._do("pipe_file", data, mode="create")

    def unlink(self) -> None:
        self._do("rm_file")

    def remove_tree(self) -> None:
        """What cannot go stays."""
        with contextlib.suppress(OSError):
            self._do("rm", recursive=True)

    def _make_folder(self) -> None:
        if self.protocol not in _WHOLE_PUT:
            self.parent._do("makedirs", exist_ok=True)

    def _fresh(self, operation: str, **options: Any) -> Any:
        """What is there now: another process may have written it."""
        self._opened()[0].invalidate_cache()
        return self._do(operation, **options)

    def _do(self, operation: str, *arguments: Any, **options: Any) -> Any:
        fs, path = self._opened()
        with _os_errors():
            return getattr(fs, operation)(path, *arguments, **options)

    def _opened(self) -> tuple[Any, str]:
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise InputError(f"{self.url} is a URL, which needs fsspec: pip install 'cots[ray]'.") from None
        try:
            return url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise InputError(f"{self.url} cannot be opened: {error}.") from None


# Errors that are what they say already, mistakes of a program, and operations that a kind of store does not have.
_NOT_THE_STORE = (OSError, ArithmeticError, LookupError, TypeError, ValueError, NotImplementedError)


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    """A store that cannot be reached is a failed disk; its package has errors of its own for that."""
    try:
        yield
    except _NOT_THE_STORE:
        raise
    except Exception as error:
        raise OSError(errno.EIO, str(error)) from error


Location = Path | UrlPath


def temporary_name(name: str) -> str:
    """Where a file called `name` is written before it is renamed."""
    return f".{name}.{secrets.token_hex(6)}{TEMPORARY}"


def location(where: str | Path | UrlPath) -> Location:
    """The folder that `where` names; file:// URLs are folders like any other.

    >>> location("runs/x").name, location("file:///runs/x").name, location("s3://bucket/x")
    ('x', 'x', UrlPath('s3://bucket/x'))
    """
    if isinstance(where, UrlPath):
        return where
    text = os.fspath(where)
    if isinstance(where, Path):
        if re.match(r"[\w.+-]{2,}:/", text):
            raise InputError(f"{text} was a URL before it became a Path, which drops a slash: give it as text.")
        return where
    if "://" not in text:
        return Path(text)
    for local in ("file://", "local://"):
        if text.startswith(local):
            return Path(text.removeprefix(local))
    return UrlPath(text)


def is_private(where: Location) -> bool:
    """Whether only this process can see it."""
    return isinstance(where, UrlPath) and where.protocol == "memory"
