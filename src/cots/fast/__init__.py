"""The guest behind `cots.accelerate`: GPU kernels, recorded graphs, half precision and memory budgets."""

import torch

from ..accelerate import LIMITS, Accelerator, Work
from .memory import limit_memory, scale_to_memory

_ON_GPU: dict[Work, int] = {
    "images": 256,
    "photos": 64,
    "tuned tokens": 131072,  # in a ViT-B/16-sized tower each takes about 16 kB
    "gradient tokens": 16384,  # and 0.4 MB with activations for a gradient
}


class Fast(Accelerator):
    """Faster implementations for NVIDIA GPUs, and for CPUs where they pay."""

    def batch_limit(self, what: Work, device: torch.device) -> int:
        limit = LIMITS[what] if device.type == "cpu" else _ON_GPU.get(what, LIMITS[what])
        return scale_to_memory(limit, device)

    def limit_memory(self, share: float) -> None:
        limit_memory(share)
