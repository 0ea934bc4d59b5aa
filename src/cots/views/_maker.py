"""From an image to its views: read it, draw a plan, and render it, with PIL or with what an accelerator has."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from .._errors import InputError, check_one_of
from ..accelerate import accelerator
from ._plan import OPERATIONS, MixPlan, ViewPlan, ViewSettings, draw_plan
from ._read import read_image

RENDERERS = ("auto", "pil", "gpu")
_AFFINE, _BILINEAR = Image.Transform.AFFINE, Image.Resampling.BILINEAR
# Above this size only the part of the resized image under the centre crop is computed: resizing the short side of a
# 1 x 100,000 image to 224 would otherwise take 5 billion pixels.
_RESIZED_PIXELS = 2**24
_CROP_PIXELS = 2**18  # larger crops are resized in strips, which fit in a cache


class Renderer(Protocol):
    """What draws views in two steps: one image on the host, a batch on the device."""

    def prepare(self, image: Image.Image, plan: ViewPlan) -> Any:
        """The host step, which may run in any thread or process; the result can be pickled."""

    def render(self, prepared: Sequence[Any]) -> Tensor:
        """The views (B,V,3,H,W) of prepared images, without waiting for the device."""
        ...


class ViewSource(Protocol):
    """The views of a batch of images, of which some may never be needed."""

    def between(self, rows: Sequence[int], start: int, stop: int) -> Tensor:
        """Views start to stop-1 of the images `rows` (len(rows), stop - start, 3, H, W)."""
        ...


def choose_renderer(name: str, device: torch.device) -> str:
    """ "pil" or "gpu"; "auto" means "gpu" on a GPU that can render."""
    check_one_of("renderer", name, RENDERERS)
    if name == "pil":
        return "pil"
    if accelerator().renderer(ViewSettings(), device) is not None:
        return "gpu"
    if name == "auto":
        return "pil"
    raise InputError(
        f"renderer='gpu' needs an NVIDIA GPU of compute capability 8.0 or higher, not {str(device)!r}. Use 'pil' or "
        "'auto'."
    )


@dataclass(frozen=True)
class ViewMaker:
    """Makes views in two steps: `prepare` one image on the host, `render` a batch on the device.

    Both renderers give the same pixels. A ViewMaker can be pickled, and `prepare` can run in any thread or process.

    - settings: how many views, and how they are made
    - device: where the views are used
    - renderer: "pil" (on the host), "gpu" (on `device`) or "auto" (the GPU if it can)
    - threads: for drawing the views of one image with PIL

    >>> maker = ViewMaker(ViewSettings(n=3, size=32), torch.device("cpu"))
    >>> maker.renderer
    'pil'
    >>> maker.render([maker.prepare(Image.new("RGB", (40, 30)), seed) for seed in (0, 1)]).shape
    torch.Size([2, 3, 3, 32, 32])
    """

    settings: ViewSettings
    device: torch.device
    renderer: str = "auto"
    threads: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "renderer", choose_renderer(self.renderer, self.device))

    def prepare(self, image: Image.Image, seed: int, *, later: bool = False) -> Any:
        """The host step for an RGB image from `read_image`, with views drawn from `seed`.

        later: where PIL draws, draw views when `source` is asked for them.
        """
        plan = draw_plan((image.height, image.width), self.settings, seed)
        if self.renderer == "gpu":
            return self._gpu.prepare(image, plan)
        if later:
            return Undrawn(image, plan)
        return render_views(image, plan, self.settings, self.threads)

    def render(self, prepared: Sequence[Any]) -> Tensor:
        """The device step: the views (B,V,3,H,W) of prepared images. It does not wait for the device."""
        if self.renderer == "gpu":
            return self._gpu.render(prepared)
        if len(prepared) == 1:
            return prepared[0][None]  # copies nothing
        return torch.stack(list(prepared))

    def source(self, prepared: Sequence[Any]) -> ViewSource:
        """The views of prepared images, for those who may need only the first of them. A GPU renders all at once."""
        if prepared and isinstance(prepared[0], Undrawn):
            return _Drawn(prepared, self.settings, self.threads)
        return _Rendered(self.render(prepared))

    @property
    def _gpu(self) -> Renderer:
        renderer = accelerator().renderer(self.settings, self.device)
        assert renderer is not None
        return renderer


@dataclass(frozen=True)
class Undrawn:
    """An image and the plan of its views, none of which is drawn yet."""

    image: Image.Image
    plan: ViewPlan


@dataclass(frozen=True)
class _Drawn:
    """Views that PIL draws when they are asked for."""

    images: Sequence[Undrawn]
    settings: ViewSettings
    threads: int

    def between(self, rows: Sequence[int], start: int, stop: int) -> Tensor:
        drawn = []
        for row in rows:
            one = self.images[row]
            drawn.append(render_views(one.image, one.plan, self.settings, self.threads, range(start, stop)))
        return drawn[0][None] if len(drawn) == 1 else torch.stack(drawn)


@dataclass(frozen=True)
class _Rendered:
    """Views (B,V,3,H,W) that exist."""

    views: Tensor

    def between(self, rows: Sequence[int], start: int, stop: int) -> Tensor:
        some = self.views[:, start:stop]
        return some if len(rows) == len(some) else some[list(rows)]


def make_views(image: Any, settings: ViewSettings, seed: int) -> Tensor:
    """The views of one image (anything `read_image` takes) as a normalised float32 tensor (n,3,H,W).

    View 0 is the weak view, exactly open_clip's inference transform; views 1..n-1 are random crops and flips of the
    original image, with AugMix if `settings.augmix` is set. View i depends only on the image, `seed` and i.

    >>> make_views(Image.new("RGB", (500, 375)), ViewSettings(n=4), seed=0).shape
    torch.Size([4, 3, 224, 224])
    """
    pixels = read_image(image)
    return render_views(pixels, draw_plan((pixels.height, pixels.width), settings, seed), settings)


def render_views(
    image: Image.Image, plan: ViewPlan, settings: ViewSettings, threads: int = 1, which: range | None = None
) -> Tensor:
    """View 0 and the strong views of `plan`, normalised, from an RGB image of the size the plan was drawn for.

    which: only these of the views. The channels are last in memory. PIL and NumPy release the interpreter's lock, so
    `threads` draw side by side.
    """
    plan.check(image)
    height, width = settings.shape
    which = range(1 + len(plan.boxes)) if which is None else which
    out = np.empty((len(which), height, width, 3), dtype=np.float32)

    def draw(place: int) -> None:
        i = which[place]
        pixels = np.array(weak_view(image, settings)) if i == 0 else _strong_view(image, plan, settings, i - 1)
        normalise(pixels, settings, out[place])

    if threads == 1:
        deque(map(draw, range(len(out))), maxlen=0)
    else:
        with ThreadPoolExecutor(threads) as pool:
            deque(pool.map(draw, range(len(out))), maxlen=0)
    return torch.from_numpy(out).permute(0, 3, 1, 2)


def _strong_view(
    image: Image.Image, plan: ViewPlan, settings: ViewSettings, index: int
) -> NDArray[np.uint8] | NDArray[np.float32]:
    height, width = settings.shape
    top, left, h, w = plan.boxes[index].tolist()
    view = _resized_crop(image, (left, top, w, h), (width, height))
    if plan.flips[index]:
        view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.array(view) if plan.mix is None else _augmix(view, plan.mix, index)


def _resized_crop(image: Image.Image, box: tuple[int, int, int, int], size: tuple[int, int]) -> Image.Image:
    """The part of `image` in `box` (left, top, width, height), resized."""
    left, top, width, height = box
    # Crop first: the filter of PIL's resize(box=...) reaches past the box, so pixels outside would bleed in.
    if width * height <= _CROP_PIXELS or height - size[1] > 2 * (width - size[0]):
        return _window(image, left, top, width, height).resize(size, _BILINEAR)
    # Except for tall crops, PIL resizes across first, row by row: strips give the same pixels without a copy of a crop
    # that can be as large as the photo.
    across, rows = Image.new("RGB", (size[0], height)), max(1, _CROP_PIXELS // width)
    for start in range(0, height, rows):
        strip = _window(image, left, top + start, width, min(rows, height - start))
        across.paste(strip.resize((size[0], strip.height), _BILINEAR), (0, start))
    return across.resize(size, _BILINEAR)


def normalise(
    pixels: NDArray[np.uint8] | NDArray[np.float32], settings: ViewSettings, out: NDArray[np.float32]
) -> None:
    """Write pixels (H,W,3) in [0, 255] to out (H,W,3), by open_clip's three float32 operations in their order."""
    # Whole rows at a time: NumPy is slow where the last axis has three values.
    rows, flat = pixels.reshape(len(pixels), -1), out.reshape(len(pixels), -1)
    np.divide(rows, np.float32(255), out=flat)
    flat -= np.tile(np.array(settings.mean, dtype=np.float32), pixels.shape[1])
    flat /= np.tile(np.array(settings.std, dtype=np.float32), pixels.shape[1])


@dataclass(frozen=True, kw_only=True)
class WeakGeometry:
    """The geometry of a weak view: the image is resized, and a window of the view's size is cut out of the result.

    resized is (width, height) and start (x, y). The window may extend beyond the resized image; there the pixels are
    `fill`. partial: only the part under the window is computed, because the whole resized image would be huge.
    """

    resized: tuple[int, int]
    method: Image.Resampling
    start: tuple[int, int]
    fill: int
    partial: bool


def weak_geometry(image_size: tuple[int, int], settings: ViewSettings) -> WeakGeometry:
    """The geometry of open_clip's inference transform, including its rounding, for an image of (height, width)."""
    (image_height, image_width), (height, width) = image_size, settings.shape
    method = _BILINEAR if settings.interpolation == "bilinear" else Image.Resampling.BICUBIC
    fill = 0
    if settings.resize_mode == "squash":
        resized = width, height
    elif settings.resize_mode == "longest":
        ratio = max(image_height / height, image_width / width)
        # At least 1: open_clip fails where the short side of an extreme image rounds to 0.
        resized = max(1, round(image_width / ratio)), max(1, round(image_height / ratio))
        fill = settings.fill_color
    elif height == width:
        short = min(image_width, image_height)
        resized = int(height * image_width / short), int(height * image_height / short)
    else:
        ratio = min(image_height / height, image_width / width)
        resized = round(image_width / ratio), round(image_height / ratio)
        # If the size is not square, open_clip always uses bicubic interpolation.
        method = Image.Resampling.BICUBIC
    return WeakGeometry(
        resized=resized,
        method=method,
        start=(_offset(resized[0], width), _offset(resized[1], height)),
        fill=fill,
        partial=settings.resize_mode == "shortest" and resized[0] * resized[1] > _RESIZED_PIXELS,
    )


def weak_view(image: Image.Image, settings: ViewSettings) -> Image.Image:
    """The weak view before normalisation: open_clip's inference transform."""
    height, width = settings.shape
    geometry = weak_geometry((image.height, image.width), settings)
    if geometry.partial:
        return _centre_of_resized(image, geometry, width, height)
    resized = image.resize(geometry.resized, geometry.method)
    return _window(resized, *geometry.start, width, height, (geometry.fill, geometry.fill, geometry.fill))


def _translate(image: Image.Image, x: int, y: int) -> Image.Image:
    # At whole-pixel offsets, bilinear sampling equals a shifted copy, which is a hundred times faster.
    return image.crop((x, y, x + image.width, y + image.height))


# AugMix's operations on an RGB image; pixels from outside the image are black.
APPLY: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "autocontrast": lambda image, _: ImageOps.autocontrast(image),
    "equalize": lambda image, _: ImageOps.equalize(image),
    "posterize": lambda image, bits: ImageOps.posterize(image, int(bits)),
    "solarize": lambda image, threshold: ImageOps.solarize(image, int(threshold)),
    "rotate": lambda image, degrees: image.rotate(degrees, resample=_BILINEAR),
    "shear_x": lambda image, shear: image.transform(image.size, _AFFINE, (1, shear, 0, 0, 1, 0), _BILINEAR),
    "shear_y": lambda image, shear: image.transform(image.size, _AFFINE, (1, 0, 0, shear, 1, 0), _BILINEAR),
    "translate_x": lambda image, pixels: _translate(image, int(pixels), 0),
    "translate_y": lambda image, pixels: _translate(image, 0, int(pixels)),
}


def _augmix(image: Image.Image, mix: MixPlan, index: int) -> NDArray[np.float32]:
    """View `index` of `mix` applied to a crop (Hendrycks et al., ICLR 2020): (H,W,3) in [0, 255].

    The published code mixes normalised tensors. The weights sum to 1 and normalisation is affine, so normalising the
    mixture gives the same result.
    """
    skip = mix.skip[index]
    mixed = np.array(image, dtype=np.float32) * np.float32(skip)
    for weight, operations, amounts in zip(mix.weights[index], mix.operations[index], mix.amounts[index], strict=True):
        chain = image
        for operation, amount in zip(operations, amounts, strict=True):
            if operation >= 0:
                chain = APPLY[OPERATIONS[operation]](chain, float(amount))
        mixed += np.multiply(np.asarray(chain), np.float32((1 - skip) * weight), dtype=np.float32)
    return mixed


def _offset(have: int, want: int) -> int:
    """Start of the central window: cropping rounds half to even, padding rounds down."""
    return round((have - want) / 2) if have >= want else -((want - have) // 2)


def _window(
    image: Image.Image, left: int, top: int, width: int, height: int, fill: tuple[int, int, int] | None = None
) -> Image.Image:
    """The part of `image` under a window, which may extend beyond the image if `fill` is given.

    It pastes, because Image.crop warns of a decompression bomb for large parts of an accepted image.
    """
    window = Image.new("RGB", (width, height), fill)
    window.paste(image, (-left, -top))
    return window


def _centre_of_resized(image: Image.Image, geometry: WeakGeometry, width: int, height: int) -> Image.Image:
    """The centre crop of the resized image, without computing the rest; differs by at most 1/255."""
    spans = []
    for have, new, first, want in zip(image.size, geometry.resized, geometry.start, (width, height), strict=True):
        scale = have / new
        start = max(0, first) * scale
        margin = 2 * math.ceil(max(scale, 1.0)) + 1
        low = max(0, math.floor(start) - margin)
        high = min(have, math.ceil(start + want * scale) + margin)
        spans.append((low, high - low, start - low, start - low + want * scale))
    (left, cut_width, x0, x1), (top, cut_height, y0, y1) = spans
    cut = _window(image, left, top, cut_width, cut_height)
    return cut.resize((width, height), geometry.method, box=(x0, y0, min(x1, cut_width), min(y1, cut_height)))
