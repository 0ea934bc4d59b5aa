"""Text towers: from contexts to text features, and from gradients at the features back to a context.

In a causal tower a token attends only to earlier tokens. CausalText computes start-of-text and context, which all
classes share, once; only name, full stop and end-of-text run per class, packed into one row without padding. PlainText
runs the model's own forward for every prompt, as non-causal towers (SigLIP) require.

Shape letters: B samples (each with its own context), M context tokens, P = start + M prefix tokens, S packed suffix
tokens of all classes, K classes, L positions, W width, D width of the text features.
"""

import math
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .._errors import InputError
from ..backbones import Backbone
from ..backbones._blocks import Blocks
from ..fast import kernels
from ..fast.memory import scale_to_memory
from ._backward import PullBack
from ._packed import HEADS, Packed
from ._tokens import PromptTokens

_RAGGED = 3  # padded cells per token; above this, classes run in groups of similar length
CHUNK = 256  # prompts whose activations PlainText holds at a time
ROWS = 16384  # tokens whose gradients PlainText computes at a time


class CausalText:
    """`features(context_BMW) -> (B,K,D)` for open_clip's causal text transformer."""

    def __init__(self, backbone: Backbone, tokens: PromptTokens) -> None:
        self.tower, self.tokens = _tower(backbone), tokens
        ids_KL, P = tokens.ids_KL, tokens.prefix
        self.lengths_K = _ends(ids_KL, self.tower) - P + 1
        self.whole = Packed(P, self.lengths_K)
        embedding: Tensor = self.tower.token_embedding.weight
        self.position: Tensor = self.tower.positional_embedding
        self._start = embedding[ids_KL[0, : tokens.start]] + self.position[: tokens.start]
        place_L = torch.arange(ids_KL.shape[1], device=ids_KL.device)
        classes, places = ((place_L >= P) & (place_L < P + self.lengths_K[:, None])).nonzero().unbind(dim=1)
        self._suffix_SW = embedding[ids_KL[classes, places]] + self.position[places]
        # Several forward passes, if padding all classes to the longest would cost more.
        groups = self.group_by_length(stretch=2) if self.whole.cells > _RAGGED * self.whole.tokens else []
        self._groups = [(self.suffix(classes), self.packed(classes)) for classes in groups]
        self._place_K = torch.cat(groups).argsort() if groups else None

        blocks, final = self.tower.transformer.resblocks, self.tower.ln_final
        self.exact = Blocks(blocks, final, backbone.dtype)
        # float16 has ten bits of mantissa, bfloat16 seven; CLIP itself was trained and published in float16.
        self.half = Blocks(blocks, final, torch.float16) if backbone.half_text else self.exact
        head = self.exact.blocks[0].qkv.weight.shape[1] // self.exact.blocks[0].heads
        fused = self.half is not self.exact and kernels.available(backbone.device) and head in HEADS
        # The published code computes these gradients in half precision too.
        self.half_gradients = fused and backbone.dtype == torch.float32

    @staticmethod
    def supports(backbone: Backbone) -> bool:
        """Whether this class reproduces the tower's blocks and pooling."""
        tower = _tower(backbone)
        return (
            isinstance(getattr(tower, "attn_mask", None), Tensor)
            and getattr(tower, "cls_emb", None) is None
            and Blocks.supports(getattr(getattr(tower, "transformer", None), "resblocks", None))
            and _pool(tower) in {"argmax", "eos"}
        )

    @property
    def tokens_per_sample(self) -> int:
        return self.tokens.prefix + len(self._suffix_SW)

    @property
    def bytes_per_token(self) -> int:
        """Stored for a backward pass: two norms, queries, keys and values, and the slope of the activation."""
        width = self._suffix_SW.shape[-1]
        hidden = self.exact.blocks[0].up.weight.shape[0]
        size = 2 if self.half_gradients else self._suffix_SW.element_size()
        return len(self.exact.blocks) * (5 * width + hidden) * size

    def features(self, context_BMW: Tensor, blocks: Blocks | None = None) -> Tensor:
        """L2-normalised text features `(B,K,D)` under each sample's context."""
        blocks = blocks or self.exact
        if not self._groups or blocks is not self.exact:  # the half-precision kernels need no padding
            return self._forward(context_BMW, self._suffix_SW, self.whole, blocks)
        found = [self._forward(context_BMW, suffix, packed, blocks) for suffix, packed in self._groups]
        return torch.cat(found, dim=1)[:, self._place_K]

    def tuned_features(self, context_BMW: Tensor) -> Tensor:
        """Like `features`, without gradients, and in half precision if the backbone uses it."""
        return self.features(context_BMW, self.half)

    def pull_back(self, context_MW: Tensor) -> Callable[[Tensor], Tensor]:
        """A function from gradients `(B,K,D)` at the text features to gradients `(B,M,W)` at this context."""
        return PullBack(self, context_MW)

    def group_by_length(self, stretch: float = math.inf, cells: float = math.inf) -> list[Tensor]:
        """Classes in groups of similar length, shortest first; attention pads each class to the longest of its group.

        Lengths in a group differ by at most the factor `stretch`, and a group of several classes takes at most `cells`
        padded cells.
        """
        rising, order_K = self.lengths_K.sort(stable=True)
        rising, groups, start = rising.tolist(), [], 0
        for k, length in enumerate(rising):
            if k > start and (length > stretch * rising[start] or (k + 1 - start) * length > cells):
                groups.append(order_K[start:k])
                start = k
        return [*groups, order_K[start:]]

    def packed(self, classes: Tensor) -> Packed:
        return Packed(self.tokens.prefix, self.lengths_K[classes])

    def suffix(self, classes: Tensor) -> Tensor:
        """Embedded suffix tokens of `classes`, concatenated, (S,W)."""
        return self._suffix_SW[self.whole.pad_KL[classes][self.whole.keep_KL[classes]]]

    def embedded(self, context_BMW: Tensor, suffix: Tensor) -> Tensor:
        """The input of the first block, (B,N,W)."""
        B, P = len(context_BMW), self.tokens.prefix
        start = self._start.expand(B, -1, -1)
        context = context_BMW + self.position[self.tokens.start : P]
        return torch.cat([start, context, suffix.expand(B, -1, -1)], dim=1)

    def project(self, pooled: Tensor) -> Tensor:
        projection = self.tower.text_projection
        if projection is None:
            return pooled
        return projection(pooled) if isinstance(projection, nn.Linear) else pooled @ projection

    def _forward(self, context_BMW: Tensor, suffix: Tensor, packed: Packed, blocks: Blocks) -> Tensor:
        x = self.embedded(context_BMW, suffix)
        return F.normalize(self.project(blocks.run(x, packed.attend, packed.ends)), dim=-1)


class PlainText:
    """Like CausalText, through `model.encode_text`, for any tower."""

    def __init__(self, backbone: Backbone, tokens: PromptTokens) -> None:
        self.model: Any = backbone.model
        self.tokens = tokens
        self._embedding = token_embedding(backbone)

    @property
    def tokens_per_sample(self) -> int:
        return self.tokens.ids_KL.numel()

    def features(self, context_BMW: Tensor) -> Tensor:
        B, K = len(context_BMW), len(self.tokens.ids_KL)
        size = scale_to_memory(CHUNK, context_BMW.device)
        ids = self.tokens.ids_KL.repeat(B, 1).split(size)
        contexts = context_BMW.repeat_interleave(K, dim=0).split(size)
        if len(ids) > 1 and torch.is_grad_enabled() and context_BMW.requires_grad:
            # One chunk of activations at a time: those of 1000 full-length prompts do not fit on a common GPU.
            parts = [checkpoint(self._encode, i, c, use_reentrant=False) for i, c in zip(ids, contexts, strict=True)]
        else:
            parts = [self._encode(i, c) for i, c in zip(ids, contexts, strict=True)]
        return F.normalize(torch.cat(parts), dim=-1).view(B, K, -1)  # type: ignore[arg-type]

    tuned_features = features

    def pull_back(self, context_MW: Tensor) -> Callable[[Tensor], Tensor]:
        def pull(cotangent_BKD: Tensor) -> Tensor:
            found = []
            for part in cotangent_BKD.split(max(1, scale_to_memory(ROWS, context_MW.device) // self.tokens_per_sample)):
                with torch.enable_grad():
                    context = context_MW.expand(len(part), -1, -1).clone().requires_grad_()
                    # As grad_outputs, `part` would make torch import SymPy, which takes a second. A copy of it, because
                    # autograd saves no inference tensors.
                    product = self.features(context) * part.clone()
                    found.append(torch.autograd.grad(product.sum(), context)[0])
            return torch.cat(found)

        return pull

    def _encode(self, ids: Tensor, context: Tensor) -> Tensor:
        start, end, thread = self.tokens.start, self.tokens.prefix, threading.get_ident()

        def put_context(module: nn.Module, inputs: Any, embedded: Tensor) -> Tensor | None:
            if threading.get_ident() != thread:
                return None  # another task of this model, which has its own hook
            return torch.cat([embedded[:, :start], context.to(embedded.dtype), embedded[:, end:]], dim=1)

        handle = self._embedding.register_forward_hook(put_context)
        try:
            return self.model.encode_text(ids)
        finally:
            handle.remove()


class NoTower:
    """Text features (K,D) in place of a text tower; other contexts cannot be encoded."""

    tokens_per_sample = 1  # never used: nothing is encoded

    def __init__(self, name: str, text_KD: Tensor) -> None:
        self.name, self.text = name, text_KD

    def features(self, context_BMW: Tensor) -> Tensor:
        if context_BMW.requires_grad or len(context_BMW) != 1:
            self._refuse()
        return self.text[None]

    def tuned_features(self, context_BMW: Tensor) -> Tensor:
        return self._refuse()

    def pull_back(self, context_MW: Tensor) -> Callable[[Tensor], Tensor]:
        return self._refuse()

    def _refuse(self) -> NoReturn:
        raise InputError(
            f"{self.name} has text features only, so no prompt can be tuned. Use a method that does not tune the "
            "prompt, such as zeroshot, tps or tda, or omit text_features from the file and pass a model."
        )


def token_embedding(backbone: Backbone) -> nn.Module:
    tower = _tower(backbone)
    embedding = getattr(tower, "token_embedding", None)
    if embedding is None and hasattr(getattr(tower, "transformer", None), "get_input_embeddings"):
        embedding = tower.transformer.get_input_embeddings()
    if not isinstance(embedding, nn.Module):
        raise InputError(f"{backbone.name}: the text tower has no token embedding that cots recognises.")
    return embedding


def _tower(backbone: Backbone) -> Any:
    return getattr(backbone.model, "text", backbone.model)


def _pool(tower: Any) -> str:
    return getattr(tower, "pool_type", None) or getattr(tower, "text_pool_type", "argmax")


def _ends(ids_KL: Tensor, tower: Any) -> Tensor:
    """Position of the token at which open_clip reads the feature."""
    if _pool(tower) == "argmax":
        return ids_KL.argmax(dim=1)
    eos = getattr(tower, "eos_id", None) or getattr(tower, "text_eos_id", None)
    return (ids_KL == eos).int().argmax(dim=1)
