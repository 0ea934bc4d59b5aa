"""The attention of packed texts with fused kernels, and its gradients.

Shape letters as in `Packed`; G gradients.
"""

from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from ..prompts import Packed, Pair
from . import kernels

HEADS = (16, 32, 64, 128)  # head widths that the kernels support
_TILE = 64  # tokens per tile of whole texts


class FusedPacked(Packed):
    """Packed texts whose attention in half precision is one kernel."""

    def __init__(self, prefix: int, lengths_K: Tensor) -> None:
        super().__init__(prefix, lengths_K)
        first_K = F.pad(lengths_K.cumsum(0), (1, 0))[:-1]
        last_K = first_K + lengths_K - 1
        own_S = (prefix + first_K).repeat_interleave(lengths_K)
        self.row_N = torch.arange(self.tokens, device=lengths_K.device, dtype=torch.int32)
        self.first_N = torch.cat([own_S.new_full((prefix,), prefix), own_S]).int()
        self.row_K, self.first_K = (prefix + last_K).int(), (prefix + first_K).int()

    def attend(self, q: Tensor, k: Tensor, v: Tensor, at_ends: bool) -> Tensor:
        if q.dtype in kernels.HALF and kernels.usable(q) and q.shape[-1] in HEADS:
            rows = (self.row_K, self.first_K) if at_ends else (self.row_N, self.first_N)
            return kernels.prefix_attention(q, k, v, *rows, self.prefix)
        return super().attend(q, k, v, at_ends)

    @cached_property
    def tiles(self) -> Tensor:
        """Tokens of whole texts, prefix first, in tiles of equal size padded with -1; int32."""
        lengths = [self.prefix, *self.lengths_K.tolist()]
        size = max(_TILE, kernels.power_of_two(max(lengths)))
        slots, filled = [], 0
        for length in lengths:
            if filled % size + length > size:
                filled += -filled % size
            slots += range(filled, filled + length)
            filled += length
        tiles = torch.full((-(-filled // size), size), -1, dtype=torch.int32, device=self.first_N.device)
        tiles.view(-1)[torch.tensor(slots, device=tiles.device)] = self.row_N
        return tiles

    def split_gradients(self, g: Tensor) -> Pair:
        """(B,N,G,H,d) -> (B,H,P,G,d) and (B,H,K,L,G,d), zero in cells without a token"""
        prefix, own = g.permute(0, 3, 1, 2, 4).split([self.prefix, g.shape[1] - self.prefix], dim=2)
        if self.dense:
            return prefix, own.unflatten(2, self.pad_KL.shape)
        return prefix, own[:, :, self.pad_KL].mul_(self.keep_KL[..., None, None])

    def join_gradients(self, out: Tensor, prefix: Tensor, own: Tensor) -> None:
        """The inverse of `split_gradients`, into `out` (B,N,G,H,d)."""
        out[:, : self.prefix] = prefix.permute(0, 2, 3, 1, 4)
        own = own.permute(0, 2, 3, 4, 1, 5)
        out[:, self.prefix :] = own.flatten(1, 2) if self.dense else own[:, *self.unpad_2S]


class AttentionGradients:
    """Gradients through the attention of all tokens at one q, k and v (B,N,H,d).

    Forward, for query token i:  S_ij = q_i . k_j / sqrt(d),  A_i = softmax(S_i),  O_i = sum_j A_ij v_j.
    With prefix tokens (p) and a class's own tokens (o): prefix queries use S_pp, own queries S_op and S_oo.
    """

    def __init__(self, packed: FusedPacked, q: Tensor, k: Tensor, v: Tensor) -> None:
        self.packed, scale = packed, q.shape[-1] ** -0.5
        # Contiguous, because views would keep q, k and v alive together and be copied at every use.
        self.q, self.k, self.v = (tuple(x.contiguous() for x in packed.split(t)) for t in (q * scale, k, v))
        self.A = packed.weights(self.q, self.k)
        self.k = tuple(x * scale for x in self.k)  # from here on, keys only multiply dS, which needs the scale

    def output(self) -> Tensor:
        """O, (B,N,W)"""
        return self.packed.join(*self.packed.mix(self.A, self.v))

    def __call__(self, g: Tensor) -> Tensor:
        """dO (B,N,G,W) -> dQ, dK and dV side by side, (B,N,G,3*W)"""
        B, N, G, W = g.shape
        P, (K, L) = self.packed.prefix, self.packed.pad_KL.shape
        (q_p, q_o), (k_p, k_o), (v_p, v_o), (A_p, A_o) = self.q, self.k, self.v, self.A
        H, d = q_p.shape[1], q_p.shape[-1]
        dO_p, dO_o = self.packed.split_gradients(g.view(B, N, G, H, d))  # (B,H,P,G,d), (B,H,K,L,G,d)
        out = g.new_empty(B, N, G, 3, H, d)

        # dA_ij = dO_i . v_j,  dS_ij = A_ij (dA_ij - sum_k A_ik dA_ik)
        dS_pp = _through_softmax((dO_p.flatten(2, 3) @ v_p.mT).view(B, H, P, G, P), A_p)
        dA_op = (dO_o.flatten(2, 4) @ v_p.mT).view(B, H, K, L, G, P)
        dA_oo = (dO_o.flatten(3, 4) @ v_o.mT).view(B, H, K, L, G, L)
        dS_op, dS_oo = _through_softmax(torch.cat([dA_op, dA_oo], dim=-1), A_o).split([P, L], dim=-1)

        # dq_i = sum_j dS_ij k_j / sqrt(d)
        dq_p = (dS_pp.flatten(2, 3) @ k_p).view(B, H, P, G, d)
        dq_o = (dS_op.flatten(2, 4) @ k_p).view(B, H, K, L * G, d) + dS_oo.flatten(3, 4) @ k_o
        self.packed.join_gradients(out[:, :, :, 0], dq_p, dq_o.view(B, H, K, L, G, d))

        # dk_j = sum_i dS_ij q_i / sqrt(d); the prefix sums over its own queries and those of all classes
        dk_p = dS_pp.permute(0, 1, 4, 3, 2).flatten(2, 3) @ q_p  # (B,H,P*G,d)
        dk_p += dS_op.permute(0, 1, 5, 4, 2, 3).flatten(4).flatten(2, 3) @ q_o.flatten(2, 3)
        dk_o = dS_oo.permute(0, 1, 2, 5, 4, 3).flatten(3, 4) @ q_o
        self.packed.join_gradients(out[:, :, :, 1], dk_p.view(B, H, P, G, d), dk_o.view(B, H, K, L, G, d))

        # dv_j = sum_i A_ij dO_i
        wide_o = dO_o.flatten(4)  # (B,H,K,L,G*d)
        dv_p = A_p.mT @ dO_p.flatten(3)  # (B,H,P,G*d)
        dv_p += A_o[..., :P].flatten(2, 3).mT @ wide_o.flatten(2, 3)
        dv_o = A_o[..., P:].mT @ wide_o
        self.packed.join_gradients(out[:, :, :, 2], dv_p.view(B, H, P, G, d), dv_o.view(B, H, K, L, G, d))
        return out.view(B, N, G, 3 * W)


def _through_softmax(dA: Tensor, A: Tensor) -> Tensor:
    """Gradients (...,G,n) with respect to the weights A (...,n) -> gradients with respect to the scores."""
    A = A.unsqueeze(-2)
    return (dA - (dA * A).sum(dim=-1, keepdim=True)).mul_(A)
