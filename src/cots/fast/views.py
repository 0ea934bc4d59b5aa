"""Rendering on a GPU: the host packs each image and its plan for one copy, Triton kernels render whole batches."""

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

from ..views import CHAINS, MAX_DEPTH, MixPlan, ViewPlan, ViewSettings, render_views, weak_view
from .kernels import OnFirstUse, launched, power_of_two

_triton: Any = OnFirstUse("cots.fast._triton_views")
Layout = tuple[tuple[torch.dtype, tuple[int, ...], int], ...]  # dtype, shape and offset in bytes of each array
_ALIGNMENT = 16
_MIDDLE_BYTES = 2**28  # limit of the half-resized crops in memory
# Larger photos take more memory than their views, in transfer and on the device, so PIL renders them.
_MAX_SENT_PIXELS = 2**24
_EXACT: dict[str, Any] = {"enable_fp_fusion": False}
# Indices into OPERATIONS.
_AUTOCONTRAST, _EQUALIZE, _POSTERIZE, _ROTATE, _SOLARIZE, _SHEAR_X, _SHEAR_Y, _TRANSLATE_X, _TRANSLATE_Y = range(9)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """One image ready for the GPU: its arrays in one buffer, and what the host needs to launch the kernels.

    The arrays are image (height,width,3) and weak (H,W,3) in uint8, boxes (3,2,S) in float64 (start, length and flip of
    each crop, vertically and horizontally) and order (S,), the view that each crop becomes.
    """

    buffer: Tensor
    layout: Layout
    lengths: NDArray[np.int64]  # (2,S): height and width of the crops
    across_first: int  # number of crops, first in order, that are resized horizontally first; the others vertically
    mix: MixPlan | None

    def __getstate__(self) -> dict[str, Any]:
        # An array: tensors travel between processes in shared memory, of which containers often have only 64 MB.
        return {**vars(self), "buffer": self.buffer.numpy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, buffer=torch.from_numpy(state["buffer"]))

    def on(self, device: torch.device) -> list[Tensor]:
        """image, weak, boxes and order on `device`."""
        pin = device.type == "cuda" and not self.buffer.is_pinned()
        return unpack(self.buffer.pin_memory() if pin else self.buffer, self.layout, device)


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
    """Which crops PIL resizes vertically first; it rounds in between, so the order can change a level by one."""
    height, width = boxes[:, 2] - shape[0], boxes[:, 3] - shape[1]
    return (height > 0) & (height > 2 * width) & _pil_chooses_order()


@functools.cache
def _pil_chooses_order() -> bool:
    """False for PIL before version 13, which always resizes horizontally first."""
    grain = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 40, 3), dtype=np.uint8))
    across = grain.resize((36, 60), Image.Resampling.BILINEAR).resize((36, 18), Image.Resampling.BILINEAR)
    return grain.resize((36, 18), Image.Resampling.BILINEAR).tobytes() != across.tobytes()


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
        # The weak view is one in 64 and cheap on the host, where it equals open_clip's bit for bit.
        weak = weak_view(image, self.settings)
        down_first = _down_first(plan.boxes, self.settings.shape)
        order = np.argsort(down_first, kind="stable")
        starts, lengths = plan.boxes[order, :2].T, plan.boxes[order, 2:].T
        flips = np.stack([np.zeros(len(order)), plan.flips[order]])
        boxes = np.stack([starts, lengths, flips]).astype(np.float64)
        buffer, layout = pack([np.asarray(image), np.asarray(weak), boxes, order], pin)
        across_first = int((~down_first).sum())
        return Prepared(buffer=buffer, layout=layout, lengths=lengths, across_first=across_first, mix=plan.mix)

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
        """AugMix runs for all images at once, to save launches."""
        strong, shape = self.settings.n - 1, self.settings.shape
        mean, std, entries = _constants(self.settings, self.device)
        arrays = [item.on(self.device) for item in prepared]
        mixes = [item.mix for item in prepared if item.mix is not None and strong]
        out = torch.empty(len(prepared), 1 + strong, 3, *shape, device=self.device)
        crops, levels = out[:, 1:], entries
        if mixes:
            crops = torch.empty(len(prepared), strong, 3, *shape, dtype=torch.uint8, device=self.device)
            levels = None
        for i, (item, (image, weak, boxes, order)) in enumerate(zip(prepared, arrays, strict=True)):
            size = weak.shape[0] * weak.shape[1]
            scale = launched(_triton.scale_levels, -(-size // 1024))
            scale(weak, entries, out[i, 0], size, BLOCK=1024, num_warps=4)
            _crop(item, image, boxes, order, levels, crops[i])
        if mixes:
            _mix_views(crops.flatten(0, 1), MixPlan.join(mixes), mean, std, out)
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


def _crop(item: Prepared, image: Tensor, boxes: Tensor, order: Tensor, levels: Tensor | None, out: Tensor) -> None:
    """Write the crops of `item` to out (S,3,H,W), as bytes or as their entries in `levels` (3,256)."""
    strong, across_first = boxes.shape[-1], item.across_first
    height, width = out.shape[-2:]
    side = power_of_two(max(height, width))
    rows = max(1, 2048 // side)
    lines = int(max([0, *item.lengths[0, :across_first], *item.lengths[1, across_first:]]))
    at_once = max(1, _MIDDLE_BYTES // (3 * lines * side)) if lines else 1
    for begin in range(0, strong, at_once):
        some = min(at_once, strong - begin)
        middle = torch.empty(some, 3, lines, side, dtype=torch.uint8, device=image.device)
        common = (begin, strong, across_first, height, width, lines)
        launched(_triton.resize_first, -(-lines // rows), some)(
            image, boxes, middle, image.shape[1], *common, LINES=rows, SIDE=side, num_warps=4, **_EXACT
        )
        launched(_triton.resize_second, -(-max(height, width) // rows), some)(
            middle, boxes, order, out if levels is None else levels, out, *common,
            ROWS=rows, SIDE=side, SCALED=levels is not None, num_warps=4, **_EXACT,
        )  # fmt: skip


def _mix_views(views: Tensor, mix: MixPlan, mean: Tensor, std: Tensor, out: Tensor) -> None:
    """Write the normalised mixtures of views (B*S,3,H,W) to out (B,1+S,3,H,W), after the weak view of each image."""
    height, width = views.shape[-2:]
    size = height * width
    blocks = -(-size // 1024)
    chains = views.new_empty(len(views) * CHAINS, *views.shape[1:])
    source = views
    weights, steps = _steps(mix, (height, width), views.device)
    for depth, step in enumerate(steps):
        if len(step.moved):
            # A chain that moves again is copied first, because programs would read what other programs write.
            before = source if depth == 0 else source.index_select(0, step.moved_from)
            launched(_triton.move, blocks, len(step.moved))(
                before, chains, step.moved_from, step.moved, step.maps, height, width,
                HAS_FROM=depth == 0, BLOCK=1024, num_warps=4, **_EXACT,
            )  # fmt: skip
        made = step.stretched + step.equalized
        tables = torch.empty(max(made, 1), 3, 256, dtype=torch.uint8, device=views.device)
        if made:
            launched(_triton.tone_tables, made, 3)(
                source, step.toned_from, tables, step.stretched, size, BLOCK=4096, num_warps=8, **_EXACT
            )
        if len(step.toned):
            launched(_triton.tone, blocks, len(step.toned), 3)(
                source, chains, step.toned_from, step.toned, tables, step.tables if len(step.tables) else tables,
                made, size, BLOCK=1024, num_warps=4,
            )  # fmt: skip
        source = chains
    launched(_triton.mix, blocks, len(views), 3)(
        views, chains, weights, mean, std, out, size, out.shape[1] - 1, 255.0,
        CHAINS=CHAINS, BLOCK=1024, num_warps=4, **_EXACT,
    )  # fmt: skip


@dataclass(frozen=True)
class _Step:
    """One depth of the AugMix chains on the device; chain c belongs to view c // CHAINS.

    moved: chains that move, by maps (M,2,3) from a pixel's centre (x, y, 1) to where it is sampled. toned: chains whose
    levels change, first the `stretched` (autocontrast), then the `equalized`, then those with their own tables (T,256).
    moved_from, toned_from: the image each chain reads, its view at the first depth and itself afterwards.
    """

    stretched: int
    equalized: int
    moved: Tensor
    moved_from: Tensor
    maps: Tensor
    toned: Tensor
    toned_from: Tensor
    tables: Tensor


def _steps(mix: MixPlan, shape: tuple[int, int], device: torch.device) -> tuple[Tensor, list[_Step]]:
    """The weights (S,1+CHAINS) of views and chains, and the chains by depth, copied to `device` at once."""
    skip = mix.skip[:, None]
    arrays: list[NDArray[Any]] = [np.concatenate([skip, (1 - skip) * mix.weights], axis=1).astype(np.float32)]
    counts = []
    for depth in range(MAX_DEPTH):
        operations, amounts = mix.operations[:, :, depth].ravel(), mix.amounts[:, :, depth].ravel()
        order = np.argsort(operations, kind="stable")
        order = order[operations[order] >= 0]
        is_tone = np.isin(operations[order], (_AUTOCONTRAST, _EQUALIZE, _POSTERIZE, _SOLARIZE))
        moved, toned = order[~is_tone], order[is_tone]
        stretched, equalized = (int((operations == kind).sum()) for kind in (_AUTOCONTRAST, _EQUALIZE))
        tabled = toned[stretched + equalized :]
        sources = (moved // CHAINS, toned // CHAINS) if depth == 0 else (moved, toned)
        arrays += [moved, sources[0], _maps(operations[moved], amounts[moved], shape)]
        arrays += [toned, sources[1], _tables(operations[tabled], amounts[tabled])]
        counts.append((stretched, equalized))
    weights, *rest = unpack(*pack(arrays, pin=device.type == "cuda"), device)
    return weights, [_Step(*counts[depth], *rest[6 * depth : 6 * depth + 6]) for depth in range(MAX_DEPTH)]


def _tables(operations: NDArray[np.int64], amounts: NDArray[np.float64]) -> NDArray[np.uint8]:
    levels, amount = np.arange(256), amounts.astype(np.int64)[:, None]
    posterized = levels & -(2 ** (8 - amount.clip(max=8)))
    solarized = np.where(levels < amount, levels, 255 - levels)
    return np.where(operations[:, None] == _POSTERIZE, posterized, solarized).astype(np.uint8)


def _maps(operations: NDArray[np.int64], amounts: NDArray[np.float64], shape: tuple[int, int]) -> NDArray[np.float64]:
    maps = np.zeros((len(operations), 2, 3))
    maps[:, 0, 0] = maps[:, 1, 1] = 1.0
    for operation, place in ((_SHEAR_X, (0, 1)), (_SHEAR_Y, (1, 0)), (_TRANSLATE_X, (0, 2)), (_TRANSLATE_Y, (1, 2))):
        some = operations == operation
        maps[some, *place] = amounts[some] if place[1] < 2 else np.trunc(amounts[some])
    rotated = operations == _ROTATE
    for degrees in np.unique(amounts[rotated & (amounts != 0)]).tolist():
        # PIL rounds sine and cosine to 15 digits.
        angle = -math.radians(degrees % 360.0)
        cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
        y, x = shape[0] / 2, shape[1] / 2
        turn = (cos, sin, cos * -x + sin * -y + x), (-sin, cos, -sin * -x + cos * -y + y)
        maps[rotated & (amounts == degrees)] = turn
    return maps
