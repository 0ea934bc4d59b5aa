"""The host half of rendering on a GPU: pixels, weak view and plan of one image, packed for one copy to the device."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ._pil import check_plan, weak_view
from ._plan import MixPlan, ViewPlan
from ._settings import ViewSettings

Layout = tuple[tuple[torch.dtype, tuple[int, ...], int], ...]  # dtype, shape and offset in bytes of each array
_ALIGNMENT = 16


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """One image as the GPU needs it: its arrays in one buffer, and what the host must know to launch the kernels.

    The arrays are image (height,width,3) and weak (H,W,3) in uint8, boxes (3,2,S) in float64 (start, length and flip of
    each crop, down and across) and order (S,), the view that each crop becomes.
    """

    buffer: Tensor
    layout: Layout
    lengths: NDArray[np.int64]  # (2,S): height and width of the crops
    across_first: int  # number of crops, first in order, that are resized across, then down; the others down first
    mix: MixPlan | None

    def on(self, device: torch.device) -> list[Tensor]:
        """image, weak, boxes and order on `device`."""
        pin = device.type == "cuda" and not self.buffer.is_pinned()
        return unpack(self.buffer.pin_memory() if pin else self.buffer, self.layout, device)


def prepare(image: Image.Image, plan: ViewPlan, settings: ViewSettings, *, pin: bool = False) -> Prepared:
    """Pack an RGB image and the plan drawn for it; `pin` uses page-locked memory, from which a GPU copies directly."""
    check_plan(image, plan)
    down_first = _down_first(plan.boxes, settings.shape)
    order = np.argsort(down_first, kind="stable")
    starts, lengths = plan.boxes[order, :2].T, plan.boxes[order, 2:].T
    flips = np.stack([np.zeros(len(order)), plan.flips[order]])
    boxes = np.stack([starts, lengths, flips]).astype(np.float64)
    # The weak view is one in 64 and cheap on the host, where it equals open_clip's to the last bit.
    weak = np.asarray(weak_view(image, settings))
    buffer, layout = pack([np.asarray(image), weak, boxes, order], pin)
    across_first = int((~down_first).sum())
    return Prepared(buffer=buffer, layout=layout, lengths=lengths, across_first=across_first, mix=plan.mix)


def pack(arrays: Sequence[NDArray[Any]], pin: bool) -> tuple[Tensor, Layout]:
    """Copy arrays into one buffer of bytes."""
    layout, size = [], 0
    for array in arrays:
        layout.append((torch.from_numpy(np.empty(0, array.dtype)).dtype, array.shape, size))
        size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    buffer = torch.empty(size, dtype=torch.uint8, pin_memory=pin)
    memory = buffer.numpy()
    for array, (_, shape, start) in zip(arrays, layout, strict=True):
        memory[start : start + array.nbytes].view(array.dtype).reshape(shape)[...] = array
    return buffer, tuple(layout)


def unpack(buffer: Tensor, layout: Layout, device: torch.device) -> list[Tensor]:
    """The packed arrays on `device`, after one copy that the host does not wait for."""
    buffer = buffer.to(device, non_blocking=True)
    return [
        buffer[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
        for dtype, shape, start in layout
    ]


def _down_first(boxes: NDArray[np.int64], shape: tuple[int, int]) -> NDArray[np.bool_]:
    """Which crops PIL resizes down before across. It rounds in between, so the order can change a level by one."""
    height, width = boxes[:, 2] - shape[0], boxes[:, 3] - shape[1]
    return (height > 0) & (height > 2 * width) & _pil_chooses_order()


@functools.cache
def _pil_chooses_order() -> bool:
    """False for PIL before version 13, which always resizes across first."""
    grain = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 40, 3), dtype=np.uint8))
    across = grain.resize((36, 60), Image.Resampling.BILINEAR).resize((36, 18), Image.Resampling.BILINEAR)
    return grain.resize((36, 18), Image.Resampling.BILINEAR).tobytes() != across.tobytes()
