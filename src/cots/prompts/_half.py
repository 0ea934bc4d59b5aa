"""`Backward` in half precision on a GPU: float16 products and activations, and fused kernels between them.

Gradients are linear in their input, so each is scaled to a maximum of one, which float16 represents well.
Shape letters: as in _backward; here all texts are in one row and a gradient dx is (N,G,W).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import _kernels
from ..backbones._blocks import Norm
from ._packed import Packed

if TYPE_CHECKING:
    from ._towers import CausalText


class HalfBackward:
    """`(dy (C,K,G,D)) -> (C,P,G,W)`, like `Backward`."""

    def __init__(self, text: CausalText, context_CMW: Tensor, suffix: Tensor, packed: Packed) -> None:
        self.copies, self.prefix = len(context_CMW), packed.prefix
        with torch.no_grad():
            x = text.embedded(context_CMW, suffix)
            if self.copies > 1:  # whole texts in one row, each with its own prefix
                packed = Packed(0, packed.lengths_K.new_full((self.copies,), packed.tokens))
            x, self.blocks = x.flatten(0, 1), []
            for exact, half in zip(text.exact.blocks, text.half.blocks, strict=True):
                rows = packed.ends if exact is text.exact.blocks[-1] else slice(None)
                gradients, x = _linearise(exact, half, packed, x, rows)
                self.blocks.append(gradients)
            self.final = _NormGradients.of(x, text.exact.final)
            z = text.project(text.exact.final(x, x.dtype))
            projection = text.tower.text_projection
            weight = projection.weight if isinstance(projection, nn.Linear) else getattr(projection, "mT", None)
            self.W_project = None if weight is None else weight.half()
            self.length = z.norm(dim=-1)[:, None, None].clamp(min=1e-12)
            self.y = z[:, None] / self.length

    @torch.no_grad()
    def __call__(self, dy: Tensor) -> Tensor:
        dy = dy.flatten(0, 1)
        # y = z / |z|:  dz = (dy - y (y . dy)) / |z|
        dz = (dy - self.y * (dy * self.y).sum(dim=-1, keepdim=True)) / self.length
        scale_G1 = dz.abs().amax(dim=(0, 2)).clamp(min=torch.finfo(dz.dtype).tiny)[:, None]
        dx = (dz / scale_G1).half()
        dx = self.final(dx if self.W_project is None else dx @ self.W_project, None)
        for block in reversed(self.blocks):
            dx = block(dx)
        return dx.unflatten(0, (self.copies, -1))[:, : self.prefix].to(dz.dtype) * scale_G1


@dataclass(frozen=True)
class _NormGradients:
    n: Tensor  # (N,W)
    s: Tensor  # (N,)
    weight: Tensor

    @classmethod
    def of(cls, x: Tensor, norm: Norm) -> _NormGradients:
        n, s = norm.standardised(x)
        return cls(n.half(), s[:, 0].contiguous(), norm.weight)

    def __call__(self, dy: Tensor, onto: Tensor | None) -> Tensor:
        return _kernels.norm_gradient(dy, onto, self.n, self.s, self.weight)


def _linearise(
    exact: Any, half: Any, packed: Packed, x: Tensor, rows: slice | Tensor
) -> tuple[_BlockGradients, Tensor]:
    """The gradients of a pre-norm block at x (N,W), whose MLP is evaluated at `rows` only, and its output there."""
    norm1 = _NormGradients.of(x, exact.norm1)
    qkv = exact.qkv(exact.norm1(x, x.dtype)).unflatten(1, (3, exact.heads, -1))
    q, k, v = qkv[None].unbind(dim=2)
    a = (x + exact.out(packed.attend(q, k, v, False)[0]))[rows]
    norm2 = _NormGradients.of(a, exact.norm2)
    y, slope = exact.mlp_with_slope(a)
    weights = (half.qkv.weight, half.out.weight, half.up.weight, half.down.weight)
    return _BlockGradients(norm1, qkv.half(), norm2, slope.half(), weights, rows, packed), y


@dataclass(frozen=True)
class _BlockGradients:
    """See `_backward._BlockGradients`, which has the equations."""

    norm1: _NormGradients
    qkv: Tensor
    norm2: _NormGradients
    slope: Tensor
    weights: tuple[Tensor, Tensor, Tensor, Tensor]
    rows: slice | Tensor
    packed: Packed

    def __call__(self, dy: Tensor) -> Tensor:
        W_qkv, W_out, W_up, W_down = self.weights
        da = self.norm2((dy @ W_down).mul_(self.slope[:, None]) @ W_up, dy)
        mixed = da @ W_out
        if len(da) < len(self.qkv):
            da, mixed = self._scatter(da), self._scatter(mixed)
        packed = self.packed
        through = _kernels.attention_gradient(mixed, self.qkv, packed.tiles, packed.first_N, packed.prefix)
        return self.norm1(through @ W_qkv, da)

    def _scatter(self, g: Tensor) -> Tensor:
        """Gradients at `rows` -> gradients at all tokens, zero elsewhere."""
        whole = g.new_zeros(len(self.qkv), *g.shape[1:])
        whole[self.rows] = g
        return whole
