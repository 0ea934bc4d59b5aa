"""Arrays in .npz files, read and written a few rows at a time; nothing in them is ever executed."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from .._errors import InputError

# What zipfile raises for bytes that are damaged, encrypted (RuntimeError), or packed in a way it does not know.
_UNREADABLE = (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error, RuntimeError)
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True, kw_only=True)
class Rows:
    """One array of an archive: its shape and type are known, its rows are read when they are asked for."""

    archive: zipfile.ZipFile = field(repr=False)
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool

    def whole(self) -> np.ndarray:
        return next(self.chunks(max(1, self.shape[0])), np.empty(self.shape, self.dtype))

    def chunks(self, rows: int) -> Iterator[np.ndarray]:
        """`rows` rows at a time, the last part shorter."""
        with self.archive.open(f"{self.name}.npy") as file:
            _header(file, self.name)
            if self.fortran:  # its rows lie apart: there is no way but to hold it
                data = _read(file, math.prod(self.shape) * self.dtype.itemsize, self.name)
                whole = np.frombuffer(data, self.dtype).reshape(self.shape[::-1]).T
                yield from (whole[i : i + rows] for i in range(0, self.shape[0], rows))
                return
            row = math.prod(self.shape[1:])
            for start in range(0, self.shape[0], rows):
                count = min(rows, self.shape[0] - start)
                data = _read(file, count * row * self.dtype.itemsize, self.name)
                yield np.frombuffer(data, self.dtype).reshape(count, *self.shape[1:])


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[dict[str, Rows]]:
    """The arrays of an .npz file by name."""
    try:
        archive = zipfile.ZipFile(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: check the path.") from None
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"{path} is no .npz file ({error}): write it with numpy.savez.") from None
    with archive:
        found = {}
        for member in archive.namelist():
            name = member.removesuffix(".npy")
            if name != member:
                try:
                    with archive.open(member) as file:
                        shape, fortran, dtype = _header(file, name)
                except InputError:
                    raise
                except _UNREADABLE as error:
                    raise _no_array(name, error) from None
                found[name] = Rows(archive=archive, name=name, shape=shape, dtype=dtype, fortran=fortran)
        yield found


def _header(file: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = npy.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"npy version {version}")
        shape, fortran, dtype = _HEADERS[version](file)
    except _UNREADABLE as error:
        raise _no_array(name, error) from None
    if min(shape, default=0) < 0:
        raise _no_array(name, ValueError(f"its shape is {shape}"))
    if dtype.hasobject:
        raise InputError(f"{name} holds Python objects, which are not read, as they could run code: save numbers.")
    return shape, fortran, dtype


def _no_array(name: str, error: Exception) -> InputError:
    return InputError(f"{name} cannot be read ({error}): write the file with numpy.savez.")


def _read(file: IO[bytes], size: int, name: str) -> bytes:
    try:
        data = file.read(size)
    except _UNREADABLE as error:
        raise InputError(f"{name} is damaged ({error}): write the file again.") from None
    if len(data) != size:
        raise InputError(f"{name} is cut short: write the file again.")
    return data


def write_npz(path: Path, parts: Mapping[str, tuple[tuple[int, ...], Any, Iterator[np.ndarray]]]) -> None:
    """Write arrays from (shape, dtype, chunks of rows), in one step: the file is whole or not there."""
    # The last step puts a file in the place of whatever has the name, for root a device such as /dev/null too.
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is a folder or a device, not a file: give --out the name of an .npz file.")
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".npz")
    except OSError as error:
        raise _not_written(path, error) from None
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, (shape, dtype, chunks) in parts.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    head = {"descr": npy.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
                    npy.write_array_header_1_0(member, head)  # pyright: ignore[reportArgumentType]
                    for chunk in chunks:
                        member.write(np.ascontiguousarray(chunk, dtype=dtype).tobytes())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _not_written(path, error) from None
        raise


def _not_written(path: Path, error: OSError) -> InputError:
    reason = error.strerror or error
    return InputError(f"{path} cannot be written ({reason}): make room or free the name, or choose another --out.")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
