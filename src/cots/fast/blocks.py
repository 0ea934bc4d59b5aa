"""Transformer blocks in half precision: fused kernels do the work between the matrix products on an NVIDIA GPU."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..backbones import Block, Blocks, Norm
from . import kernels


class FusedBlocks(Blocks):
    """Blocks with matrix products in `dtype`; the result has the weights' precision, or float32 if that is half."""

    def __init__(self, blocks: nn.ModuleList, final: nn.LayerNorm, dtype: torch.dtype) -> None:
        super().__init__(blocks, final, dtype)
        self._quick = {block: _quick(block.gelu) for block in self.blocks}

    def mlp(self, block: Block, h: Tensor) -> Tensor:
        quick = self._quick[block]
        if quick is None or not self._fused(h):
            return super().mlp(block, h)
        if kernels.multiplies(h, block.up.weight):
            return block.down(kernels.linear_activate(h, block.up.weight, block.up.bias, quick))
        return block.down(kernels.activate(block.up(h), quick))

    def add_norm(self, x: Tensor, delta: Tensor | None, norm: Norm) -> tuple[Tensor, Tensor]:
        return self._add_norm(x, delta, norm, self.dtype)

    def last_norm(self, x: Tensor, delta: Tensor) -> Tensor:
        precision = torch.float32 if x.dtype in kernels.HALF else x.dtype
        return self._add_norm(x, delta, self.final, precision)[1]

    def _add_norm(self, x: Tensor, delta: Tensor | None, norm: Norm, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if self._fused(x):
            return x, kernels.add_norm(x, delta, norm.weight, norm.bias, norm.eps, dtype)
        x = x if delta is None else x + delta
        return x, norm(x, dtype)

    def _fused(self, tensor: Tensor) -> bool:
        return self.dtype in kernels.HALF and kernels.usable(tensor)


def _quick(gelu: nn.Module) -> bool | None:
    """True for QuickGELU, False for the exact GELU, None for any other activation; by its values."""
    x = torch.linspace(-4, 4, 33)
    values = gelu(x)
    if torch.allclose(values, x * torch.sigmoid(1.702 * x), rtol=0, atol=1e-6):
        return True
    return False if torch.allclose(values, F.gelu(x), rtol=0, atol=1e-6) else None
