"""Rendering the views of an image on a device: the plan is the CPU's, the pixels agree to one level of 255."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from .._errors import InputError, unknown_name
from . import _fused as fused
from ._crops import crop
from ._mixing import mix_views
from ._pixels import tensor_to_image
from ._plan import ViewPlan
from ._prepare import Mix, Prepared, prepare
from ._settings import ViewSettings

RENDERERS = ("auto", "pil", "gpu")


def choose_renderer(name: str, device: torch.device) -> str:
    """ "pil" or "gpu": by default the latter where `device` is a GPU.

    >>> choose_renderer("auto", torch.device("cpu"))
    'pil'
    """
    if name not in RENDERERS:
        raise unknown_name("renderer", name, RENDERERS)
    if name == "auto":
        return "gpu" if device.type == "cuda" else "pil"
    return name


class Renderer:
    """Turns what `prepare` packed into the views (n,3,H,W) on `device`, normalised, without waiting for the device.

    >>> from ._plan import draw_plan
    >>> settings, image = ViewSettings(n=3, size=32), Image.new("RGB", (40, 30))
    >>> prepared = prepare(image, draw_plan((30, 40), settings, 0), settings)
    >>> Renderer(settings, torch.device("cpu"))(prepared).shape
    torch.Size([3, 3, 32, 32])
    """

    def __init__(self, settings: ViewSettings, device: torch.device) -> None:
        # Everything that does not depend on the image is sent once: sending even a number makes the host wait.
        self.settings, self.device = settings, device
        height, width = settings.shape
        whole = {"dtype": torch.float64, "device": device}
        steps = torch.arange(max(height, width), **whole)
        self._grid = torch.tensor([[[height]], [[width]]], **whole), steps
        self._white = torch.tensor(255.0, device=device)
        self._mean = torch.tensor(settings.mean, device=device).view(3, 1, 1)
        self._std = torch.tensor(settings.std, device=device).view(3, 1, 1)
        self._centres = steps + 0.5
        # What becomes of each level of each channel, by the same two divisions as the views themselves.
        levels = torch.arange(256, dtype=torch.float32, device=device).expand(3, 1, 256)
        self._levels = (levels / self._white).sub_(self._mean).div_(self._std).contiguous()

    def __call__(self, prepared: Prepared) -> Tensor:
        """The views of one image."""
        return self.many([prepared])[0]

    @torch.no_grad()
    def many(self, some: Sequence[Prepared]) -> list[Tensor]:
        """The views of several images, with AugMix for all at once: its many small steps would keep the host busy."""
        made = [(prepared, prepared.on(self.device)) for prepared in some]
        whole = [(prepared, arrays) for prepared, arrays in made if "views" not in arrays]
        mixes = [prepared.mix for prepared, _ in whole if prepared.mix is not None]
        mix = Mix.merge(mixes) if len(mixes) > 1 else mixes[0] if mixes else None
        out = torch.empty(len(whole), self.settings.n, 3, *self.settings.shape, device=self.device)
        (self._fused if fused.usable(self.device, self.settings.shape) else self._stepwise)(whole, mix, out)
        rendered = iter(out)
        return [arrays["views"] if "views" in arrays else next(rendered) for _, arrays in made]

    def _fused(self, some: Sequence[tuple[Prepared, dict[str, Tensor]]], mix: Mix | None, out: Tensor) -> None:
        height, width = self.settings.shape
        crops = None
        if mix is not None:
            crops = torch.empty(len(some), self.settings.n - 1, 3, height, width, dtype=torch.uint8, device=self.device)
        for i, (prepared, arrays) in enumerate(some):
            fused.scale(arrays["weak"], self._levels, out[i, 0])
            where, levels = (out[i, 1:], self._levels) if crops is None else (crops[i], None)
            fused.crop(
                arrays["image"], arrays["boxes"], arrays["order"], prepared.spans, prepared.across_first, levels, where
            )
        if mix is not None and crops is not None:
            fused.mix_views(crops.flatten(0, 1), mix.on(self.device), mix.counts, self._mean, self._std, out)

    def _stepwise(self, some: Sequence[tuple[Prepared, dict[str, Tensor]]], mix: Mix | None, out: Tensor) -> None:
        strong = [self._crops(arrays, prepared) for prepared, arrays in some]
        if mix is not None:
            mixed = mix_views(torch.cat(strong), mix.on(self.device), mix.counts, self._centres)
            strong = mixed.split([len(views) for views in strong])
        for (_, arrays), rest, views in zip(some, strong, out, strict=True):
            # Division by a tensor: by a number, a GPU would multiply by its inverse and miss the last bit.
            torch.div(arrays["weak"].permute(2, 0, 1), self._white, out=views[0])
            torch.div(rest, self._white, out=views[1:])
            views.sub_(self._mean).div_(self._std)

    def _crops(self, arrays: dict[str, Tensor], prepared: Prepared) -> Tensor:
        views = crop(
            arrays["image"], arrays["boxes"], prepared.spans, prepared.across_first, self.settings.shape, self._grid
        )
        if prepared.across_first == len(views):
            return views
        return torch.empty_like(views).index_copy_(0, arrays["order"], views)


def render_views_on(
    image: Image.Image | Tensor, plan: ViewPlan, settings: ViewSettings, device: str | torch.device
) -> Tensor:
    """As `render_views`, on `device`; `image` is an RGB image or a uint8 tensor (3, height, width).

    >>> from ._plan import draw_plan
    >>> settings = ViewSettings(n=3, size=32)
    >>> plan = draw_plan((30, 40), settings, seed=0)
    >>> render_views_on(torch.zeros(3, 30, 40, dtype=torch.uint8), plan, settings, "cpu").shape
    torch.Size([3, 3, 32, 32])
    """
    where = torch.device(device)
    if isinstance(image, Tensor):
        if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[0] != 3:
            raise InputError(
                f"render_views_on takes a uint8 tensor (3, height, width), not {image.dtype} of shape "
                f"{tuple(image.shape)}; read_image makes an RGB image of nearly anything."
            )
        image = tensor_to_image(image)
    return renderer_on(settings, where)(prepare(image, plan, settings, pin=where.type == "cuda"))


@functools.lru_cache(maxsize=8)
def renderer_on(settings: ViewSettings, device: torch.device) -> Renderer:
    return Renderer(settings, device)
