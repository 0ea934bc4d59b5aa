"""Text features of causal towers with the class-independent prefix computed once and shared by all classes.

In a causal tower a token sees only what stands before it. Start-of-text and context are the same for every class, so
their keys and values are computed once a sample; only name, full stop and end-of-text run for each class, packed into
one row without padding. The features are those of the full-length forward.

Shape letters: B samples (each with its own context), M context tokens, P = start + M prefix tokens, S packed suffix
tokens of all classes, K classes, W width, D embedding width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .._memory import scale_to_memory
from ..backbones import Backbone
from ..backbones._blocks import Blocks
from ._backward import Backward
from ._packed import Packed
from ._tokens import PromptTokens, eot_positions, project

_ROWS = {"cpu": 4096, "cuda": 131072}  # cells times gradients that a backward pass holds at a time
_GRADIENTS = {"cpu": 8, "cuda": 64}  # so many gradients fill them
_KEPT_BYTES = 2**31  # of activations that a task keeps
_RAGGED = 3  # padded cells for each token from which classes of like length go together


class CausalText:
    """`features(context_BMW) -> (B,K,D)` for open_clip's causal text transformer."""

    def __init__(self, backbone: Backbone, tokens: PromptTokens) -> None:
        self.tower: Any = getattr(backbone.model, "text", backbone.model)
        self.tokens = tokens
        ids_KL, P = tokens.ids_KL, tokens.prefix
        lengths = eot_positions(ids_KL, _pool(self.tower), _eos(self.tower)) - P + 1
        self.packed = Packed(P, lengths)
        embedding: Tensor = self.tower.token_embedding.weight
        self.position: Tensor = self.tower.positional_embedding
        self._start = embedding[ids_KL[0, : tokens.start]] + self.position[: tokens.start]
        place_L = torch.arange(ids_KL.shape[1], device=ids_KL.device)
        classes, places = ((place_L >= P) & (place_L < P + lengths[:, None])).nonzero().unbind(dim=1)
        self._suffix_SW = embedding[ids_KL[classes, places]] + self.position[places]
        # Classes of like length, where padding all to the longest would cost more than several forward passes.
        self.rising, self.order = lengths.sort(stable=True)
        ragged = self.packed.cells > _RAGGED * self.packed.tokens
        groups = _cut(self.rising.tolist(), lambda count, first, last: last > 2 * first) if ragged else ()
        self._alike = [(self.suffix(self.order[k]), Packed(P, self.rising[k])) for k in groups]
        self._place_K = self.order.argsort()

        blocks, final = self.tower.transformer.resblocks, self.tower.ln_final
        self._exact = Blocks(blocks, final, backbone.dtype)
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
        return self._features(context_BMW, self._exact)

    def tuned_features(self, context_BMW: Tensor) -> Tensor:
        """As `features`, in half precision where the backbone's precision asks for it; no gradient."""
        with torch.no_grad():
            return self._features(context_BMW, self._half)

    def pull_back(self, context_MW: Tensor) -> PullBack:
        """Gradients at this context: `(B,K,D)`, with respect to the text features -> `(B,M,W)`"""
        return PullBack(self, context_MW)

    def jacobian(self, context_MW: Tensor) -> Tensor:
        """Derivatives `(K,D,M,W)` of the text features by the context that they share."""
        lengths, D = self.packed.lengths_K, len(self.features(context_MW[None])[0, 0])
        out = context_MW.new_empty(len(lengths), D, *context_MW.shape)
        eye = torch.eye(D, device=out.device, dtype=out.dtype)
        rows = _rows(out.device)
        for length in lengths.unique().tolist():
            alone = Packed(self.tokens.prefix, lengths.new_tensor([length]))
            for classes in (lengths == length).nonzero().flatten().split(max(1, rows // (D * alone.tokens))):
                # Each class as a sample of its own, with a copy of the context that no other class touches.
                suffixes = self.suffix(classes).unflatten(0, (len(classes), length))
                backward = self.linearised(context_MW.expand(len(classes), -1, -1), suffixes, alone)
                found = backward(eye.expand(len(classes), 1, -1, -1))[:, self.tokens.start :]
                out[classes] = found.transpose(1, 2)
        return out

    def _features(self, context_BMW: Tensor, blocks: Blocks) -> Tensor:
        if not self._alike or blocks is not self._exact:  # the kernels of half precision know no padding
            return self._forward(context_BMW, self._suffix_SW, self.packed, blocks)
        found = [self._forward(context_BMW, suffix, packed, blocks) for suffix, packed in self._alike]
        return torch.cat(found, dim=1)[:, self._place_K]

    def _forward(self, context_BMW: Tensor, suffix: Tensor, packed: Packed, blocks: Blocks) -> Tensor:
        x = self._embedded(context_BMW, suffix)
        return F.normalize(project(self.tower, blocks.run(x, packed.attend, packed.ends)), dim=-1)

    def linearised(self, context_CMW: Tensor, suffix: Tensor, packed: Packed) -> Backward:
        return Backward(self.tower, self._exact, packed, self._embedded(context_CMW, suffix))

    def _embedded(self, context_BMW: Tensor, suffix: Tensor) -> Tensor:
        """What enters the first block, (B,N,W)."""
        B, P = len(context_BMW), self.tokens.prefix
        start = self._start.expand(B, -1, -1)
        context = context_BMW + self.position[self.tokens.start : P]
        return torch.cat([start, context, suffix.expand(B, -1, -1)], dim=1)

    @property
    def bytes_a_token(self) -> int:
        """Of what a backward pass needs: two norms, queries, keys and values, and the slope of the activation."""
        width = self._suffix_SW.shape[-1]
        hidden = self._exact.blocks[0].up.weight.shape[0]
        return len(self._exact.blocks) * (5 * width + hidden) * self._suffix_SW.element_size()

    def suffix(self, classes: Tensor) -> Tensor:
        """Embedded tokens of some classes, one after the other, (S,W)."""
        return self._suffix_SW[self.packed.pad_KL[classes][self.packed.keep_KL[classes]]]


class PullBack:
    """Gradients with respect to the text features, `(B,K,D)`, pulled back to a context that all share, `(B,M,W)`.

    A few classes at a time: they meet in the context alone, so their gradients add up. Which classes go together
    follows from the task and the device: those of like length, because shorter ones are padded to the longest of their
    piece. What their forward pass leaves behind is kept where there is room for it all.
    """

    def __init__(self, tower: CausalText, context_MW: Tensor) -> None:
        self.tower, self.context = tower, context_MW
        device, prefix = context_MW.device, tower.tokens.prefix
        self.rows = _rows(device)
        room = self.rows // _GRADIENTS.get(device.type, _GRADIENTS["cpu"]) - prefix
        pieces = list(_cut(tower.rising.tolist(), lambda count, first, last: count * last > room))
        self.pieces = [tower.order[k] for k in pieces]
        self.packed = [Packed(prefix, tower.rising[k]) for k in pieces]
        fits = sum(p.cells for p in self.packed) * tower.bytes_a_token <= scale_to_memory(_KEPT_BYTES, device)
        self.kept = [self._linearised(i) for i in range(len(pieces))] if fits else []

    def _linearised(self, i: int) -> Backward:
        return self.tower.linearised(self.context[None], self.tower.suffix(self.pieces[i]), self.packed[i])

    def __call__(self, cotangent_BKD: Tensor) -> Tensor:
        total = cotangent_BKD.new_zeros(len(cotangent_BKD), *self.context.shape)
        for i, classes in enumerate(self.pieces):
            backward = self.kept[i] if self.kept else self._linearised(i)
            parts = cotangent_BKD[:, classes].split(max(1, self.rows // self.packed[i].cells))
            found = [backward(part.transpose(0, 1)[None])[0, self.tower.tokens.start :] for part in parts]
            total += torch.cat(found, dim=1).transpose(0, 1)
        return total


def _rows(device: torch.device) -> int:
    return scale_to_memory(_ROWS.get(device.type, _ROWS["cpu"]), device)


def _cut(rising: list[int], apart: Callable[[int, int, int], bool]) -> Iterator[slice]:
    """Neighbours in a list that rises; a new group begins where `apart(count, first, last)` would hold of the old."""
    start = 0
    for k, length in enumerate(rising):
        if k > start and apart(k + 1 - start, rising[start], length):
            yield slice(start, k)
            start = k
    yield slice(start, len(rising))


def _pool(tower: Any) -> str:
    return getattr(tower, "pool_type", None) or getattr(tower, "text_pool_type", "argmax")


def _eos(tower: Any) -> int | None:
    return getattr(tower, "eos_id", None) or getattr(tower, "text_eos_id", None)
