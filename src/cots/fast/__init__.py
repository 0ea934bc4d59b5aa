"""The guest behind `cots.accelerate`: GPU kernels, recorded graphs, half precision and memory budgets."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..accelerate import LIMITS, Accelerator, Function
from .graphs import compiled
from .kernels import available
from .memory import limit_memory, scale_to_memory

if TYPE_CHECKING:
    from ..backbones import Backbone, ImageEncoder
    from ..calibrators import Fit, Objective
    from ..prompts import TextTower
    from ..views import ViewSettings
    from .views import GpuRenderer

_ON_GPU: dict[str, int] = {
    "images": 256,
    "photos": 64,
    "tuned tokens": 131072,  # in a ViT-B/16-sized tower each takes about 16 kB
    "gradient tokens": 16384,  # and 0.4 MB with activations for a gradient
}


class Fast(Accelerator):
    """Faster implementations for NVIDIA GPUs, and for CPUs where they pay."""

    def image_encoder(self, backbone: "Backbone") -> "ImageEncoder | None":
        if "_fast_images" not in vars(backbone):
            from .image_encoder import image_encoder

            vars(backbone)["_fast_images"] = image_encoder(backbone)
        return vars(backbone)["_fast_images"]

    def text_tower(self, plain: "type[TextTower]") -> "type[TextTower]":
        from ..prompts import CausalText
        from .text_tower import FastText

        return FastText if plain is CausalText else plain

    def renderer(self, settings: "ViewSettings", device: torch.device) -> "GpuRenderer | None":
        # The driver of a cluster asks for the GPUs of its workers, without using one itself.
        if device.type != "cuda" or (torch.cuda.is_initialized() and not available(device)):
            return None
        from .views import GpuRenderer

        return GpuRenderer(settings, device)

    def fit_tau(
        self, objective: "Objective", fit: "Fit", plain: "Callable[[Objective, Fit], torch.Tensor]"
    ) -> torch.Tensor:
        from .temperature import fit_tau

        return fit_tau(objective, fit, plain)

    def searches(self, loss: str, device: torch.device) -> bool:
        return loss == "l2" and available(device)

    def search_tau(
        self,
        adapted: torch.Tensor,
        zero_shot: torch.Tensor,
        fit: "Fit",
        adam: torch.Tensor,
        plain: "Callable[[torch.Tensor, torch.Tensor, Fit, torch.Tensor], torch.Tensor]",
    ) -> torch.Tensor:
        from .temperature import search_tau

        return search_tau(adapted, zero_shot, fit, adam, plain)

    def compiled(self, function: Function, owner: Any = None) -> Function:
        return compiled(function, owner)

    def batch_limit(self, what: str, device: torch.device) -> int:
        limit = LIMITS[what] if device.type == "cpu" else _ON_GPU.get(what, LIMITS[what])
        return scale_to_memory(limit, device)

    def limit_memory(self, share: float) -> None:
        limit_memory(share)
