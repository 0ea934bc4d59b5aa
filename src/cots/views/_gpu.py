"""The device half of rendering on a GPU: a few Triton kernels for all views of a batch of images."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._kernels import OnFirstUse, launched, power_of_two
from ._pil import normalise
from ._plan import CHAINS, MAX_DEPTH, MixPlan
from ._prepare import Prepared, pack, unpack
from ._settings import ViewSettings

_triton: Any = OnFirstUse("cots.views._triton")
_MIDDLE_BYTES = 2**28  # limit for the half-resized crops that are held at a time
_EXACT: dict[str, Any] = {"enable_fp_fusion": False}
# Places in OPERATIONS.
_AUTOCONTRAST, _EQUALIZE, _POSTERIZE, _ROTATE, _SOLARIZE, _SHEAR_X, _SHEAR_Y, _TRANSLATE_X, _TRANSLATE_Y = range(9)


class GpuRenderer:
    """Renders prepared images on `device` without waiting for it."""

    def __init__(self, settings: ViewSettings, device: torch.device) -> None:
        # Constants are sent once: sending even one number makes the host wait.
        self.settings, self.device = settings, device
        levels = np.empty((1, 256, 3), dtype=np.float32)
        normalise(np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, axis=2), settings, levels)
        constants = settings.mean, settings.std, levels.transpose(2, 0, 1).copy()
        self._mean, self._std, self._levels = (torch.as_tensor(each, device=device) for each in constants)

    @torch.no_grad()
    def render(self, prepared: Sequence[Prepared]) -> Tensor:
        """Normalised views (B,V,3,H,W), with AugMix for all images at once: its many small steps cost host time."""
        strong, shape = self.settings.n - 1, self.settings.shape
        arrays = [item.on(self.device) for item in prepared]
        mixes = [item.mix for item in prepared if item.mix is not None and strong]
        out = torch.empty(len(prepared), 1 + strong, 3, *shape, device=self.device)
        crops, levels = out[:, 1:], self._levels
        if mixes:
            crops = torch.empty(len(prepared), strong, 3, *shape, dtype=torch.uint8, device=self.device)
            levels = None
        for i, (item, (image, weak, boxes, order)) in enumerate(zip(prepared, arrays, strict=True)):
            size = weak.shape[0] * weak.shape[1]
            scale = launched(_triton.scale_levels, -(-size // 1024))
            scale(weak, self._levels, out[i, 0], size, BLOCK=1024, num_warps=4)
            _crop(item, image, boxes, order, levels, crops[i])
        if mixes:
            _mix_views(crops.flatten(0, 1), MixPlan.join(mixes), self._mean, self._std, out)
        return out


gpu_renderer = functools.lru_cache(maxsize=8)(GpuRenderer)


def _crop(item: Prepared, image: Tensor, boxes: Tensor, order: Tensor, levels: Tensor | None, out: Tensor) -> None:
    """Write the crops of `item` to out (S,3,H,W): bytes, or their entries in `levels` (3,256)."""
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
    """Write the mixtures of views (B*S,3,H,W), normalised, to out (B,1+S,3,H,W), after the weak view of each image."""
    height, width = views.shape[-2:]
    size = height * width
    blocks = -(-size // 1024)
    chains = views.new_empty(len(views) * CHAINS, *views.shape[1:])
    source = views
    weights, steps = _steps(mix, (height, width), views.device)
    for depth, step in enumerate(steps):
        if len(step.moved):
            # A chain that moves again is copied first, because programs read what other programs write.
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
    """The weights (S,1+CHAINS) of views and chains, and the chains depth by depth, on `device` by one copy."""
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
