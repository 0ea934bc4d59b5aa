"""Texts that share a prefix, packed behind it into one row without padding, and attention among them.

Shape letters: B samples, P prefix tokens, S packed suffix tokens of all classes, N = P + S, K classes, L longest
suffix, H heads, d width of a head, W = H*d.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import _kernels
from ..backbones._blocks import softmax


class Packed:
    """Where each class's suffix lies in the packed row, and causal attention that keeps classes apart."""

    def __init__(self, prefix: int, lengths_K: Tensor) -> None:
        device = lengths_K.device
        self.prefix, self.lengths_K = prefix, lengths_K
        longest = int(lengths_K.max())
        place_L = torch.arange(longest, device=device)
        keep_KL = place_L < lengths_K[:, None]
        self.first_K = F.pad(lengths_K.cumsum(0), (1, 0))[:-1]
        last_K = self.first_K + lengths_K - 1
        # Packed row -> padded cell and back. Cells after the end of a suffix repeat its last token: never read.
        self._pad_KL = torch.minimum(self.first_K[:, None] + place_L, last_K[:, None])
        self._unpad_S = keep_KL.flatten().nonzero().flatten()
        self._dense = bool(keep_KL.all())
        # Masks are added: the gradient of a sum can be taken for many cotangents at once, that of masked_fill cannot.
        self._absent_KL = torch.zeros(keep_KL.shape, device=device).masked_fill(~keep_KL, float("-inf"))
        self._later_LL = torch.full((longest, longest), float("-inf"), device=device).triu(1)
        self._later_PP = torch.full((prefix, prefix), float("-inf"), device=device).triu(1)
        # A slice has a cheaper gradient than an index.
        self.ends: slice | Tensor = slice(prefix + longest - 1, None) if len(lengths_K) == 1 else prefix + last_K
        own_S = (prefix + self.first_K).repeat_interleave(lengths_K)
        count = prefix + len(own_S)
        self._row_N = torch.arange(count, device=device, dtype=torch.int32)
        self._first_N = torch.cat([own_S.new_full((prefix,), prefix), own_S]).int()
        self._row_K, self._first_K = (prefix + last_K).int(), (prefix + self.first_K).int()

    def attend(self, q: Tensor, k: Tensor, v: Tensor, at_ends: bool, composite: bool = False) -> Tensor:
        """Attention of all tokens (B,N,H,d), or of the last one of each class (B,K,H,d) -> (B,N or K,W)"""
        if q.dtype in _kernels.HALF and _kernels.usable(q) and q.shape[-1] in (16, 32, 64, 128):
            rows = (self._row_K, self._first_K) if at_ends else (self._row_N, self._first_N)
            return _kernels.prefix_attention(q, k, v, *rows, self.prefix)
        q = q * q.shape[-1] ** -0.5
        return (self._at_ends if at_ends else self._everywhere)(q, k, v, composite)

    def _everywhere(self, q: Tensor, k: Tensor, v: Tensor, composite: bool) -> Tensor:
        B, N, H, d = q.shape
        P = self.prefix
        prefix_q, prefix_k, prefix_v = (t[:, :P].transpose(1, 2) for t in (q, k, v))  # (B, H, P, d)
        own_q, own_k, own_v = (self._to_classes(t[:, P:]) for t in (q, k, v))  # (B, H, K, L, d)

        score = prefix_q @ prefix_k.mT + self._later_PP.to(q.dtype)
        prefix_out = (softmax(score, composite) @ prefix_v).transpose(1, 2)

        _, _, K, L, _ = own_q.shape
        to_prefix = own_q.flatten(2, 3) @ prefix_k.mT  # (B, H, K*L, P): one product with the shared keys
        to_own = own_q @ own_k.mT + self._later_LL.to(q.dtype)
        weight = softmax(torch.cat([to_prefix.view(B, H, K, L, P), to_own], dim=-1), composite)
        from_prefix = weight[..., :P].flatten(2, 3) @ prefix_v
        own_out = from_prefix.view_as(own_q) + weight[..., P:] @ own_v
        return torch.cat([prefix_out, self._to_packed(own_out)], dim=1).reshape(B, N, H * d)

    def _at_ends(self, q: Tensor, k: Tensor, v: Tensor, composite: bool) -> Tensor:
        P = self.prefix
        q = q.transpose(1, 2)  # (B, H, K, d)
        prefix_k, prefix_v = k[:, :P].transpose(1, 2), v[:, :P].transpose(1, 2)
        own_k, own_v = self._to_classes(k[:, P:]), self._to_classes(v[:, P:])
        to_own = (own_k @ q[..., None])[..., 0] + self._absent_KL.to(q.dtype)  # (B, H, K, L)
        score = softmax(torch.cat([q @ prefix_k.mT, to_own], dim=-1), composite)
        out = score[..., :P] @ prefix_v + (score[..., None, P:] @ own_v)[..., 0, :]
        return out.transpose(1, 2).flatten(2)

    def _to_classes(self, packed: Tensor) -> Tensor:
        """(B, S, H, d) -> (B, H, K, L, d)"""
        B, _, H, d = packed.shape
        if not self._dense:
            packed = packed[:, self._pad_KL.flatten()]
        return packed.reshape(B, *self._pad_KL.shape, H, d).permute(0, 3, 1, 2, 4)

    def _to_packed(self, padded: Tensor) -> Tensor:
        """(B, H, K, L, d) -> (B, S, H, d)"""
        flat = padded.permute(0, 2, 3, 1, 4).flatten(1, 2)
        return flat if self._dense else flat[:, self._unpad_S]
