"""Text features of causal towers with the class-independent prefix computed once and shared by all classes.

In a causal tower a token sees only what stands before it. Start-of-text and context are the same for every class, so
their keys and values are computed once a sample; only name, full stop and end-of-text run for each class, packed into
one row without padding. The features are those of the full-length forward.

Shape letters: B samples (each with its own context), M context tokens, P = start + M prefix tokens, S packed suffix
tokens of all classes, K classes, W width, D embedding width.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .._memory import fitting
from ..backbones import Backbone
from ..backbones._blocks import Blocks
from ._packed import Packed
from ._tokens import PromptTokens, eot_positions, project

_JACOBIAN_BYTES = 2**31  # of activations that are held while a Jacobian is made


class CausalText:
    """`features(context_BMW) -> (B,K,D)` for open_clip's causal text transformer."""

    def __init__(self, backbone: Backbone, tokens: PromptTokens) -> None:
        self.tower: Any = getattr(backbone.model, "text", backbone.model)
        self.tokens = tokens
        ids_KL, P = tokens.ids_KL, tokens.prefix
        lengths = eot_positions(ids_KL, _pool(self.tower), _eos(self.tower)) - P + 1
        self.packed = Packed(P, lengths)
        longest = int(lengths.max())
        keep_KL = torch.arange(longest, device=ids_KL.device) < lengths[:, None]

        embedding: Tensor = self.tower.token_embedding.weight
        self.position: Tensor = self.tower.positional_embedding
        self._start = embedding[ids_KL[0, : tokens.start]] + self.position[: tokens.start]
        suffix = embedding[ids_KL[:, P : P + longest]] + self.position[P : P + longest]
        self._suffix_SW = suffix[keep_KL]

        blocks, final = self.tower.transformer.resblocks, self.tower.ln_final
        self._exact = Blocks(blocks, final, backbone.dtype)
        self._composite = Blocks(blocks, final, backbone.dtype, composite=True)
        # Ten bits of mantissa against bfloat16's seven; CLIP itself was trained and published in it.
        self._half = Blocks(blocks, final, torch.float16) if backbone.half_text else self._exact

    @staticmethod
    def supports(backbone: Backbone) -> bool:
        """Whether the tower is one whose blocks and pooling this forward reproduces."""
        tower: Any = getattr(backbone.model, "text", backbone.model)
        return (
            isinstance(getattr(tower, "attn_mask", None), Tensor)
            and getattr(tower, "cls_emb", None) is None
            and Blocks.support(getattr(getattr(tower, "transformer", None), "resblocks", None))
            and _pool(tower) in {"argmax", "eos"}
        )

    @property
    def tokens_per_sample(self) -> int:
        return self.tokens.prefix + len(self._suffix_SW)

    def features(self, context_BMW: Tensor) -> Tensor:
        """L2-normalised text features `(B,K,D)` under each sample's context."""
        return self._features(context_BMW, self._suffix_SW, self.packed, self._exact)

    def tuned_features(self, context_BMW: Tensor) -> Tensor:
        """As `features`, in half precision where the backbone's precision asks for it; no gradient."""
        with torch.no_grad():
            return self._features(context_BMW, self._suffix_SW, self.packed, self._half)

    def many_gradients(self, context_MW: Tensor) -> Tensor:
        """Features `(K,D)` for taking gradients with many cotangents at once.

        torch's fused operations do that in a loop, which a GPU waits for; on a CPU they are the faster ones still.
        """
        blocks = self._composite if context_MW.is_cuda else self._exact
        return self._features(context_MW[None], self._suffix_SW, self.packed, blocks)[0]

    def jacobian(self, context_MW: Tensor) -> Tensor:
        """Derivatives `(K,D,M,W)` of the text features by the context that they share."""
        lengths, D = self.packed.lengths_K, len(self.features(context_MW[None])[0, 0])
        out = context_MW.new_empty(len(lengths), D, *context_MW.shape)
        eye = torch.eye(D, device=out.device, dtype=out.dtype)
        room = fitting(_JACOBIAN_BYTES, out.device)
        for length in lengths.unique().tolist():
            alone = Packed(self.tokens.prefix, lengths.new_tensor([length]))
            per_class = 12 * D * (self.tokens.prefix + length) * 4 * context_MW.shape[1]
            for classes in (lengths == length).nonzero().flatten().split(max(1, room // per_class)):
                # Each class as a sample of its own, with a copy of the context that no other class touches.
                place = self.packed.first_K[classes, None] + torch.arange(length, device=out.device)
                with torch.enable_grad():
                    leaf = context_MW.expand(len(classes), -1, -1).clone().requires_grad_()
                    features = self._features(leaf, self._suffix_SW[place], alone, self._composite)[:, 0]
                rows = eye[:, None].expand(-1, len(classes), -1)
                out[classes] = torch.autograd.grad(features, leaf, rows, is_grads_batched=True)[0].transpose(0, 1)
        return out

    def _features(self, context_BMW: Tensor, suffix: Tensor, packed: Packed, blocks: Blocks) -> Tensor:
        B, P = len(context_BMW), self.tokens.prefix
        start = self._start.expand(B, -1, -1)
        context = context_BMW + self.position[self.tokens.start : P]
        x = torch.cat([start, context, suffix.expand(B, -1, -1)], dim=1)  # (B, P+S, W)
        attend = partial(packed.attend, composite=blocks.composite)
        return F.normalize(project(self.tower, blocks.run(x, attend, packed.ends)), dim=-1)


def _pool(tower: Any) -> str:
    return getattr(tower, "pool_type", None) or getattr(tower, "text_pool_type", "argmax")


def _eos(tower: Any) -> int | None:
    return getattr(tower, "eos_id", None) or getattr(tower, "text_eos_id", None)
