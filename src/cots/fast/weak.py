"""The weak view on a GPU: PIL's resize as tables of fixed-point weights, one per axis, which the host computes."""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..views import ViewSettings, weak_geometry, weak_view

_MAX_TAPS = 512  # source pixels under the filter of one output pixel; with more, the host renders the weak view
_SUPPORT = {Image.Resampling.BILINEAR: 1.0, Image.Resampling.BICUBIC: 2.0}
_ONE = 2**22  # the weight 1 in PIL's fixed-point format


@dataclass(frozen=True, kw_only=True)
class WeakTables:
    """How the weak view follows from the pixels of an image, in two passes that both round to bytes.

    down (2+taps,H) and across (2+taps,W) have for each row and column of the view the first source pixel, the value
    that its sum starts from, and the weights of `taps` source pixels. down_first: the order of the passes.
    """

    down: NDArray[np.int32]
    across: NDArray[np.int32]
    down_first: bool


def weak_tables(image: Image.Image, settings: ViewSettings) -> tuple[WeakTables, NDArray[np.uint8] | None]:
    """The tables for an image and, if the image is too extreme for them, its weak view (H,W,3), which they copy."""
    height, width = settings.shape
    geometry = weak_geometry((image.height, image.width), settings)
    resized_width, resized_height = geometry.resized
    method, fill = geometry.method, geometry.fill
    shrinking = max(image.width / resized_width, image.height / resized_height)
    if geometry.partial or 2 * _SUPPORT[method] * shrinking > _MAX_TAPS:
        copied = WeakTables(down=_copying(height), across=_copying(width), down_first=False)
        return copied, np.asarray(weak_view(image, settings))
    tables = WeakTables(
        down=axis_table(image.height, resized_height, geometry.start[1], height, method, fill),
        across=axis_table(image.width, resized_width, geometry.start[0], width, method, fill),
        down_first=bool(down_first(image.height, image.width, (resized_height, resized_width))),
    )
    return tables, None


def _copying(size: int) -> NDArray[np.int32]:
    return axis_table(size, size, 0, size, Image.Resampling.BILINEAR, 0)


@functools.lru_cache(maxsize=64)
def axis_table(
    have: int, resized: int, start: int, want: int, method: Image.Resampling, fill: int
) -> NDArray[np.int32]:
    """The table (2+taps,want) of a window at `start` on an axis resized from `have` to `resized` pixels.

    Its weights are those of PIL's Resample.c to the last bit; `fill` is the level outside the resized image.
    """
    pixel = start + np.arange(want)
    inside = (pixel >= 0) & (pixel < resized)
    scale = have / resized
    stretch = max(scale, 1.0)
    support = _SUPPORT[method] * stretch
    centre = (pixel + 0.5) * scale
    low = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    high = np.minimum((centre + support + 0.5).astype(np.int64), have)
    taps = int((high - low)[inside].max())
    # All taps are pixels that exist, so the kernel checks no bounds.
    first = np.where(inside, np.minimum(low, have - taps), 0)
    source = first + np.arange(taps)[:, None]
    share = _filter(method, (source - centre + 0.5) * (1.0 / stretch))
    share[(source < low) | (source >= high) | ~inside] = 0.0
    total = share.cumsum(axis=0)[-1]  # one after the other like PIL, which `sum` does not promise
    weights = share / np.where(total == 0.0, 1.0, total) * _ONE
    table = np.empty((2 + taps, want), dtype=np.int32)
    table[0] = first
    table[1] = np.where(inside, 0, fill) * _ONE + _ONE // 2
    table[2:] = weights + np.copysign(0.5, weights)
    table.flags.writeable = False  # it is shared
    return table


def _filter(method: Image.Resampling, x: NDArray[np.float64]) -> NDArray[np.float64]:
    x = np.abs(x)
    if method == Image.Resampling.BILINEAR:
        return np.maximum(1.0 - x, 0.0)
    a = -0.5
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def down_first(height: Any, width: Any, resized: tuple[int, int]) -> Any:
    """Whether PIL resizes vertically first (numbers or arrays); it rounds in between, which can change a level."""
    less_height, less_width = height - resized[0], width - resized[1]
    if pil_chooses_order():
        return (less_height > 0) & (less_height > 2 * less_width)
    return (less_height > 0) & (height > 100 * width) & _pil_knows_tall_images()


@functools.cache
def pil_chooses_order() -> bool:
    """False for PIL before version 13, which resizes horizontally first, at least images that are not very tall."""
    return not _across_first((40, 60), (36, 18))


@functools.cache
def _pil_knows_tall_images() -> bool:
    """Whether PIL before version 13 resizes images vertically first that are over 100 times as high as wide."""
    return not _across_first((2, 248), (1, 12))


def _across_first(size: tuple[int, int], resized: tuple[int, int]) -> bool:
    """Whether PIL resizes an image of this (width, height) horizontally first."""
    grain = Image.fromarray(np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    across = grain.resize((resized[0], size[1]), Image.Resampling.BILINEAR)
    in_two_steps = across.resize(resized, Image.Resampling.BILINEAR)
    return grain.resize(resized, Image.Resampling.BILINEAR).tobytes() == in_two_steps.tobytes()
