"""Numbers to pixels: arrays, tensors and every PIL mode become 8-bit RGB with white where white was."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from .._errors import InputError

_SHAPES = "(height, width), (height, width, 1), (height, width, 3) or (height, width, 4)"


def array_to_image(array: NDArray[Any]) -> Image.Image:
    """A grey, RGB or RGBA image from an array of uint8, uint16 or floats in [0, 1].

    >>> array_to_image(np.ones((1, 1, 3))).getpixel((0, 0))
    (255, 255, 255)
    """
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise InputError(f"image array of shape {array.shape} is not one image: give {_SHAPES}.{_shape_hint(array)}")
    if array.size == 0:
        raise InputError(f"image array of shape {array.shape} has no pixels: give an image of at least 1 x 1.")
    pixels = _to_bytes(array, "image array")
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    return Image.fromarray(np.ascontiguousarray(pixels))


def tensor_to_image(tensor: Tensor) -> Image.Image:
    """As `array_to_image`, for a tensor (H,W) or (1|3|4,H,W) on any device.

    >>> import torch
    >>> tensor_to_image(torch.zeros(3, 4, 5)).size
    (5, 4)
    """
    if tensor.ndim != 2 and (tensor.ndim != 3 or tensor.shape[0] not in (1, 3, 4)):
        raise InputError(
            f"image tensor of shape {tuple(tensor.shape)} is not one image: give (height, width) or "
            "(channels, height, width) with 1, 3 or 4 channels."
        )
    plain = tensor.detach().cpu()
    if plain.is_floating_point():
        plain = plain.float()
    return array_to_image((plain if plain.ndim == 2 else plain.permute(1, 2, 0)).numpy())


def to_rgb(image: Image.Image, name: str, flatten: bool) -> Image.Image:
    """A new RGB image, without metadata, from a loaded image of any mode.

    >>> to_rgb(Image.new("LA", (1, 1), (0, 0)), "logo.png", flatten=True).getpixel((0, 0))
    (255, 255, 255)
    """
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = Image.fromarray(_grey(image, name))
    try:
        if flatten and image.has_transparency_data:
            # La, premultiplied grey, has no direct way to RGBA.
            colours = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
            rgb = Image.alpha_composite(Image.new("RGBA", image.size, "white"), colours).convert("RGB")
        else:
            rgb = image.convert("RGB")
    except (ValueError, OSError) as error:
        raise InputError(
            f"{name} has colour mode {image.mode!r} ({error}): convert it to RGB and save it as PNG."
        ) from error
    # With its EXIF data still there, the next reader would turn the image (again, or against orient=False).
    rgb.info = {}
    return rgb


def _grey(image: Image.Image, name: str) -> NDArray[np.uint8]:
    """Deep greyscale scaled to 8 bits, where PIL's own conversion clips everything above 255 to white."""
    values = np.asarray(image)
    if image.mode != "I":
        return _to_bytes(values, name)
    # PIL keeps unsigned 32-bit TIFF samples (format 1, or not stated) in signed integers.
    if image.format == "TIFF" and getattr(image, "tag_v2", {}).get(339, (1,)) in (1, (1,)):
        values = values.view(np.uint32)
    if (least := int(values.min())) < 0:
        raise InputError(f"{name} holds negative grey values (down to {least}): scale it to 8 or 16 bits first.")
    top = int(values.max())
    # Mode I says nothing about where white is. PNG and PPM files are known to hold 16 bits; for the rest it is the
    # smallest of 8, 16, 31 and 32 bits that holds the values.
    depths = (16, 32) if image.format in ("PNG", "PPM") else (8, 16, 31, 32)
    white = 2 ** next(bits for bits in depths if top < 2**bits) - 1
    return np.rint(values * (255 / white)).astype(np.uint8)


def _to_bytes(values: NDArray[Any], name: str) -> NDArray[np.uint8]:
    kind, width = values.dtype.kind, values.dtype.itemsize
    if kind == "u" and width == 1:
        return values
    if kind == "u" and width == 2:
        return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if kind != "f":
        raise InputError(
            f"{name} has dtype {values.dtype}: give uint8 (0 to 255), uint16 (0 to 65535) or floats in [0, 1]; "
            "for other integers, array.astype('uint8') if they are from 0 to 255."
        )
    finite = np.isfinite(values)
    if not finite.all():
        where = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise InputError(
            f"{name} holds {int((~finite).sum())} value(s) that are not finite; the first is {values[where]} at index "
            f"{list(where)}. Replace them, for example with numpy.nan_to_num."
        )
    # Half an 8-bit level of overshoot, as resizing leaves behind, rounds to the same pixel.
    low, high = float(values.min()), float(values.max())
    if low < -1 / 510 or high > 1 + 1 / 510:
        raise InputError(
            f"{name} holds floats from {low:g} to {high:g}, but floats must lie in [0, 1]: divide 8-bit values by 255 "
            "(or pass them as uint8), and undo any normalisation."
        )
    return np.rint(np.clip(values, 0, 1).astype(np.float64) * 255).astype(np.uint8)


def _shape_hint(array: NDArray[Any]) -> str:
    if array.ndim == 1:
        return " For the bytes of an image file, pass array.tobytes()."
    if array.ndim == 3 and array.shape[0] in (1, 3, 4):
        return " With the channels first, pass array.transpose(1, 2, 0)."
    if array.ndim == 4:
        return " Of a batch, pass one image at a time."
    return ""
