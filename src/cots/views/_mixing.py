"""AugMix of all views of an image at once on any device: what `_augmix` does with PIL, view by view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ._plan import CHAINS

# Images that are moved at a time: in double precision, one of 224 x 224 takes 1.2 MB in each of three arrays.
_AT_ONCE = 128
# PIL cuts off what is behind the point. Sampling a flat area gives its level up to 1e-11, on either side of it.
_SLACK = 1e-9


def mix_views(
    views: Tensor, arrays: Mapping[str, Tensor], counts: Sequence[tuple[int, int]], centres: Tensor
) -> Tensor:
    """The mixtures (S,3,H,W), float32 in [0, 255], of views (S,3,H,W) in uint8; `arrays` and `counts` as in `Mix`.

    centres (max size,): 0.5, 1.5, 2.5, ...
    """
    chains = views.new_empty(len(views) * CHAINS, *views.shape[1:])
    source = views
    for depth, (stretched, equalized) in enumerate(counts):
        named = {
            name: arrays[f"{name}{depth}"] for name in ("moved", "moved_from", "maps", "toned", "toned_from", "tables")
        }
        for first in range(0, len(named["moved"]), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            before = source.index_select(0, named["moved_from"][part])
            maps = named["maps"][part]
            chains.index_copy_(0, named["moved"][part], move(before, maps, centres))
        if len(named["toned"]):
            before = source.index_select(0, named["toned_from"])
            chains.index_copy_(0, named["toned"], tone(before, stretched, equalized, named["tables"]))
        source = chains
    weights = arrays["weights"][..., None, None, None]
    mixed = views * weights[:, 0]
    for chain, images in enumerate(chains.view(len(views), CHAINS, *views.shape[1:]).unbind(1)):
        # Not addcmul: one rounding for both steps would differ from the CPU's two.
        mixed += images * weights[:, 1 + chain]
    return mixed


def move(images: Tensor, maps: Tensor, centres: Tensor) -> Tensor:
    """Images (N,3,H,W) sampled where maps (N,2,3) lead to, like PIL's bilinear transform: black outside."""
    height, width = images.shape[-2:]
    # Multiplied and added in PIL's order: on the edge, the last bit decides what is black.
    across, down, fixed = maps[..., None, None].unbind(2)
    places = across * centres[:width] + down * centres[:height, None]
    places += fixed
    inside = places >= 0
    inside[:, 0].logical_and_(places[:, 0] < width)
    inside[:, 1].logical_and_(places[:, 1] < height)
    # What grid_sample calls a place: the image spans [-1, 1].
    places[:, 0].mul_(2 / width)
    places[:, 1].mul_(2 / height)
    places -= 1
    # Double precision: the fraction is cut off, so a level would be lost wherever rounding ends up below a whole one.
    sampled = torch.nn.functional.grid_sample(
        images.double(), places.permute(0, 2, 3, 1), mode="bilinear", padding_mode="border", align_corners=False
    )
    return sampled.add_(_SLACK).to(torch.uint8).mul_(inside[:, :1]).mul_(inside[:, 1:])


def tone(images: Tensor, stretched: int, equalized: int, tables: Tensor) -> Tensor:
    """Images (N,3,H,W) through tables: the first `stretched` ones by autocontrast, then equalize, then `tables`."""
    levels = torch.arange(256, device=images.device)
    found = []
    if stretched:
        found.append(_autocontrast(images[:stretched].flatten(2), levels))
    if equalized:
        found.append(_equalize(images[stretched : stretched + equalized].flatten(2), levels))
    found.append(tables.expand(-1, 3, -1))
    start = torch.arange(0, 768 * len(images), 256, dtype=torch.int32, device=images.device)
    index = images + start.view(-1, 3, 1, 1)
    return torch.cat(found).flatten().index_select(0, index.flatten()).view_as(images)


def _autocontrast(planes: Tensor, levels: Tensor) -> Tensor:
    low = planes.amin(-1, keepdim=True).double()
    span = planes.amax(-1, keepdim=True).double() - low
    # Divided and not multiplied by the inverse, multiplied and added in two steps: PIL's numbers, to the last bit.
    scale = torch.full_like(span, 255.0) / span.clamp(min=1)
    stretched = (levels * scale + -low * scale).clamp_(0, 255)
    return torch.where(span > 0, stretched, levels).to(torch.uint8)


def _equalize(planes: Tensor, levels: Tensor) -> Tensor:
    start = torch.arange(0, 256 * planes.shape[0] * 3, 256, device=planes.device).view(-1, 3, 1)
    index = (planes + start).flatten()
    counts = index.new_zeros(planes.shape[0] * 3 * 256)
    counts = counts.scatter_add_(0, index, index.new_ones(1).expand(len(index))).view(-1, 3, 256)
    last = counts.gather(-1, planes.amax(-1, keepdim=True).long())
    step = (planes.shape[-1] - last) // 255
    before = counts.cumsum(-1) - counts
    table = ((step // 2 + before) // step.clamp(min=1)).clamp_(max=255)
    return torch.where(step > 0, table, levels).to(torch.uint8)
