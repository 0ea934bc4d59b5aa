"""The backward pass of a packed causal tower, written out: many gradients of one forward pass at once.

The forward pass at a context is the same for every sample, so what it leaves behind is kept once and every gradient
goes through products with it. torch's own way (vmap over its gradients) takes several of these operations one gradient
after the other, and copies what all share.

Shape letters: C copies of the context, each with the same number of classes behind it; G gradients; the others as in
_packed. Gradients are (C, N, G, W): beside an activation (C, N, W) they make one matrix product without copies of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..backbones._blocks import Blocks, Norm
from ._packed import Packed, Pair
from ._tokens import project, project_back


class Backward:
    """`(cotangent (C,K,G,D)) -> (C,P,G,W)`: from gradients by the text features to gradients by the prefix.

    x: what enters the first block, (C,N,W).
    """

    def __init__(self, tower: Any, blocks: Blocks, packed: Packed, x: Tensor) -> None:
        self.tower, self.packed = tower, packed
        self.blocks = []
        with torch.no_grad():
            for block in blocks.blocks:
                rows = packed.ends if block is blocks.blocks[-1] else slice(None)
                linear, x = _linearise(block, packed, x, rows)
                self.blocks.append(linear)
            self.final = _Norm(x, blocks.final)
            z = project(tower, blocks.final(x, x.dtype))
            self.length = z.norm(dim=-1, keepdim=True)[:, :, None].clamp(min=1e-12)
            self.features = F.normalize(z, dim=-1)[:, :, None]

    def __call__(self, cotangent: Tensor) -> Tensor:
        with torch.no_grad():
            radial = (cotangent * self.features).sum(dim=-1, keepdim=True)
            g = self.final(project_back(self.tower, (cotangent - self.features * radial) / self.length))
            for block in reversed(self.blocks):
                g = block(g)
            return g[:, : self.packed.prefix]


class _Norm:
    """Gradients through a layer norm of x."""

    def __init__(self, x: Tensor, norm: Norm) -> None:
        centred = x - x.mean(dim=-1, keepdim=True)
        scale = (centred.square().mean(dim=-1, keepdim=True) + norm.eps).rsqrt()
        self.direction, self.scale, self.weight = (centred * scale)[:, :, None], scale[:, :, None], norm.weight

    def __call__(self, g: Tensor) -> Tensor:
        g = g * self.weight
        along = (g * self.direction).mean(dim=-1, keepdim=True)
        g -= g.mean(dim=-1, keepdim=True)
        return torch.addcmul(g, self.direction, along, value=-1).mul_(self.scale)


def _linearise(block: Any, packed: Packed, x: Tensor, rows: slice | Tensor) -> tuple[_Block, Tensor]:
    """A pre-norm block at x, whose MLP is read at `rows` alone, and its result there."""
    C, N, _ = x.shape
    norm1 = _Norm(x, block.norm1)
    heads = block.qkv(block.norm1(x, x.dtype)).view(C, N, 3, block.heads, -1)
    attention = _Attention(packed, *heads.unbind(dim=2))
    x = (x + block.out(attention.result))[:, rows]
    norm2 = _Norm(x, block.norm2)
    with torch.enable_grad():
        leaf = block.up(block.norm2(x, x.dtype)).detach().requires_grad_()
        activated = block.gelu(leaf)
        (slope,) = torch.autograd.grad(activated.sum(), leaf)
    x = x + block.down(activated.detach())
    weights = (block.qkv.weight, block.out.weight, block.up.weight, block.down.weight)
    return _Block(norm1, attention, norm2, slope[:, :, None], weights, rows, N), x


@dataclass(frozen=True)
class _Block:
    norm1: _Norm
    attention: _Attention
    norm2: _Norm
    slope: Tensor  # of the activation
    weights: tuple[Tensor, Tensor, Tensor, Tensor]
    rows: slice | Tensor
    tokens: int

    def __call__(self, g: Tensor) -> Tensor:
        qkv, out, up, down = self.weights
        g = g + self.norm2((g @ down).mul_(self.slope) @ up)
        mixed = g @ out
        if g.shape[1] < self.tokens:
            g, mixed = self._spread(g), self._spread(mixed)
        return g.add_(self.norm1(self.attention(mixed) @ qkv))

    def _spread(self, g: Tensor) -> Tensor:
        """Gradients of some rows among those of all, which are zero."""
        whole = g.new_zeros(len(g), self.tokens, *g.shape[2:])
        whole[:, self.rows] = g
        return whole


class _Attention:
    """Gradients through the attention of all tokens (C,N,H,d)."""

    def __init__(self, packed: Packed, q: Tensor, k: Tensor, v: Tensor) -> None:
        self.packed, scale = packed, q.shape[-1] ** -0.5
        # Copies: views would keep the three together, and be copied again at every use.
        self.q, self.k, self.v = (_copies(*packed.split(t)) for t in (q * scale, k, v))
        self.weight = packed.weights(self.q, self.k)
        self.k = (self.k[0] * scale, self.k[1] * scale)  # from here on only gradients of the queries meet the keys

    @property
    def result(self) -> Tensor:
        """(C,N,W)"""
        return self.packed.join(*self.packed.mix(self.weight, self.v))

    def __call__(self, g: Tensor) -> Tensor:
        """(C,N,G,W) -> (C,N,G,3*W), of queries, keys and values"""
        C, N, G, W = g.shape
        P, (K, L) = self.packed.prefix, self.packed.pad_KL.shape
        (q_p, q_o), (k_p, k_o), (v_p, v_o) = self.q, self.k, self.v
        weight_p, weight_o = self.weight
        H, d = q_p.shape[1], q_p.shape[-1]
        g_p, g_o = self.packed.split_gradients(g.view(C, N, G, H, d))  # (C,H,P,G,d), (C,H,K,L,G,d)
        wide = g_o.flatten(4)  # (C,H,K,L,G*d)

        s_p = _through_softmax((g_p.flatten(2, 3) @ v_p.mT).view(C, H, P, G, P), weight_p)
        to_prefix = (g_o.flatten(2, 4) @ v_p.mT).view(C, H, K, L, G, P)
        to_own = (g_o.flatten(3, 4) @ v_o.mT).view(C, H, K, L, G, L)
        s_o = _through_softmax(torch.cat([to_prefix, to_own], dim=-1), weight_o)
        past, own = s_o.split([P, L], dim=-1)

        out = g.new_empty(C, N, G, 3, H, d)
        self.packed.join_gradients(
            out[:, :, :, 0],
            (s_p.flatten(2, 3) @ k_p).view(C, H, P, G, d),
            ((past.flatten(2, 4) @ k_p).view(C, H, K, L * G, d) + own.flatten(3, 4) @ k_o).view(C, H, K, L, G, d),
        )
        keys = s_p.permute(0, 1, 4, 3, 2).flatten(2, 3) @ q_p  # (C,H,P*G,d)
        keys += past.permute(0, 1, 5, 4, 2, 3).flatten(4).flatten(2, 3) @ q_o.flatten(2, 3)
        self.packed.join_gradients(
            out[:, :, :, 1],
            keys.view(C, H, P, G, d),
            (own.permute(0, 1, 2, 5, 4, 3).flatten(3, 4) @ q_o).view(C, H, K, L, G, d),
        )
        values = weight_p.mT @ g_p.flatten(3)  # (C,H,P,G*d)
        values += weight_o[..., :P].flatten(2, 3).mT @ wide.flatten(2, 3)
        self.packed.join_gradients(
            out[:, :, :, 2],
            values.view(C, H, P, G, d),
            (weight_o[..., P:].mT @ wide).view(C, H, K, L, G, d),
        )
        return out.view(C, N, G, 3 * W)


def _copies(prefix: Tensor, own: Tensor) -> Pair:
    return prefix.contiguous(), own.contiguous()


def _through_softmax(g: Tensor, weight: Tensor) -> Tensor:
    """Gradients (...,G,n) by the weights (...,n) -> gradients by the scores."""
    weight = weight.unsqueeze(-2)
    return (g - (g * weight).sum(dim=-1, keepdim=True)).mul_(weight)
