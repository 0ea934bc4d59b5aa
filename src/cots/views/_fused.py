"""Views by a few GPU kernels for all views of some images: what `_crops` and `_mixing` do in many small steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._kernels import available, launched, power_of_two
from ._plan import CHAINS

try:
    from . import _triton
except ImportError:  # a build of torch without Triton
    _triton: Any = None

_LARGEST = 1024  # pixels of a view's side; a program of the kernels holds whole lines
_BYTES = 2**28  # of crops between the two passes, held at a time
_EXACT: dict[str, Any] = {"enable_fp_fusion": False}


def usable(device: torch.device, size: tuple[int, int]) -> bool:
    """Whether views of this size can be rendered by the kernels."""
    return _triton is not None and max(size) <= _LARGEST and available(device)


def crop(
    image: Tensor,
    boxes: Tensor,
    order: Tensor,
    spans: NDArray[np.int64],
    across_first: int,
    levels: Tensor | None,
    out: Tensor,
) -> None:
    """Write the crops of an image (height, width, 3) to out (S,3,H,W): bytes, or what `levels` (3,256) makes of them.

    boxes (3,2,S), spans and across_first as in `Prepared`; crop s goes to out[order[s]].
    """
    strong = boxes.shape[-1]
    height, width = out.shape[-2:]
    side = power_of_two(max(height, width))
    rows = max(1, 2048 // side)
    lengths = spans[1] - spans[0]
    lines = int(max([0, *lengths[0, :across_first], *lengths[1, across_first:]]))
    at_once = max(1, _BYTES // (3 * lines * side)) if lines else 1
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


def scale(image: Tensor, levels: Tensor, out: Tensor) -> None:
    """Write an image of bytes (H,W,3) to out (3,H,W) as what `levels` (3,256) makes of them."""
    size = image.shape[0] * image.shape[1]
    launched(_triton.scale_levels, -(-size // 1024))(image, levels, out, size, BLOCK=1024, num_warps=4)


def mix_views(
    views: Tensor,
    arrays: Mapping[str, Tensor],
    counts: Sequence[tuple[int, int]],
    mean: Tensor,
    std: Tensor,
    out: Tensor,
) -> None:
    """Write the mixtures of views (B*S,3,H,W), normalised, to out (B,1+S,3,H,W), behind the first of each image."""
    height, width = views.shape[-2:]
    size = height * width
    blocks = -(-size // 1024)
    chains = views.new_empty(len(views) * CHAINS, *views.shape[1:])
    source = views
    for depth, (stretched, equalized) in enumerate(counts):
        moved, moved_from, maps, toned, toned_from, given = (
            arrays[f"{name}{depth}"] for name in ("moved", "moved_from", "maps", "toned", "toned_from", "tables")
        )
        if len(moved):
            # A chain that moves again is copied first: programs read what others of them write.
            before = source if depth == 0 else source.index_select(0, moved_from)
            launched(_triton.move, blocks, len(moved))(
                before, chains, moved_from, moved, maps, height, width, HAS_FROM=depth == 0, BLOCK=1024, num_warps=4,
                **_EXACT,
            )  # fmt: skip
        made = stretched + equalized
        tables = torch.empty(max(made, 1), 3, 256, dtype=torch.uint8, device=views.device)
        if made:
            launched(_triton.tone_tables, made, 3)(
                source, toned_from, tables, stretched, size, BLOCK=4096, num_warps=8, **_EXACT
            )
        if len(toned):
            launched(_triton.tone, blocks, len(toned), 3)(
                source, chains, toned_from, toned, tables, given if len(given) else tables, made, size,
                BLOCK=1024, num_warps=4,
            )  # fmt: skip
        source = chains
    launched(_triton.mix, blocks, len(views), 3)(
        views, chains, arrays["weights"], mean, std, out, size, out.shape[1] - 1, 255.0,
        CHAINS=CHAINS, BLOCK=1024, num_warps=4, **_EXACT,
    )  # fmt: skip
