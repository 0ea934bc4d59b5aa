"""Many small arrays in one copy to a GPU, which the host does not wait for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = Any  # a NumPy array on the host, a flat tensor on the device
Layout = tuple[tuple[np.dtype[Any], int, int], ...]  # dtype, number of values and offset in bytes of each array
_ALIGNMENT = 16  # in bytes; Triton compiles again for a pointer that is aligned less
_TORCH = {
    np.dtype(np.uint8): torch.uint8,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}


def pack(arrays: Sequence[NDArray[Any]], pin: bool) -> tuple[Tensor, Layout]:
    """Copy arrays into one buffer of bytes."""
    layout, size = [], 0
    for array in arrays:
        layout.append((array.dtype, array.size, size))
        size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    buffer = torch.empty(size, dtype=torch.uint8, pin_memory=pin)
    memory = buffer.numpy()
    for array, (_, _, start) in zip(arrays, layout, strict=True):
        memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
    return buffer, tuple(layout)


def unpack(buffer: Tensor, layout: Layout, device: torch.device) -> list[Tensor]:
    """The packed arrays on `device`, flat.

    Each call of torch gives up the interpreter's lock, so there are two per dtype rather than some per array.
    """
    buffer = buffer.to(device, non_blocking=True)
    found: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(dtype for dtype, _, _ in layout):
        typed = buffer.view(_TORCH[dtype])
        indices, sizes, end = [], [], 0
        for index, (own, count, start) in enumerate(layout):
            if own == dtype:
                begin = start // dtype.itemsize
                indices.append(index)
                sizes += [begin - end, count]
                end = begin + count
        parts = typed.split_with_sizes([*sizes, len(typed) - end])  # alternately between arrays and arrays
        found.update(zip(indices, parts[1::2], strict=True))
    return [found[index] for index in range(len(layout))]


def send(groups: Sequence[Any], device: torch.device) -> list[Any]:
    """Named tuples with their arrays on `device`, flat, after one copy; they keep their other values."""
    arrays = []
    for group in groups:
        arrays += [value for value in group if isinstance(value, np.ndarray)]
    tensors = iter(unpack(*pack(arrays, pin=device.type == "cuda"), device))
    sent = []
    for group in groups:
        values = [next(tensors) if isinstance(value, np.ndarray) else value for value in group]
        sent.append(type(group)(*values))
    return sent
