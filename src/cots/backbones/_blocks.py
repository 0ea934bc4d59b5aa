"""The forward pass of open_clip's pre-norm transformer blocks and vision transformer, in a chosen precision.

A tower's output is one row per image (the class token) or per text (the end token), so the last block computes queries
and MLP for these rows only. In half precision, norms and residual stream keep the precision of the weights. On an
NVIDIA GPU, fused kernels do the work between the matrix products.

Shape letters: B sequences, N tokens, R output rows, W width, H heads.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fast import kernels
from ._mini import TextBlock

# (q (B,R,H,d), k (B,N,H,d), v (B,N,H,d), whether q has only the output rows) -> (B,R,W)
Attention = Callable[[Tensor, Tensor, Tensor, bool], Tensor]


@dataclass(frozen=True)
class Norm:
    """A layer norm in the precision of its weights."""

    weight: Tensor
    bias: Tensor
    eps: float

    @classmethod
    def of(cls, module: nn.LayerNorm) -> Self:
        return cls(module.weight, module.bias, module.eps)

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps).to(dtype)

    def standardised(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """n = s (x - mean x) and s = 1 / sqrt(var x + eps), (..., 1); the norm of x is w n + b."""
        centred = x - x.mean(dim=-1, keepdim=True)
        s = (centred.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt()
        return centred * s, s


class Linear:
    """A linear map in the precision of the matrix products, with a layer scale folded in."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, scale: nn.Module | None = None) -> None:
        if isinstance(gamma := getattr(scale, "gamma", None), Tensor):
            weight, bias = weight * gamma[:, None], None if bias is None else bias * gamma
        self.weight = weight.to(dtype)
        self.bias = None if bias is None else bias.to(dtype)

    def __call__(self, x: Tensor, rows: slice = slice(None)) -> Tensor:
        return F.linear(x, self.weight[rows], None if self.bias is None else self.bias[rows])


class _Block:
    def __init__(self, block: Any, dtype: torch.dtype) -> None:
        attention, mlp = block.attn, block.mlp
        self.norm1, self.norm2 = Norm.of(block.ln_1), Norm.of(block.ln_2)
        self.qkv = Linear(attention.in_proj_weight, attention.in_proj_bias, dtype)
        self.out = Linear(attention.out_proj.weight, attention.out_proj.bias, dtype, block.ls_1)
        self.up = Linear(mlp.c_fc.weight, mlp.c_fc.bias, dtype)
        self.down = Linear(mlp.c_proj.weight, mlp.c_proj.bias, dtype, block.ls_2)
        self.gelu: nn.Module = mlp.gelu
        self.heads: int = attention.num_heads

    def mlp_with_slope(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """a + down(gelu(u)) and gelu'(u), where u = up(norm2(a))."""
        with torch.enable_grad():
            u = self.up(self.norm2(a, a.dtype)).detach().requires_grad_()
            activated = self.gelu(u)
            (slope,) = torch.autograd.grad(activated.sum(), u)
        return a + self.down(activated.detach()), slope


class Blocks:
    """The blocks of a tower and its final norm, with matrix products in `dtype`."""

    def __init__(self, blocks: nn.ModuleList, final: nn.LayerNorm, dtype: torch.dtype) -> None:
        self.blocks = [_Block(block, dtype) for block in blocks]
        self.final = Norm.of(final)
        self.dtype = dtype

    @staticmethod
    def supports(blocks: Any) -> bool:
        """Whether these are plain pre-norm blocks with self-attention."""
        plain = (TextBlock, _open_clip_class("ResidualAttentionBlock"))
        return (
            isinstance(blocks, nn.ModuleList)
            and len(blocks) > 0
            and all(type(block) in plain and not hasattr(block, "ln_1_kv") for block in blocks)
        )

    def run(self, x: Tensor, attend: Attention, rows: slice | Tensor) -> Tensor:
        """Residual stream x (B,N,W) -> final norm of its `rows` after the last block (B,R,W); may overwrite x.

        The result has x's precision, or float32 if that is half.
        """
        x, h = self._add_norm(x, None, self.blocks[0].norm1)
        for block, following in zip(self.blocks, self.blocks[1:], strict=False):
            q, k, v = self._heads(block.qkv(h), block.heads, 3)
            x, h = self._add_norm(x, block.out(attend(q, k, v, False)), block.norm2)
            x, h = self._add_norm(x, self._mlp(block, h), following.norm1)
        last, W = self.blocks[-1], x.shape[-1]
        k, v = self._heads(last.qkv(h, slice(W, None)), last.heads, 2)
        (q,) = self._heads(last.qkv(h[:, rows], slice(W)), last.heads, 1)
        x = x[:, rows].contiguous()
        x, h = self._add_norm(x, last.out(attend(q, k, v, True)), last.norm2)
        precision = torch.float32 if x.dtype in kernels.HALF else x.dtype
        return self._add_norm(x, self._mlp(last, h), self.final, precision)[1]

    def _mlp(self, block: _Block, h: Tensor) -> Tensor:
        u = block.up(h)
        if self._fused(u) and (quick := _quick(block.gelu)) is not None:
            return block.down(kernels.activate(u, quick))
        return block.down(block.gelu(u))

    def _add_norm(
        self, x: Tensor, delta: Tensor | None, norm: Norm, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor]:
        """x + delta, and its norm."""
        dtype = dtype or self.dtype
        if self._fused(x):
            return x, kernels.add_norm(x, delta, norm.weight, norm.bias, norm.eps, dtype)
        x = x if delta is None else x + delta
        return x, norm(x, dtype)

    def _fused(self, tensor: Tensor) -> bool:
        return self.dtype in kernels.HALF and kernels.usable(tensor)

    @staticmethod
    def _heads(packed: Tensor, heads: int, parts: int) -> tuple[Tensor, ...]:
        """(B,N,parts*W) -> `parts` tensors (B,N,H,W/H)"""
        B, N, width = packed.shape
        return packed.view(B, N, parts, heads, width // parts // heads).unbind(dim=2)


def _open_clip_class(name: str) -> Any:
    """A class of open_clip.transformer; None if open_clip was never imported, so nothing uses it."""
    return getattr(sys.modules.get("open_clip.transformer"), name, None)


def _quick(gelu: nn.Module) -> bool | None:
    """True for QuickGELU, False for the exact GELU, None for any other activation."""
    if type(gelu) is _open_clip_class("QuickGELU"):
        return True
    return False if isinstance(gelu, nn.GELU) and gelu.approximate == "none" else None


class ImageTower:
    """`features(pixels (B,3,H,W)) -> (B,D)`: the tower's own forward with less overhead.

    One copy cuts the patches, one matrix product embeds them, and the last block computes only the class token.
    """

    def __init__(self, tower: Any, dtype: torch.dtype) -> None:
        self.tower, self.dtype = tower, dtype
        self.embed = Linear(tower.conv1.weight.flatten(1), None, dtype)
        self.table = tower.positional_embedding.clone()
        self.table[0] += tower.class_embedding
        self.blocks = Blocks(tower.transformer.resblocks, tower.ln_post, dtype)

    @staticmethod
    def supports(tower: Any) -> bool:
        """Whether this class reproduces the tower's own forward."""
        return (
            type(tower) is _open_clip_class("VisionTransformer")
            and tower.attn_pool is None
            and tower.pool_type == "tok"
            and not tower.output_tokens
            and isinstance(tower.ln_post, nn.LayerNorm)
            and Blocks.supports(getattr(tower.transformer, "resblocks", None))
        )

    def features(self, pixels: Tensor) -> Tensor:
        """Image features, not normalised, in the precision of the weights."""
        x = self.blocks.run(self._embedded(pixels), _attention, slice(0, 1))[:, 0]
        return x if self.tower.proj is None else x @ self.tower.proj

    def _embedded(self, pixels: Tensor) -> Tensor:
        """The residual stream before the first block, (B,1+patches,W)."""
        tower = self.tower
        B, _, height, width = pixels.shape
        p, q = tower.patch_size
        grid = pixels[:, :, : height // p * p, : width // q * q].unflatten(3, (-1, q)).unflatten(2, (-1, p))
        # A row of zeros for the class token, so the product writes the whole stream.
        patches = torch.empty(B, 1 + grid.shape[2] * grid.shape[4], 3 * p * q, dtype=self.dtype, device=pixels.device)
        patches[:, 0].zero_()
        rows = patches[:, 1:].unflatten(2, (3, p, q)).unflatten(1, (height // p, width // q))
        rows.copy_(grid.permute(0, 2, 4, 1, 3, 5))
        tokens = self.embed(patches)
        if self.dtype in kernels.HALF and kernels.usable(tokens) and isinstance(tower.ln_pre, nn.LayerNorm):
            # float16 halves the time to read and write the stream.
            norm = tower.ln_pre
            return kernels.embed_norm(tokens, self.table, norm.weight, norm.bias, norm.eps, torch.float16)
        return tower.ln_pre(tokens + self.table)


def _attention(q: Tensor, k: Tensor, v: Tensor, at_rows: bool) -> Tensor:
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return out.transpose(1, 2).flatten(2)
