"""Texts with a shared prefix, packed into one row without padding: layout and attention.

Shape letters: B samples, P prefix tokens, S packed suffix tokens of all classes, N = P + S, K classes, L longest
suffix, H heads, d width of a head, W = H*d.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

Pair = tuple[Tensor, ...]  # one tensor for the prefix, one for the classes


class Packed:
    """Where each class's suffix lies in the packed row, and causal attention that keeps classes apart."""

    def __init__(self, prefix: int, lengths_K: Tensor) -> None:
        device = lengths_K.device
        self.prefix, self.lengths_K = prefix, lengths_K
        self.tokens = prefix + int(lengths_K.sum())
        longest = int(lengths_K.max())
        index_L = torch.arange(longest, device=device)
        self.keep_KL = index_L < lengths_K[:, None]
        first_K = F.pad(lengths_K.cumsum(0), (1, 0))[:-1]
        last_K = first_K + lengths_K - 1
        # Packed row -> padded cell and back. Cells after the end of a suffix repeat its last token and are never read.
        self.pad_KL = torch.minimum(first_K[:, None] + index_L, last_K[:, None])
        self.cells = prefix + self.pad_KL.numel()
        self.unpad_2S = self.keep_KL.nonzero().unbind(dim=1)
        self.dense = bool(self.keep_KL.all())
        self._absent_KL = torch.zeros(self.keep_KL.shape, device=device).masked_fill(~self.keep_KL, float("-inf"))
        self._later_LL = torch.full((longest, longest), float("-inf"), device=device).triu(1)
        self._later_PP = torch.full((prefix, prefix), float("-inf"), device=device).triu(1)
        # A slice has a cheaper gradient than an index.
        self.ends: slice | Tensor = slice(prefix + longest - 1, None) if len(lengths_K) == 1 else prefix + last_K

    def attend(self, q: Tensor, k: Tensor, v: Tensor, at_ends: bool) -> Tensor:
        """Attention of all tokens (B,N,H,d), or of the last token of each class (B,K,H,d) -> (B,N or K,W)"""
        q = q * q.shape[-1] ** -0.5
        if at_ends:
            return self._at_ends(q, k, v)
        weights = self.weights(self.split(q), self.split(k))
        return self.join(*self.mix(weights, self.split(v)))

    def split(self, t: Tensor) -> Pair:
        """(B,N,H,d) -> the prefix (B,H,P,d) and, padded, the classes (B,H,K,L,d)"""
        own = t[:, self.prefix :]
        own = own.unflatten(1, self.pad_KL.shape) if self.dense else own[:, self.pad_KL]
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
        own = own.flatten(1, 2) if self.dense else own[:, *self.unpad_2S]
        return torch.cat([prefix.transpose(1, 2), own], dim=1).flatten(2)

    def _at_ends(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = q.transpose(1, 2)  # (B,H,K,d)
        (prefix_k, own_k), (prefix_v, own_v) = self.split(k), self.split(v)
        to_own = (own_k @ q[..., None])[..., 0] + self._absent_KL.to(q.dtype)  # (B,H,K,L)
        score = torch.cat([q @ prefix_k.mT, to_own], dim=-1).softmax(dim=-1)
        out = score[..., : self.prefix] @ prefix_v + (score[..., None, self.prefix :] @ own_v)[..., 0, :]
        return out.transpose(1, 2).flatten(2)
