"""Transformer blocks in half precision: fused kernels do the work between the matrix products on an NVIDIA GPU."""

import torch
from torch import Tensor, nn

from ..backbones import Block, Blocks, Norm, open_clip_class
from . import kernels


class FusedBlocks(Blocks):
    """Blocks with matrix products in `dtype`; the result has the weights' precision, or float32 if that is half."""

    def mlp(self, block: Block, h: Tensor) -> Tensor:
        u = block.up(h)
        if self._fused(u) and (quick := _quick(block.gelu)) is not None:
            return block.down(kernels.activate(u, quick))
        return block.down(block.gelu(u))

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
    """True for QuickGELU, False for the exact GELU, None for any other activation."""
    if type(gelu) is open_clip_class("QuickGELU"):
        return True
    return False if isinstance(gelu, nn.GELU) and gelu.approximate == "none" else None
