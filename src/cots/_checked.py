"""JSON and safetensors files with a checksum inside, which is verified when they are read.

    write_json(file, {"threshold": 0.7})
    read_json(file)["threshold"]         # DamagedFile if a single bit of the file has changed

The checksum is the CRC-32 of the whole file with zeros in place of its own eight digits. It detects every flipped bit
and every damaged run of up to 32 bits, and misses one in four billion of other damage. Files of earlier versions have
no checksum and are read unverified.
"""

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import safetensors.numpy
import safetensors.torch
from torch import Tensor

from ._errors import CotsError
from ._files import Location, write_whole

_KEY, _ZEROS = "cots_checksum", b"00000000"
_SEAL = re.compile(rb'"cots_checksum": ?"crc32:([0-9a-f]{8})"')
_REMEDY = "Restore it from a copy, or create it again."


class DamagedFile(CotsError):
    """A file whose content differs from what was written; `reason` says how."""

    def __init__(self, file: Location, reason: str, remedy: str = _REMEDY) -> None:
        self.file, self.reason = file, reason[:200]
        super().__init__(f"{file} is damaged ({self.reason}). {remedy}")


def write_json(file: Location, content: Mapping[str, Any]) -> None:
    """Write a JSON object with a checksum, atomically."""
    write_whole(file, _sealed(json.dumps({_KEY: f"crc32:{_ZEROS.decode()}", **content}, indent=1).encode()))


def read_json(file: Location, *, remedy: str = _REMEDY) -> dict[str, Any]:
    """The verified content of a JSON file; `remedy`: what the error for a damaged file suggests."""
    data = _read(file)
    verify(file, data, remedy=remedy)
    try:
        content = json.loads(data)
    except RecursionError as error:
        raise DamagedFile(file, "nested too deeply", remedy) from error
    except ValueError as error:
        raise DamagedFile(file, f"not JSON: {_short(error)}", remedy) from error
    if not isinstance(content, dict):
        raise DamagedFile(file, "not a JSON object", remedy)
    return {key: value for key, value in content.items() if key != _KEY}


def write_tensors(file: Location, tensors: dict[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file with a checksum in its metadata, atomically."""
    sealed = {**(metadata or {}), _KEY: f"crc32:{_ZEROS.decode()}"}
    write_whole(file, _sealed(safetensors.torch.save(tensors, sealed)))


def read_tensors(
    file: Location, names: Sequence[str] | None = None, framework: str = "numpy", *, remedy: str = _REMEDY
) -> tuple[dict[str, Any], dict[str, str]]:
    """The named tensors of a verified safetensors file, in numpy or torch ("pt"), and its metadata."""
    data = _read(file)
    verify(file, data, remedy=remedy)
    try:
        size = int.from_bytes(data[:8], "little")  # length of the JSON header that follows
        metadata = json.loads(data[8 : 8 + size]).get("__metadata__", {})
        tensors = (safetensors.torch if framework == "pt" else safetensors.numpy).load(data)
        chosen = {name: tensors[name] for name in (tensors if names is None else names)}
        return chosen, {key: value for key, value in metadata.items() if key != _KEY}
    except MemoryError:
        raise
    except Exception as error:  # parsers of a damaged header raise nearly anything
        raise DamagedFile(file, _short(error), remedy) from error


def verify(file: Location, data: bytes | None = None, *, remedy: str = _REMEDY) -> bool:
    """Whether a file has a checksum; DamagedFile if it does not match. data: the content, if already read."""
    data = _read(file) if data is None else data
    if seal := _SEAL.search(data):
        if _checksum(data, seal) != seal[1]:
            raise DamagedFile(file, "its checksum does not match", remedy)
        return True
    # If damage hides the checksum, one of these two words is still there.
    if not data or _KEY.encode() in data or b"crc32:" in data:
        raise DamagedFile(file, "its checksum cannot be read" if data else "it is empty", remedy)
    return False


def _read(file: Location) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CotsError(f"{file} cannot be read ({error.strerror or error}). Check permissions and storage.") from error


def _sealed(data: bytes) -> bytes:
    seal = _SEAL.search(data)
    assert seal is not None
    return b"".join((data[: seal.start(1)], _checksum(data, seal), data[seal.end(1) :]))


def _checksum(data: bytes, seal: re.Match[bytes]) -> bytes:
    whole = memoryview(data)
    value = zlib.crc32(_ZEROS, zlib.crc32(whole[: seal.start(1)]))
    return b"%08x" % zlib.crc32(whole[seal.end(1) :], value)


def _short(error: Exception) -> str:
    return str(error).strip() or type(error).__name__
