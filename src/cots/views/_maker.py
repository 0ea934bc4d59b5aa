"""ViewMaker: the one path from an image to its views, on the host with PIL or on a GPU with Triton kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from ._device import Renderer, choose_renderer, renderer_on
from ._plan import draw_plan
from ._prepare import MAX_SENT_PIXELS, Prepared, prepare
from ._settings import ViewSettings
from ._views import render_views


@dataclass(frozen=True)
class ViewMaker:
    """Makes the views of images in two halves: `prepare` on the host, `render` for a batch on the device.

    renderer: "pil" (host), "gpu" (Triton kernels on `device`), or "auto", which takes the GPU where there is one. The
    two renderers differ by at most 1/255. A ViewMaker is picklable, and `prepare` runs in any thread or process.

    >>> maker = ViewMaker(ViewSettings(n=3, size=32), torch.device("cpu"))
    >>> maker.renderer
    'pil'
    >>> maker.render([maker.prepare(Image.new("RGB", (40, 30)), seed) for seed in (0, 1)]).shape
    torch.Size([2, 3, 3, 32, 32])
    """

    settings: ViewSettings
    device: torch.device
    renderer: str = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "renderer", choose_renderer(self.renderer, self.device))

    def prepare(self, image: Image.Image, seed: int) -> Prepared | Tensor:
        """The host half, for an RGB image from `read_image`: its views (V,3,H,W), or what the GPU renders them from."""
        plan = draw_plan((image.height, image.width), self.settings, seed)
        if self.renderer == "pil":
            return render_views(image, plan, self.settings)
        # Worker processes have no CUDA context and must not create one, not even for pinned memory.
        return prepare(image, plan, self.settings, pin=self.device.type == "cuda" and torch.cuda.is_initialized())

    def render(self, prepared: Sequence[Prepared | Tensor]) -> Tensor:
        """The device half: views (B,V,3,H,W) of one or more prepared images, without waiting for the device."""
        ready = [views for views in prepared if isinstance(views, Tensor)]
        if len(ready) == len(prepared):
            return torch.stack(ready)
        return torch.stack(self._renderer.many([item for item in prepared if isinstance(item, Prepared)]))

    @property
    def prepared_bytes(self) -> int:
        """Upper bound of the bytes of one prepared image."""
        height, width = self.settings.shape
        views = 4 * 3 * height * width * self.settings.n
        return views if self.renderer == "pil" else max(views, 3 * MAX_SENT_PIXELS)

    @property
    def _renderer(self) -> Renderer:
        return renderer_on(self.settings, self.device)
