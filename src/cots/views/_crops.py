"""All crops of an image at once on any device, with the integer arithmetic of PIL's bilinear resize."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# PIL keeps the weights of its filters as integers of 22 bits behind the point, and rounds to 8 bits after each pass.
_PRECISION = 22
# Sums of the first pass that are held at a time.
_BYTES = 2**28

Grid = tuple[Tensor, Tensor]  # size (2,1,1) of the views, steps (max size,): see `filters`


def crop(
    image: Tensor, boxes: Tensor, spans: NDArray[np.int64], across_first: int, size: tuple[int, int], grid: Grid
) -> Tensor:
    """The crops (S,3,H,W) of an image (height, width, 3), all uint8; boxes, spans, across_first as in `Prepared`."""
    strong, device = boxes.shape[-1], image.device
    views = torch.empty(strong, 3, *size, dtype=torch.uint8, device=device)
    if not strong:
        return views
    taps = _taps(spans, size)
    tables = filters(boxes, *grid, max(taps))
    for down_first, group in ((False, slice(0, across_first)), (True, slice(across_first, strong))):
        if group.start == group.stop:
            continue
        # Four bytes a pixel, as in PIL: a pixel is one 32-bit word to gather. What the fourth holds does not matter.
        lines = torch.empty(
            *(image.shape[:2] if down_first else image.shape[1::-1]), 4, dtype=torch.uint8, device=device
        )
        lines[..., :3] = image if down_first else image.transpose(0, 1)
        out = views.permute(0, 3, 2, 1) if down_first else views.permute(0, 2, 3, 1)
        axes = (0, 1) if down_first else (1, 0)
        for part in _parts(group, spans[:, axes[1]], size[axes[0]]):
            _two_passes(lines, tables, spans[:, :, part], axes, part, size, out[part])
    return views


def filters(boxes: Tensor, size: Tensor, steps: Tensor, taps: int) -> tuple[Tensor, Tensor]:
    """Source indices and integer weights of the triangle filter, (taps, 2, S, max size), down and across.

    boxes (3,2,S): start, length and flip; size (2,1,1) of the views; steps (max size,): 0, 1, 2, ...
    """
    start, length, flip = boxes[..., None]
    # A flip of the view is one of the order in which its columns are computed.
    pixel = steps + flip * (size - 1 - 2 * steps)
    scale = length / size
    reach = scale.clamp(min=1.0)
    centre = (pixel + 0.5) * scale
    low = (centre - reach + 0.5).floor_().clamp_(min=0)
    high = torch.minimum((centre + reach + 0.5).floor_(), length)
    place = low + torch.arange(taps, dtype=boxes.dtype, device=boxes.device)[:, None, None, None]
    weight = (1 - ((place - centre + 0.5) * reach.reciprocal()).abs_()).clamp_(min=0)
    weight *= place < high
    weight /= weight.sum(0)
    index = (torch.minimum(place, length - 1) + start).to(torch.int32)
    return index, (weight * 2.0**_PRECISION + 0.5).to(torch.int32)


def _taps(spans: NDArray[np.int64], size: tuple[int, int]) -> list[int]:
    """Down and across, how many source pixels a pixel depends on at most: the triangle reaches 1 or `scale` of them."""
    lengths = (spans[1] - spans[0]).max(-1)
    return [math.ceil(2 * max(1.0, length / side)) for length, side in zip(lengths.tolist(), size, strict=True)]


def _parts(group: slice, spans: NDArray[np.int64], side: int) -> Iterator[slice]:
    """Crops in parts whose sums after the first pass fit into memory; one part for a photo of ordinary size."""
    length = int(spans[1, group].max() - spans[0, group].min())
    at_once = max(1, _BYTES // (16 * side * length))
    for first in range(group.start, group.stop, at_once):
        yield slice(first, min(first + at_once, group.stop))


def _two_passes(
    lines: Tensor,
    tables: tuple[Tensor, Tensor],
    spans: NDArray[np.int64],
    axes: tuple[int, int],
    part: slice,
    size: tuple[int, int],
    out: Tensor,
) -> None:
    """Write crops to `out` (S, second size, first size, 3), from `lines` (first length, second length, 4)."""
    first, second = axes
    count, taps = spans.shape[-1], _taps(spans, size)
    low, high = int(spans[0, second].min()), int(spans[1, second].max())

    def table(axis: int) -> tuple[Tensor, Tensor]:
        index, weight = (values[: taps[axis], axis, part, : size[axis]] for values in tables)
        return index, weight

    index, weight = table(first)
    sums = _weighted_lines(lines[:, low:high].contiguous(), index.flatten(1), weight.flatten(1))
    # Turned, so that what was a line's length is now the count of lines.
    middle = torch.empty(count, high - low, size[first], 4, dtype=torch.uint8, device=lines.device)
    _to_bytes(sums.view(count, size[first], high - low, 4), middle.transpose(1, 2))
    index, weight = table(second)
    offset = torch.arange(count, dtype=torch.int32, device=lines.device).mul_(high - low).sub_(low)
    sums = _weighted_lines(middle.flatten(0, 1), (index + offset[:, None]).flatten(1), weight.flatten(1))
    _to_bytes(sums.view(count, size[second], size[first], 4)[..., :3], out)


def _weighted_lines(source: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """(N, length*4): sum over taps t of weight[t,n] * source[index[t,n]], from a source (lines, length, 4) of bytes."""
    words = source.view(torch.int32).squeeze(-1)
    sums = torch.full(
        (index.shape[1], 4 * words.shape[1]), 1 << (_PRECISION - 1), dtype=torch.int32, device=source.device
    )
    for line, factor in zip(index.unbind(), weight.unbind(), strict=True):
        sums.addcmul_(words.index_select(0, line).view(torch.uint8), factor[:, None])
    return sums


def _to_bytes(sums: Tensor, out: Tensor) -> None:
    # Weights that are not negative and sum to 1 need no clipping. Shifted in place and then copied: a shift straight
    # into bytes takes the sums for bytes on a GPU (seen with torch 2.11), and every pixel becomes 0.
    out.copy_(sums.bitwise_right_shift_(_PRECISION))
