"""Applying a drawn plan to the pixels of one image, with PIL, and normalising the stack."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from .._errors import InputError
from ._augmix import augmix
from ._plan import ViewPlan, draw_plan
from ._read import read_image
from ._settings import ViewSettings

# Above this many pixels of a resized image only the part that the centre crop keeps is computed: resizing the short
# side of a 1 x 100,000 image to 224 would otherwise take 5 billion pixels.
_RESIZED_PIXELS = 2**24


def make_views(image: Any, settings: ViewSettings, seed: int) -> Tensor:
    """The views of one image (anything `read_image` takes) as a normalised float32 tensor (n, 3, H, W).

    View 0 is the weak view, exactly open_clip's inference transform; views 1..n-1 are random crops and flips of the
    original image, with AugMix where `settings.augmix` says so. View i depends only on the image, `seed` and i.

    >>> from PIL import Image
    >>> make_views(Image.new("RGB", (500, 375)), ViewSettings(n=4), seed=0).shape
    torch.Size([4, 3, 224, 224])
    """
    pixels = read_image(image)
    return render_views(pixels, draw_plan((pixels.height, pixels.width), settings, seed), settings)


def render_views(image: Image.Image, plan: ViewPlan, settings: ViewSettings) -> Tensor:
    """View 0 and the strong views of `plan`, from an RGB image of the size that the plan was drawn for.

    >>> from PIL import Image
    >>> settings = ViewSettings(n=3, size=32)
    >>> render_views(Image.new("RGB", (40, 30)), draw_plan((30, 40), settings, seed=0), settings).shape
    torch.Size([3, 3, 32, 32])
    """
    check_plan(image, plan)
    height, width = settings.shape
    out = torch.empty(1 + len(plan.boxes), 3, height, width)
    mean = torch.tensor(settings.mean).view(3, 1, 1)
    std = torch.tensor(settings.std).view(3, 1, 1)

    def write(index: int, pixels: NDArray[Any]) -> None:
        # The same three float32 operations in the same order as open_clip, so the weak view agrees to the last bit;
        # view by view, because one view fits in the cache and the whole stack does not.
        planes = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
        torch.div(planes, 255, out=out[index]).sub_(mean).div_(std)

    write(0, np.array(weak_view(image, settings)))
    for i, (box, flip) in enumerate(zip(plan.boxes.tolist(), plan.flips.tolist(), strict=True)):
        view = _strong(image, box, flip, (width, height))
        write(i + 1, np.array(view) if plan.mix is None else augmix(view, plan.mix, i))
    return out


def check_plan(image: Image.Image, plan: ViewPlan) -> None:
    """Refuse an image that is not RGB or not of the size that `plan` was drawn for."""
    if image.mode != "RGB":
        raise InputError(f"render_views takes an RGB image, not mode {image.mode!r}; read_image makes one.")
    if plan.image_size != (image.height, image.width):
        raise InputError(
            f"the plan was drawn for an image of (height, width) = {plan.image_size}, "
            f"but this one is {(image.height, image.width)}: draw a plan for it."
        )


def _strong(image: Image.Image, box: list[int], flip: bool, size: tuple[int, int]) -> Image.Image:
    top, left, height, width = box
    # Cut first: the filter of PIL's resize(box=...) reaches past the box, so pixels outside the crop would bleed in.
    view = _window(image, left, top, width, height).resize(size, Image.Resampling.BILINEAR)
    return view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else view


def weak_view(image: Image.Image, settings: ViewSettings) -> Image.Image:
    """What open_clip's inference transform does to the geometry, including its choices of rounding."""
    height, width = settings.shape
    method = Image.Resampling.BILINEAR if settings.interpolation == "bilinear" else Image.Resampling.BICUBIC
    if settings.resize_mode == "squash":
        return image.resize((width, height), method)
    if settings.resize_mode == "longest":
        ratio = max(image.height / height, image.width / width)
        # An image much longer than wide rounds to no width at all, where open_clip fails.
        resized = max(1, round(image.width / ratio)), max(1, round(image.height / ratio))
        return _centre(image.resize(resized, method), width, height, settings.fill_color)
    if height == width:
        short = min(image.width, image.height)
        resized = (
            height if image.width == short else int(height * image.width / short),
            height if image.height == short else int(height * image.height / short),
        )
    else:
        ratio = min(image.height / height, image.width / width)
        resized = round(image.width / ratio), round(image.height / ratio)
        # open_clip resizes to a size that is not square with bicubic whatever the configuration says.
        method = Image.Resampling.BICUBIC
    if resized[0] * resized[1] > _RESIZED_PIXELS:
        return _centre_of_resized(image, resized, width, height, method)
    return _centre(image.resize(resized, method), width, height, 0)


def _centre(image: Image.Image, width: int, height: int, fill: int) -> Image.Image:
    return _window(image, _offset(image.width, width), _offset(image.height, height), width, height, (fill, fill, fill))


def _offset(have: int, want: int) -> int:
    """Where the central window starts: cropping rounds half to even, padding rounds down."""
    return round((have - want) / 2) if have >= want else -((want - have) // 2)


def _window(
    image: Image.Image, left: int, top: int, width: int, height: int, fill: tuple[int, int, int] | None = None
) -> Image.Image:
    """The part of `image` under a window, which may reach outside when there is a `fill`.

    Pasting instead of Image.crop: the latter warns of a decompression bomb for large parts of an accepted image.
    """
    window = Image.new("RGB", (width, height), fill)
    window.paste(image, (-left, -top))
    return window


def _centre_of_resized(
    image: Image.Image, resized: tuple[int, int], width: int, height: int, method: Image.Resampling
) -> Image.Image:
    """The centre crop of the resized image without making the rest of it; a box in float32 costs at most one level."""
    spans = []
    for have, new, want in zip(image.size, resized, (width, height), strict=True):
        scale = have / new
        start = max(0, _offset(new, want)) * scale
        margin = 2 * math.ceil(max(scale, 1.0)) + 1
        low = max(0, math.floor(start) - margin)
        high = min(have, math.ceil(start + want * scale) + margin)
        spans.append((low, high - low, start - low, start - low + want * scale))
    (left, cut_width, x0, x1), (top, cut_height, y0, y1) = spans
    cut = _window(image, left, top, cut_width, cut_height)
    return cut.resize((width, height), method, box=(x0, y0, min(x1, cut_width), min(y1, cut_height)))
