"""Rendering on a GPU: the host packs each image and its plan for one copy, Triton kernels render whole batches."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..views import MixPlan, ViewPlan, ViewSettings, render_views
from .augmix import mix_views, mixing
from .kernels import OnFirstUse, launched, power_of_two
from .transfer import Array, pack, send
from .weak import down_first, weak_tables

_triton: Any = OnFirstUse("cots.fast._triton_views")
_MIDDLE_BYTES = 2**28  # limit of the half-resized crops in memory
_MOST_CROPS = 2**15  # at a time; a grid has less than 2**16 programs along its second axis
# Larger photos take more memory than their views, in transfer and on the device, so PIL renders them.
_MAX_SENT_PIXELS = 2**24
_EXACT: dict[str, Any] = {"enable_fp_fusion": False}


class Weak(NamedTuple):
    """The weak view of an image, as the kernel reads it.

    - source: where the data of the image have the source of the view; width: of the source
    - axis: the one that is resized first, 0 down or 1 across
    - down, across: where the data have the table of each axis, in int32 values; down_taps, across_taps: of each table
    """

    source: int
    width: int
    axis: int
    down: int
    down_taps: int
    across: int
    across_taps: int


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """One image ready for the GPU: its pixels and the tables of its weak view in one buffer, and the plan of its views.

    - data: the bytes of the image (height,width,3), of the tables and, for an extreme image, of its weak view
    - buffer: the same memory, if it can be copied to the device without waiting
    """

    data: NDArray[np.uint8]
    buffer: Tensor | None
    plan: ViewPlan
    weak: Weak

    def pinned(self, device: torch.device) -> Tensor:
        """The data where it can be copied to a GPU without waiting."""
        return pack([self.data], pin=device.type == "cuda")[0] if self.buffer is None else self.buffer

    def __getstate__(self) -> dict[str, Any]:
        # An array: tensors travel between processes in shared memory, of which containers often have only 64 MB.
        return {**vars(self), "buffer": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


@dataclass(frozen=True)
class GpuRenderer:
    """Renders images on `device` without waiting for it, with the pixels that PIL would give."""

    settings: ViewSettings
    device: torch.device

    def prepare(self, image: Image.Image, plan: ViewPlan) -> Prepared | Tensor:
        """The host step: an image packed for the device or, if it is huge, its views (V,3,H,W)."""
        plan.check(image)
        # Page-locked memory is copied directly. Worker processes have no CUDA context and must not create one.
        pin = self.device.type == "cuda" and torch.cuda.is_initialized()
        if image.width * image.height > _MAX_SENT_PIXELS:
            views = render_views(image, plan, self.settings)
            return views.pin_memory() if pin else views
        tables, rendered = weak_tables(image, self.settings)
        arrays = [np.asarray(image), tables.down, tables.across]
        if rendered is not None:
            arrays.append(rendered)
        buffer, layout = pack(arrays, pin)
        starts = [start for _, _, start in layout]
        source = 0 if rendered is None else 3
        weak = Weak(
            source=starts[source],
            width=arrays[source].shape[1],
            axis=0 if tables.down_first else 1,
            down=starts[1] // 4,
            down_taps=len(tables.down) - 2,
            across=starts[2] // 4,
            across_taps=len(tables.across) - 2,
        )
        ready = buffer if pin or self.device.type != "cuda" else None
        return Prepared(data=buffer.numpy(), buffer=ready, plan=plan, weak=weak)

    def render(self, prepared: Sequence[Prepared | Tensor]) -> Tensor:
        """The device step: normalised views (B,V,3,H,W)."""
        sent = [item for item in prepared if isinstance(item, Prepared)]
        rendered = self._render(sent)
        if len(sent) == len(prepared):
            return rendered
        views, rest = [], iter(rendered)
        for item in prepared:
            views.append(item.to(self.device, non_blocking=True) if isinstance(item, Tensor) else next(rest))
        return torch.stack(views)

    @torch.no_grad()
    def _render(self, prepared: Sequence[Prepared]) -> Tensor:
        """All images at once: except for the copy of each image, the number of launches does not depend on the batch.

        If the crops do not fit in memory at once, they are resized in parts.
        """
        strong, shape = self.settings.n - 1, self.settings.shape
        out = torch.empty(len(prepared), 1 + strong, 3, *shape, device=self.device)
        if not prepared:
            return out
        mean, std, levels = _constants(self.settings, self.device)
        data, starts = _copy_data(prepared, self.device)
        crops = _crops([item.plan for item in prepared], shape)
        mixes = [item.plan.mix for item in prepared if item.plan.mix is not None and strong]
        mix = mixing(MixPlan.join(mixes), shape) if mixes else []
        photos, on_device, *mix_on_device = send([_photos(prepared, starts), crops, *mix], self.device)
        _render_weak(data, photos, levels, out)
        if mixes:
            views = torch.empty(len(prepared), strong, 3, *shape, dtype=torch.uint8, device=self.device)
            _render_crops(data, photos, on_device, crops.lines, None, views)
            mix_views(views, mix_on_device, mean, std, out)
        elif strong:
            _render_crops(data, photos, on_device, crops.lines, levels, out)
        return out


@functools.lru_cache(maxsize=8)
def _constants(settings: ViewSettings, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, standard deviation and the normalised value of each level (3,256), on `device`.

    They are copied once, because copying even one number makes the host wait.
    """
    mean, std = np.array(settings.mean, dtype=np.float32), np.array(settings.std, dtype=np.float32)
    levels = (np.arange(256, dtype=np.float32) / np.float32(255) - mean[:, None]) / std[:, None]
    return (
        torch.as_tensor(mean, device=device),
        torch.as_tensor(std, device=device),
        torch.as_tensor(levels, device=device),
    )


def _copy_data(prepared: Sequence[Prepared], device: torch.device) -> tuple[Tensor, NDArray[np.int64]]:
    """The data of all images in one buffer on `device`, and where that of each image starts."""
    sizes = [item.data.size for item in prepared]
    data = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    for item, part in zip(prepared, data.split_with_sizes(sizes), strict=True):
        part.copy_(item.pinned(device), non_blocking=True)
    return data, np.cumsum([0, *sizes[:-1]])


class _Photos(NamedTuple):
    """The images of a batch: where the data of each start, its width, and its `Weak` (B,7), in the batch's data."""

    starts: Array
    widths: Array
    weak: Array


def _photos(prepared: Sequence[Prepared], starts: NDArray[np.int64]) -> _Photos:
    weak, widths = [], []
    for item, start in zip(prepared, starts.tolist(), strict=True):
        own = item.weak
        moved = own._replace(source=own.source + start, down=own.down + start // 4, across=own.across + start // 4)
        weak.append(moved)
        widths.append(item.plan.image_size[1])
    return _Photos(starts=starts, widths=np.array(widths), weak=np.array(weak))


class _Crops(NamedTuple):
    """The crops of a batch: boxes (6,C), with start, length and flip of each crop, down and across.

    axes: which axis of each crop is resized first (0 down, 1 across). lines: how many lines perpendicular to that axis
    the crop has; before: those of all crops before it.
    """

    boxes: Array
    axes: Array
    lines: Array
    before: Array


def _crops(plans: Sequence[ViewPlan], shape: tuple[int, int]) -> _Crops:
    top, left, height, width = np.concatenate([plan.boxes for plan in plans]).T
    flips = np.concatenate([plan.flips for plan in plans])
    boxes = np.stack([top, left, height, width, np.zeros_like(top), flips]).astype(np.float64)
    down = down_first(height, width, shape)
    lines = np.where(down, width, height)
    return _Crops(boxes=boxes, axes=(~down).astype(np.int64), lines=lines, before=np.cumsum(lines) - lines)


def _render_weak(data: Tensor, photos: _Photos, levels: Tensor, out: Tensor) -> None:
    """Write the normalised weak views to out[:, 0], of (B,1+S,3,H,W)."""
    height, width = out.shape[-2:]
    side = power_of_two(max(height, width))
    rows = max(1, 256 // side)  # small blocks, because one image has only one weak view
    launched(_triton.resize_weak, -(-max(height, width) // rows), len(out))(
        data, data.view(torch.int32), photos.weak, levels, out, out.shape[1], height, width,
        ROWS=rows, SIDE=side, num_warps=4,
    )  # fmt: skip


def _render_crops(
    data: Tensor, photos: _Photos, crops: _Crops, lines: NDArray[np.int64], levels: Tensor | None, out: Tensor
) -> None:
    """Write the crops, of so many `lines`, to out: as bytes (B,S,3,H,W) or as entries in `levels` (B,1+S,3,H,W)."""
    height, width = out.shape[-2:]
    side = power_of_two(max(height, width))
    rows = max(1, 2048 // side)
    strong = out.shape[1] if levels is None else out.shape[1] - 1
    parts = _parts(lines, 3 * side)
    most = max(int(lines[begin:end].sum()) for begin, end in parts)
    middle = torch.empty(most * 3 * side, dtype=torch.uint8, device=data.device)
    for begin, end in parts:
        common = (*crops, begin, len(lines), strong, height, width)
        launched(_triton.resize_first, -(-int(lines[begin:end].max()) // rows), end - begin)(
            data, photos.starts, photos.widths, middle, *common, LINES=rows, SIDE=side, num_warps=4, **_EXACT
        )
        launched(_triton.resize_second, -(-max(height, width) // rows), end - begin)(
            middle, out if levels is None else levels, out, *common,
            ROWS=rows, SIDE=side, SCALED=levels is not None, num_warps=4, **_EXACT,
        )  # fmt: skip


def _parts(lines: NDArray[np.int64], line_bytes: int) -> list[tuple[int, int]]:
    """Begin and end of the parts in which crops of so many lines are resized, each of at least one crop."""
    parts, begin = [], 0
    while begin < len(lines):
        size = np.cumsum(lines[begin : begin + _MOST_CROPS]) * line_bytes
        end = begin + max(1, int(np.searchsorted(size, _MIDDLE_BYTES, side="right")))
        parts.append((begin, end))
        begin = end
    return parts
