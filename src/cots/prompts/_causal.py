"""Text features of causal towers with the class-independent prefix computed once and shared by all classes.

In a causal tower a token sees only what stands before it. Start-of-text and context are the same for every class, so
their keys and values are computed once a sample; only name, full stop and end-of-text run for each class, packed into
one row without padding. The features are those of the full-length forward.

Shape letters: B samples (each with its own context), M context tokens, P = start + M prefix tokens, S packed suffix
tokens of all classes, K classes, L longest suffix, H heads, W width, D embedding width.
"""

from __future__ import annotations

from typing import Any

import torch
from open_clip.transformer import ResidualAttentionBlock
from torch import Tensor, nn
from torch.nn import functional as F

from ..backbones import Backbone
from ._tokens import PromptTokens, eot_positions, project


class CausalText:
    """`features(context_BMW) -> (B,K,D)` for open_clip's causal text transformer."""

    def __init__(self, backbone: Backbone, tokens: PromptTokens) -> None:
        self.tower: Any = getattr(backbone.model, "text", backbone.model)
        self.tokens = tokens
        ids_KL, P = tokens.ids_KL, tokens.prefix
        ends = eot_positions(ids_KL, _pool(self.tower), _eos(self.tower))
        lengths = ends - P + 1
        longest = int(lengths.max())
        place_L = torch.arange(longest, device=ids_KL.device)
        keep_KL = place_L < lengths[:, None]

        embedding: Tensor = self.tower.token_embedding.weight
        self.position: Tensor = self.tower.positional_embedding
        self._start = embedding[ids_KL[0, : tokens.start]] + self.position[: tokens.start]
        suffix = embedding[ids_KL[:, P : P + longest]] + self.position[P : P + longest]
        self._suffix_SW = suffix[keep_KL]
        # Packed row -> padded cell and back. Cells after the end of a name repeat its last token: they are never read.
        first_K = F.pad(lengths.cumsum(0), (1, 0))[:-1]
        self._pad_KL = first_K[:, None] + torch.minimum(place_L, lengths[:, None] - 1)
        self._unpad_S = keep_KL.flatten().nonzero().flatten()
        self._last_K = first_K + lengths - 1
        self._dense = bool(keep_KL.all())
        self._absent_KL = ~keep_KL
        self._later_LL = torch.ones(longest, longest, dtype=torch.bool, device=ids_KL.device).triu(1)
        self._later_PP = torch.ones(P, P, dtype=torch.bool, device=ids_KL.device).triu(1)

    @staticmethod
    def supports(backbone: Backbone) -> bool:
        """Whether the tower is one whose blocks and pooling this forward reproduces."""
        tower: Any = getattr(backbone.model, "text", backbone.model)
        blocks = getattr(getattr(tower, "transformer", None), "resblocks", None)
        return (
            isinstance(getattr(tower, "attn_mask", None), Tensor)
            and getattr(tower, "cls_emb", None) is None
            and isinstance(blocks, nn.ModuleList)
            and all(type(block) is ResidualAttentionBlock and not hasattr(block, "ln_1_kv") for block in blocks)
            and _pool(tower) in {"argmax", "eos"}
        )

    @property
    def tokens_per_sample(self) -> int:
        return self.tokens.prefix + len(self._suffix_SW)

    def features(self, context_BMW: Tensor) -> Tensor:
        """L2-normalised text features `(B,K,D)` under each sample's context."""
        B, P = len(context_BMW), self.tokens.prefix
        start = self._start.expand(B, -1, -1)
        context = context_BMW + self.position[self.tokens.start : P]
        x = torch.cat([start, context, self._suffix_SW.expand(B, -1, -1)], dim=1)  # (B, P+S, W)
        *blocks, last = self.tower.transformer.resblocks
        for block in blocks:
            x = x + block.ls_1(self._attention(block.attn, block.ln_1(x)))
            x = x + block.ls_2(block.mlp(block.ln_2(x)))
        # After the last block only the end of each text is read, so only there are queries and the MLP needed.
        end = x[:, P + self._last_K]
        end = end + last.ls_1(self._attention_at_end(last.attn, last.ln_1(x)))
        end = end + last.ls_2(last.mlp(last.ln_2(end)))
        return F.normalize(project(self.tower, self.tower.ln_final(end)), dim=-1)

    def _attention(self, attn: nn.MultiheadAttention, x: Tensor) -> Tensor:
        B, N, W = x.shape
        P, H = self.tokens.prefix, attn.num_heads
        qkv = F.linear(x, attn.in_proj_weight, attn.in_proj_bias).view(B, N, 3, H, W // H)
        q, k, v = qkv.unbind(dim=2)  # (B, N, H, W/H)
        q = q * (W // H) ** -0.5
        prefix_q, prefix_k, prefix_v = (t[:, :P].transpose(1, 2) for t in (q, k, v))  # (B, H, P, W/H)
        own_q, own_k, own_v = (self._to_classes(t[:, P:]) for t in (q, k, v))  # (B, H, K, L, W/H)

        score = (prefix_q @ prefix_k.mT).masked_fill(self._later_PP, float("-inf"))
        prefix_out = (score.softmax(dim=-1) @ prefix_v).transpose(1, 2)

        _, _, K, L, _ = own_q.shape
        to_prefix = own_q.flatten(2, 3) @ prefix_k.mT  # (B, H, K*L, P): one product with the shared keys
        to_own = (own_q @ own_k.mT).masked_fill(self._later_LL, float("-inf"))
        weight = torch.cat([to_prefix.view(B, H, K, L, P), to_own], dim=-1).softmax(dim=-1)
        from_prefix = weight[..., :P].flatten(2, 3) @ prefix_v
        own_out = from_prefix.view_as(own_q) + weight[..., P:] @ own_v

        out = torch.cat([prefix_out, self._to_packed(own_out)], dim=1).reshape(B, N, W)
        return attn.out_proj(out)

    def _attention_at_end(self, attn: nn.MultiheadAttention, x: Tensor) -> Tensor:
        """Attention whose queries are the last tokens of the classes: (B, P+S, W) -> (B, K, W)"""
        B, N, W = x.shape
        P, H = self.tokens.prefix, attn.num_heads
        weight, bias = attn.in_proj_weight, attn.in_proj_bias
        k, v = F.linear(x, weight[W:], bias[W:]).view(B, N, 2, H, W // H).unbind(dim=2)
        q = F.linear(x[:, P + self._last_K], weight[:W], bias[:W]) * (W // H) ** -0.5
        q = q.view(B, -1, H, W // H).transpose(1, 2)  # (B, H, K, W/H)
        prefix_k, prefix_v = k[:, :P].transpose(1, 2), v[:, :P].transpose(1, 2)
        own_k, own_v = self._to_classes(k[:, P:]), self._to_classes(v[:, P:])
        to_own = (own_k @ q[..., None])[..., 0].masked_fill(self._absent_KL, float("-inf"))  # (B, H, K, L)
        score = torch.cat([q @ prefix_k.mT, to_own], dim=-1).softmax(dim=-1)
        out = score[..., :P] @ prefix_v + (score[..., None, P:] @ own_v)[..., 0, :]
        return attn.out_proj(out.transpose(1, 2).reshape(B, -1, W))

    def _to_classes(self, packed: Tensor) -> Tensor:
        """(B, S, H, W/H) -> (B, H, K, L, W/H)"""
        B, _, H, width = packed.shape
        if not self._dense:
            packed = packed[:, self._pad_KL.flatten()]
        return packed.view(B, *self._pad_KL.shape, H, width).permute(0, 3, 1, 2, 4)

    def _to_packed(self, padded: Tensor) -> Tensor:
        """(B, H, K, L, W/H) -> (B, S, H, W/H)"""
        flat = padded.permute(0, 2, 3, 1, 4).flatten(1, 2)
        return flat if self._dense else flat[:, self._unpad_S]


def _pool(tower: Any) -> str:
    return getattr(tower, "pool_type", None) or getattr(tower, "text_pool_type", "argmax")


def _eos(tower: Any) -> int | None:
    return getattr(tower, "eos_id", None) or getattr(tower, "text_eos_id", None)
