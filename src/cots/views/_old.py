"""Names that callers still use."""

from __future__ import annotations

import torch
from torch import Tensor

from ._gpu import GpuRenderer
from ._pil import render_views
from ._prepare import prepare

MAX_SENT_PIXELS = 2**24


class Renderer(GpuRenderer):
    def __call__(self, prepared) -> Tensor:
        return self.render([prepared])[0]

    def many(self, some) -> list[Tensor]:
        return list(self.render(some))


def render_views_on(image, plan, settings, device) -> Tensor:
    where = torch.device(device)
    return Renderer(settings, where)(prepare(image, plan, settings, pin=where.type == "cuda"))


__all__ = ["MAX_SENT_PIXELS", "Renderer", "prepare", "render_views", "render_views_on"]
