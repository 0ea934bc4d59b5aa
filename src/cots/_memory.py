"""How much of a GPU's memory this process may take: all of it, unless several share the card."""

from __future__ import annotations

import torch

_ROOM = 0.95  # of a share; what CUDA itself takes in every process is not counted with it
_share = 1.0
FULL_MEMORY = 24 * 2**30  # bytes of a card that can hold what the limits of the other modules allow


def take_share(share: float) -> None:
    """From now on this process takes no more than this share of its current GPU."""
    global _share
    _share = share
    torch.cuda.set_per_process_memory_fraction(_ROOM * share)


def card_bytes(device: torch.device) -> int:
    """Bytes of the GPU `device` that this process may reckon with."""
    return int(_share * torch.cuda.get_device_properties(device).total_memory)


def scale_to_memory(limit: int, device: torch.device) -> int:
    """`limit` on a CPU or a large GPU, proportionally less on a GPU with less memory; at least 1."""
    if device.type == "cuda":
        limit = int(limit * min(1.0, card_bytes(device) / FULL_MEMORY))
    return max(1, limit)
