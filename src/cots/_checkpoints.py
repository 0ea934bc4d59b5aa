"""Weights in files of others: safetensors, torch.save and TorchScript. Nothing in a file is executed.

A pickle can name any function. These are read by an unpickler that knows tensors, containers, numbers and strings;
everything else becomes an inert object, on which a pickle's instructions have no effect. A TorchScript archive keeps
its parameters in such a pickle too; its code is never compiled. Reading a file takes memory in proportion to its size.
"""

import io
import math
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors.torch import load_file
from torch import Tensor

_DTYPES = {
    "FloatStorage": torch.float32, "HalfStorage": torch.float16, "BFloat16Storage": torch.bfloat16,
    "DoubleStorage": torch.float64, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
}  # fmt: skip
_LEGACY = 0x1950A86A20F9469CFC6C  # the first number in a file of torch.save before version 1.6
_PICKLE_BYTES = 2**22  # of a file's pickle, which has a few hundred bytes per tensor
_TIMES, _MORE = 4, 2**24  # bytes that reading may take: _TIMES the file's size (half precision, tied weights) and _MORE
_RECORD = 128  # bytes that one submodule of a TorchScript archive counts
_CLASS = r"class {}\(Module\):\n  __parameters__ = \[(.*)\]\n  __buffers__ = \[(.*)\]"


def read_weights(file: Path) -> dict[str, Tensor]:
    """The named tensors of a weights file; ValueError, with the reason in one line, if it cannot be read.

    From torch.save: the tensors of a dictionary, or of its `state_dict`. From TorchScript: parameters and buffers.
    Other content is omitted.
    """
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        with file.open("rb") as stream:
            content = _ZipFile(stream) if zipfile.is_zipfile(stream) else _LegacyFile(stream)
            return content.tensors()
    except MemoryError:
        raise
    except Exception as error:  # unpickling other bytes raises nearly anything
        reason = one_line(error).rstrip(".")
        # Unpickling other bytes fails with a bare number, such as KeyError(101).
        raise ValueError(reason if re.search(r"[a-z]{3}", reason) else "not a file of torch.save") from None


def is_torchscript(file: Path) -> bool:
    """Whether a file is a TorchScript archive, as OpenAI's weights are."""
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def check_unpacked_size(file: Path) -> None:
    """Refuse an archive, such as .npz, whose content is far larger than the file."""
    with zipfile.ZipFile(file) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > _TIMES * file.stat().st_size + _MORE:
        raise ValueError(f"{file} unpacks to {unpacked} bytes, far more than weights do.")


def one_line(error: object) -> str:
    """The first 300 characters of an error as one printable line; a file can put any text into one."""
    text = re.sub(r"\x1b\[[\d;]*m", "", str(error))
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    words = " ".join(printable.split())
    return words if len(words) <= 300 else f"{words[:300]} ..."


class _Inert:
    """Stand-in for any class, function or object of a pickle: can be called, filled and set, and does nothing.

    `name` is the class of an object, `state` the dictionary that it was set to.
    """

    __slots__ = ("name", "state")

    def __new__(cls, *given: Any, **named: Any) -> Any:
        made = object.__new__(_Inert)
        made.name = cls.name if isinstance(cls, _Inert) else ""
        made.state = {}
        return made

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self

    append = extend = add = __setitem__ = lambda self, *given: None

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.state = state


class _Dictionary(dict):
    """A dictionary without attributes that a pickle could set."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        pass


@dataclass(frozen=True)
class _Storage:
    """A sequence of numbers in a file. As all that a pickle contains, its fields can have any type and value."""

    dtype: Any
    key: Any
    length: Any


@dataclass(frozen=True)
class _StoredTensor:
    storage: Any
    offset: Any
    shape: Any
    strides: Any


class _Function:
    """A function that a pickle can call but not change."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *given: Any) -> Any:
        return self._function(*given)

    def __setstate__(self, state: Any) -> None:
        pass


_rebuild_tensor = _Function(lambda storage, offset, shape, strides, *_: _StoredTensor(storage, offset, shape, strides))
_KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): _Dictionary,
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _Function(lambda tensor, *rest: tensor),
}


class _Unpickler(pickle._Unpickler):  # the one in C allocates as much memory as an index in the pickle demands
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.storages: dict[Any, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        unknown = _Inert()
        unknown.name = f"{module}.{name}"
        return unknown

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _, length, *view = pid
        if kind != "storage" or any(part is not None for part in view):
            raise ValueError("it refers to something other than tensors")
        return self.storages.setdefault(key, _Storage(dtype, key, length))


class _File:
    """What both formats of torch have in common: a pickle, and the bytes of the tensors that it describes."""

    content: Any
    read_storage: Callable[[_Storage, int], bytes]

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.size = stream.seek(0, io.SEEK_END)
        self.budget = _TIMES * self.size + _MORE
        self.bytes_of: dict[Any, Tensor] = {}

    def spend(self, count: int) -> None:
        self.budget -= count
        if self.budget < 0:
            raise ValueError(f"it declares more data than its {self.size} bytes can hold")

    def tensors(self) -> dict[str, Tensor]:
        tensors = {}
        for name, value in self.entries():
            if isinstance(name, str) and isinstance(value, _StoredTensor):
                tensors[name] = self.tensor(value)
        return tensors

    def entries(self) -> Iterator[tuple[Any, Any]]:
        if isinstance(self.content, dict):
            state = self.content.get("state_dict", self.content)
            if isinstance(state, dict):
                yield from state.items()

    def tensor(self, stored: _StoredTensor) -> Tensor:
        """The tensor, after its offset, shape and strides are found to stay within its storage."""
        storage, offset, shape, strides = stored.storage, stored.offset, stored.shape, stored.strides
        if not isinstance(storage, _Storage) or not isinstance(storage.dtype, torch.dtype):
            raise ValueError("it has a tensor without a known storage")
        if not _are_sizes((offset, storage.length)) or not _are_sizes(shape) or not _are_sizes(strides):
            raise ValueError("it has a tensor of an impossible shape")
        count, last = math.prod(shape), offset
        for size, stride in zip(shape, strides, strict=True):
            last += (size - 1) * stride
        if count and (last >= storage.length or count > storage.length):
            raise ValueError("it has a tensor that is larger than its storage")
        self.spend(count * storage.dtype.itemsize)
        if not count:
            return torch.empty(shape, dtype=storage.dtype)
        if storage.key not in self.bytes_of:
            length = storage.length * storage.dtype.itemsize
            self.spend(length)
            data = self.read_storage(storage, length)
            if len(data) != length:
                raise ValueError(f"the data of its storage {storage.key!r} is incomplete")
            self.bytes_of[storage.key] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return self.bytes_of[storage.key].view(storage.dtype).as_strided(shape, strides, offset)


class _ZipFile(_File):
    """Files of torch.save, and TorchScript archives: data.pkl and a file per storage."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream)
        self.archive = zipfile.ZipFile(stream)
        pickles = [name for name in self.archive.namelist() if re.fullmatch(r"[^/]+/data\.pkl", name)]
        if len(pickles) != 1:
            raise ValueError("it is a zip file, but not one of torch.save")
        self.root = pickles[0].removesuffix("/data.pkl")
        self.content = _Unpickler(io.BytesIO(self.read(pickles[0]))).load()
        self.names_of: dict[str, set[str] | None] = {}

    def read(self, name: str) -> bytes:
        entry = self.archive.getinfo(name)
        if entry.file_size > _PICKLE_BYTES:
            raise ValueError(f"its {name} has {entry.file_size} bytes, more than {_PICKLE_BYTES}")
        self.spend(entry.file_size)
        return self.archive.read(entry)

    def read_storage(self, storage: _Storage, length: int) -> bytes:
        entry = self.archive.getinfo(f"{self.root}/data/{storage.key}")
        return self.archive.read(entry) if entry.file_size == length else b""

    def entries(self) -> Iterator[tuple[Any, Any]]:
        if isinstance(self.content, _Inert):
            return self.module_entries(self.content, "")
        return super().entries()

    def module_entries(self, module: _Inert, prefix: str) -> Iterator[tuple[Any, Any]]:
        """Parameters and buffers of a TorchScript module and of its submodules."""
        self.spend(_RECORD + len(prefix))
        registered = self.registered(module.name)
        for name, value in module.state.items():
            if isinstance(value, _Inert):
                yield from self.module_entries(value, f"{prefix}{name}.")
            elif registered is None or name in registered:
                yield f"{prefix}{name}", value

    def registered(self, class_name: str) -> set[str] | None:
        """The names of the parameters and buffers of a TorchScript class; None if unknown."""
        if class_name not in self.names_of:
            module, _, name = class_name.rpartition(".")
            file = f"{self.root}/code/{module.replace('.', '/')}.py"
            self.names_of[class_name] = None
            if file in self.archive.NameToInfo:
                code = self.read(file).decode()
                if lists := re.search(_CLASS.format(re.escape(name)), code):
                    self.names_of[class_name] = set(re.findall(r'"([^"]*)"', " ".join(lists.groups())))
        return self.names_of[class_name]


class _LegacyFile(_File):
    """Files of torch.save before version 1.6: five pickles, then the storages in the order that the last one lists."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream)
        stream.seek(0)
        head = io.BytesIO(stream.read(_PICKLE_BYTES))
        if _Unpickler(head).load() != _LEGACY:
            raise ValueError("not a file of torch.save")
        for _ in ("protocol", "system"):
            _Unpickler(head).load()
        described = _Unpickler(head)
        self.content = described.load()
        self.starts: dict[Any, int] = {}
        keys = _Unpickler(head).load()
        position = head.tell()
        for key in keys:
            storage = described.storages[key]
            self.starts[key] = position + 8  # after its length
            position += 8 + storage.length * storage.dtype.itemsize

    def read_storage(self, storage: _Storage, length: int) -> bytes:
        self.stream.seek(self.starts[storage.key])
        return self.stream.read(length)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, (tuple, list)) and all(type(value) is int and 0 <= value < 2**62 for value in values)
