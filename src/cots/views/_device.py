"""Rendering the views of an image on a device: the plan is the CPU's, the pixels agree to one level of 255."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from .._errors import InputError, unknown_name
from ._crops import crop
from ._mixing import mix_views
from ._pixels import tensor_to_image
from ._plan import ViewPlan
from ._prepare import Mix, Prepared, prepare
from ._settings import ViewSettings

RENDERERS = ("auto", "pil", "torch")


def choose_renderer(name: str, device: torch.device) -> str:
    """ "pil" or "torch": by default the latter where `device` is a GPU.

    >>> choose_renderer("auto", torch.device("cpu"))
    'pil'
    """
    if name not in RENDERERS:
        raise unknown_name("renderer", name, RENDERERS)
    if name == "auto":
        return "torch" if device.type == "cuda" else "pil"
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

    def __call__(self, prepared: Prepared) -> Tensor:
        """The views of one image."""
        return self.many([prepared])[0]

    @torch.no_grad()
    def many(self, some: Sequence[Prepared]) -> list[Tensor]:
        """The views of several images, with AugMix for all at once: its many small steps would keep the host busy."""
        found: list[Tensor | None] = []
        weak, strong, mixes, places = [], [], [], []
        for prepared in some:
            arrays = prepared.on(self.device)
            found.append(arrays.get("views"))
            if found[-1] is None:
                places.append(len(found) - 1)
                weak.append(arrays["weak"])
                strong.append(self._crops(arrays, prepared))
                mixes.append(prepared.mix)
        if mixes and mixes[0] is not None:
            mix = Mix.merge(mixes) if len(mixes) > 1 else mixes[0]
            mixed = mix_views(torch.cat(strong), mix.on(self.device), mix.counts, self._centres)
            strong = mixed.split([len(views) for views in strong])
        for place, one, rest in zip(places, weak, strong, strict=True):
            out = torch.empty(1 + len(rest), *rest.shape[1:], device=self.device)
            # Division by a tensor: by a number, a GPU would multiply by its inverse and miss the last bit.
            torch.div(one.permute(2, 0, 1), self._white, out=out[0])
            torch.div(rest, self._white, out=out[1:])
            found[place] = out.sub_(self._mean).div_(self._std)
        return found  # type: ignore[return-value]

    def _crops(self, arrays: dict[str, Tensor], prepared: Prepared) -> Tensor:
        views = crop(
            arrays["image"], arrays["boxes"], prepared.spans, prepared.across_first, self.settings.shape, self._grid
        )
        return views.index_select(0, arrays["places"]) if prepared.across_first < len(views) else views


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
    return _renderer(settings, where)(prepare(image, plan, settings, pin=where.type == "cuda"))


@functools.lru_cache(maxsize=8)
def _renderer(settings: ViewSettings, device: torch.device) -> Renderer:
    return Renderer(settings, device)
