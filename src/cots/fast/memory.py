"""GPU memory: this process's share of it, and limits that scale with it."""

import torch

FULL_MEMORY = 24 * 2**30  # bytes of GPU memory that the limits assume
_ROOM = 0.95  # of a process's share; CUDA's own memory per process is not counted in it
_share = 1.0


def limit_memory(share: float) -> None:
    """Limit this process to a share of its current GPU's memory."""
    global _share
    _share = share
    torch.cuda.set_per_process_memory_fraction(_ROOM * share)


def card_bytes(device: torch.device) -> int:
    """Bytes of the GPU `device` that this process may use."""
    return int(_share * torch.cuda.get_device_properties(device).total_memory)


def scale_to_memory(limit: int, device: torch.device) -> int:
    """`limit` on a CPU or large GPU, proportionally less on a GPU with less memory; at least 1."""
    if device.type == "cuda":
        limit = int(limit * min(1.0, card_bytes(device) / FULL_MEMORY))
    return max(1, limit)
