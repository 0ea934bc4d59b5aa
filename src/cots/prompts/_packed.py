"""Texts with a shared prefix, packed into one row without padding: layout, attention and its gradients.

Shape letters: B samples, P prefix tokens, S packed suffix tokens of all classes, N = P + S, K classes, L longest
suffix, G gradients, H heads, d width of a head, W = H*d.
"""

from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from ..fast import kernels

Pair = tuple[Tensor, ...]  # one tensor for the prefix, one for the classes
HEADS = (16, 32, 64, 128)  # head widths that the kernels support
_TILE = 64  # tokens per tile of whole texts


class Packed:
    """Where each class's suffix lies in the packed row, and causal attention that keeps classes apart."""

    def __init__(self, prefix: int, lengths_K: Tensor) -> None:
        device = lengths_K.device
        self.prefix, self.lengths_K = prefix, lengths_K
        self.tokens = prefix + int(lengths_K.sum())
        longest = int(lengths_K.max())
        place_L = torch.arange(longest, device=device)
        self.keep_KL = place_L < lengths_K[:, None]
        first_K = F.pad(lengths_K.cumsum(0), (1, 0))[:-1]
        last_K = first_K + lengths_K - 1
        # Packed row -> padded cell and back. Cells after the end of a suffix repeat its last token and are never read.
        self.pad_KL = torch.minimum(first_K[:, None] + place_L, last_K[:, None])
        self.cells = prefix + self.pad_KL.numel()
        self._unpad_2S = self.keep_KL.nonzero().unbind(dim=1)
        self._dense = bool(self.keep_KL.all())
        self._absent_KL = torch.zeros(self.keep_KL.shape, device=device).masked_fill(~self.keep_KL, float("-inf"))
        self._later_LL = torch.full((longest, longest), float("-inf"), device=device).triu(1)
        self._later_PP = torch.full((prefix, prefix), float("-inf"), device=device).triu(1)
        # A slice has a cheaper gradient than an index.
        self.ends: slice | Tensor = slice(prefix + longest - 1, None) if len(lengths_K) == 1 else prefix + last_K
        own_S = (prefix + first_K).repeat_interleave(lengths_K)
        self._row_N = torch.arange(self.tokens, device=device, dtype=torch.int32)
        self.first_N = torch.cat([own_S.new_full((prefix,), prefix), own_S]).int()
        self._row_K, self._first_K = (prefix + last_K).int(), (prefix + first_K).int()

    @cached_property
    def tiles(self) -> Tensor:
        """Tokens of whole texts, prefix first, in tiles of equal size padded with -1; int32."""
        lengths = [self.prefix, *self.lengths_K.tolist()]
        size = max(_TILE, kernels.power_of_two(max(lengths)))
        place_N, filled = [], 0
        for length in lengths:
            if filled % size + length > size:
                filled += -filled % size
            place_N += range(filled, filled + length)
            filled += length
        tiles = torch.full((-(-filled // size), size), -1, dtype=torch.int32, device=self.first_N.device)
        tiles.view(-1)[torch.tensor(place_N, device=tiles.device)] = self._row_N
        return tiles

    def attend(self, q: Tensor, k: Tensor, v: Tensor, at_ends: bool) -> Tensor:
        """Attention of all tokens (B,N,H,d), or of the last token of each class (B,K,H,d) -> (B,N or K,W)"""
        if q.dtype in kernels.HALF and kernels.usable(q) and q.shape[-1] in HEADS:
            rows = (self._row_K, self._first_K) if at_ends else (self._row_N, self.first_N)
            return kernels.prefix_attention(q, k, v, *rows, self.prefix)
        q = q * q.shape[-1] ** -0.5
        if at_ends:
            return self._at_ends(q, k, v)
        weights = self.weights(self.split(q), self.split(k))
        return self.join(*self.mix(weights, self.split(v)))

    def split(self, t: Tensor) -> Pair:
        """(B,N,H,d) -> the prefix (B,H,P,d) and, padded, the classes (B,H,K,L,d)"""
        own = t[:, self.prefix :]
        own = own.unflatten(1, self.pad_KL.shape) if self._dense else own[:, self.pad_KL]
        return t[:, : self.prefix].transpose(1, 2), own.permute(0, 3, 1, 2, 4)

    def weights(self, q: Pair, k: Pair) -> Pair:
        """Attention weights of the prefix (B,H,P,P) and of the classes (B,H,K,L,P+L), from scaled queries."""
        (prefix_q, own_q), (prefix_k, own_k) = q, k
        prefix = (prefix_q @ prefix_k.mT + self._later_PP.to(prefix_q.dtype)).softmax(dim=-1)
        B, H, K, L, _ = own_q.shape
        to_prefix = own_q.flatten(2, 3) @ prefix_k.mT  # (B,H,K*L,P): one product with the shared keys
        to_own = own_q @ own_k.mT + self._later_LL.to(own_q.dtype)
        return prefix, torch.cat([to_prefix.view(B, H, K, L, self.prefix), to_own], dim=-1).softmax(dim=-1)

    def mix(self, weights: Pair, v: Pair) -> Pair:
        """The weighted sums of the values, in the form of `split`."""
        (prefix, own), (prefix_v, own_v) = weights, v
        from_prefix = own[..., : self.prefix].flatten(2, 3) @ prefix_v
        return prefix @ prefix_v, from_prefix.view_as(own_v) + own[..., self.prefix :] @ own_v

    def join(self, prefix: Tensor, own: Tensor) -> Tensor:
        """The inverse of `split`, heads side by side: (B,N,W)"""
        own = own.permute(0, 2, 3, 1, 4)
        own = own.flatten(1, 2) if self._dense else own[:, *self._unpad_2S]
        return torch.cat([prefix.transpose(1, 2), own], dim=1).flatten(2)

    def split_gradients(self, g: Tensor) -> Pair:
        """(B,N,G,H,d) -> (B,H,P,G,d) and (B,H,K,L,G,d), zero in cells without a token"""
        prefix, own = g.permute(0, 3, 1, 2, 4).split([self.prefix, g.shape[1] - self.prefix], dim=2)
        if self._dense:
            return prefix, own.unflatten(2, self.pad_KL.shape)
        return prefix, own[:, :, self.pad_KL].mul_(self.keep_KL[..., None, None])

    def join_gradients(self, out: Tensor, prefix: Tensor, own: Tensor) -> None:
        """The inverse of `split_gradients`, into `out` (B,N,G,H,d)."""
        out[:, : self.prefix] = prefix.permute(0, 2, 3, 1, 4)
        own = own.permute(0, 2, 3, 4, 1, 5)
        out[:, self.prefix :] = own.flatten(1, 2) if self._dense else own[:, *self._unpad_2S]

    def _at_ends(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = q.transpose(1, 2)  # (B,H,K,d)
        (prefix_k, own_k), (prefix_v, own_v) = self.split(k), self.split(v)
        to_own = (own_k @ q[..., None])[..., 0] + self._absent_KL.to(q.dtype)  # (B,H,K,L)
        score = torch.cat([q @ prefix_k.mT, to_own], dim=-1).softmax(dim=-1)
        out = score[..., : self.prefix] @ prefix_v + (score[..., None, self.prefix :] @ own_v)[..., 0, :]
        return out.transpose(1, 2).flatten(2)


class AttentionGradients:
    """Gradients through the attention of all tokens at one q, k and v (B,N,H,d).

    Forward, for query token i:  S_ij = q_i . k_j / sqrt(d),  A_i = softmax(S_i),  O_i = sum_j A_ij v_j.
    With prefix tokens (p) and a class's own tokens (o): prefix queries use S_pp, own queries S_op and S_oo.
    """

    def __init__(self, packed: Packed, q: Tensor, k: Tensor, v: Tensor) -> None:
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
