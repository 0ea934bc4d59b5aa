"""AugMix on one view: chains of the nine operations, mixed with the view itself (Hendrycks et al., ICLR 2020)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ._plan import OPERATIONS, MixPlan

_AFFINE = Image.Transform.AFFINE
_BILINEAR = Image.Resampling.BILINEAR


def apply_operation(image: Image.Image, operation: str, amount: float) -> Image.Image:
    """One AugMix operation on an RGB image of the views' size; what moves in from outside is black.

    >>> apply_operation(Image.new("RGB", (2, 2), (255, 255, 255)), "translate_x", 1).getpixel((1, 0))
    (0, 0, 0)
    """
    width, height = image.size
    match operation:
        case "autocontrast":
            return ImageOps.autocontrast(image)
        case "equalize":
            return ImageOps.equalize(image)
        case "posterize":
            return ImageOps.posterize(image, int(amount))
        case "solarize":
            return ImageOps.solarize(image, int(amount))
        case "rotate":
            return image.rotate(amount, resample=_BILINEAR)
        case "shear_x":
            return image.transform(image.size, _AFFINE, (1, amount, 0, 0, 1, 0), resample=_BILINEAR)
        case "shear_y":
            return image.transform(image.size, _AFFINE, (1, 0, 0, amount, 1, 0), resample=_BILINEAR)
        # Bilinear sampling at whole-pixel offsets is a shifted copy, and copying is a hundred times cheaper.
        case "translate_x":
            return image.crop((int(amount), 0, int(amount) + width, height))
        case "translate_y":
            return image.crop((0, int(amount), width, int(amount) + height))
    raise AssertionError(f"no AugMix operation {operation!r}")


def augmix(image: Image.Image, mix: MixPlan, index: int) -> NDArray[np.float32]:
    """View `index` of `mix` applied to a crop: (H,W,3) in [0, 255], not yet normalised.

    The published mixture is one of normalised tensors. Its weights sum to 1 and normalising is affine, so mixing first
    and normalising the whole stack later is the same mixture.
    """
    skip = mix.skip[index]
    mixed = np.array(image, dtype=np.float32) * np.float32(skip)
    for weight, operations, amounts in zip(mix.weights[index], mix.operations[index], mix.amounts[index], strict=True):
        chain = image
        for operation, amount in zip(operations, amounts, strict=True):
            if operation >= 0:
                chain = apply_operation(chain, OPERATIONS[operation], float(amount))
        mixed += np.multiply(np.asarray(chain), np.float32((1 - skip) * weight), dtype=np.float32)
    return mixed
