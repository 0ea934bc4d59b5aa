"""Text towers: from contexts to text features, and from gradients at the features back to the initial context.

In a causal tower a token attends only to earlier tokens. CausalText computes start-of-text and context, which all
classes share, once; only name, full stop and end-of-text run per class, packed into one row without padding. PlainText
runs the model's own forward for every prompt, as non-causal towers (SigLIP) require.

Shape letters: B samples (each with its own context), M context tokens, P = start + M prefix tokens, S packed suffix
tokens of all classes, K classes, L positions, W width, D width of the text features.
"""

import threading
from abc import ABC, abstractmethod
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .._errors import InputError
from ..accelerate import Function, accelerator
from ..backbones import Backbone, Blocks
from ._packed import Packed
from ._tokens import PromptTokens


class TextTower(ABC):
    """Text features of the class names under tuned contexts. `cots.accelerate` can replace a tower."""

    tokens_per_sample: int

    def __init__(self, backbone: Backbone, tokens: PromptTokens, context_MW: Tensor) -> None:
        self.backbone, self.tokens, self.context_MW = backbone, tokens, context_MW

    @abstractmethod
    def features(self, context_BMW: Tensor) -> Tensor:
        """L2-normalised text features `(B,K,D)` under each sample's context, differentiable."""

    @abstractmethod
    def noisy_features(self, context_BMW: Tensor, noise_BLW: Tensor) -> Tensor:
        """Like `features`, with noise added to the embedding of every position, the same noise for all classes."""

    def tuned_features(self, context_BMW: Tensor) -> Tensor:
        """Like `features`, without gradients."""
        return self.features(context_BMW)

    def pull_back(self, cotangent_BKD: Tensor) -> Tensor:
        """Gradients `(B,M,W)` at the initial context from gradients `(B,K,D)` at the text features."""
        gradients = []
        size = max(1, accelerator().batch_limit("prompt tokens", cotangent_BKD.device) // self.tokens_per_sample)
        for part in cotangent_BKD.split(size):
            with torch.enable_grad():
                context = self.context_MW.expand(len(part), -1, -1).clone().requires_grad_()
                # As grad_outputs, `part` would make torch import SymPy, which takes a second. A copy of it, because
                # autograd saves no inference tensors.
                product = self.features(context) * part.clone()
                gradients.append(torch.autograd.grad(product.sum(), context)[0])
        return torch.cat(gradients)

    def expect(self, samples: int | None, exactly: bool, memory: int | None) -> None:  # noqa: B027, optional
        """See `Task.expect`."""

    @property
    def compiles(self) -> bool:
        """Whether adaptation with this tower gains from `compiled`."""
        return False

    def compiled(self, function: Function) -> Function:
        """`function`, which adapts view features with this tower, for many calls."""
        return function


class CausalText(TextTower):
    """open_clip's causal text transformer, with the shared prefix computed once."""

    def __init__(self, backbone: Backbone, tokens: PromptTokens, context_MW: Tensor) -> None:
        super().__init__(backbone, tokens, context_MW)
        self.tower = _tower(backbone)
        ids_KL, P = tokens.ids_KL, tokens.prefix
        self.lengths_K = _ends(ids_KL, self.tower) - P + 1
        self.whole = self.pack(self.lengths_K)
        embedding: Tensor = self.tower.token_embedding.weight
        self.position: Tensor = self.tower.positional_embedding
        self._start = embedding[ids_KL[0, : tokens.start]] + self.position[: tokens.start]
        index_L = torch.arange(ids_KL.shape[1], device=ids_KL.device)
        classes, positions = ((index_L >= P) & (index_L < P + self.lengths_K[:, None])).nonzero().unbind(dim=1)
        self.suffix_SW = embedding[ids_KL[classes, positions]] + self.position[positions]
        self._positions_N = torch.cat([index_L[:P], positions])
        self.blocks = Blocks(self.tower.transformer.resblocks, self.tower.ln_final, backbone.dtype)
        self.tokens_per_sample = P + len(self.suffix_SW)

    @staticmethod
    def supports(backbone: Backbone) -> bool:
        """Whether this class reproduces the tower's blocks and pooling."""
        tower = _tower(backbone)
        return (
            isinstance(getattr(tower, "attn_mask", None), Tensor)
            and getattr(tower, "cls_emb", None) is None
            # open_clip from version 4 on: texts padded per batch, with a mask.
            and not getattr(getattr(backbone.model, "traits", None), "variable_text", False)
            and Blocks.supports(getattr(getattr(tower, "transformer", None), "resblocks", None))
            and _pool(tower) in {"argmax", "eos"}
        )

    def pack(self, lengths_K: Tensor) -> Packed:
        """The layout of classes with these suffix lengths."""
        return Packed(self.tokens.prefix, lengths_K)

    def features(self, context_BMW: Tensor) -> Tensor:
        return self.forward(context_BMW, self.suffix_SW, self.whole, self.blocks)

    def noisy_features(self, context_BMW: Tensor, noise_BLW: Tensor) -> Tensor:
        x = self.embedded(context_BMW, self.suffix_SW) + noise_BLW[:, self._positions_N]
        pooled = self.blocks.run(x, self.whole.attend, self.whole.ends)
        return F.normalize(self.project(pooled), dim=-1)

    def forward(self, context_BMW: Tensor, suffix_SW: Tensor, packed: Packed, blocks: Blocks) -> Tensor:
        """Features of the classes whose suffixes are packed."""
        x = self.embedded(context_BMW, suffix_SW)
        return F.normalize(self.project(blocks.run(x, packed.attend, packed.ends)), dim=-1)

    def embedded(self, context_BMW: Tensor, suffix_SW: Tensor) -> Tensor:
        """The input of the first block, (B,N,W)."""
        B, P = len(context_BMW), self.tokens.prefix
        start = self._start.expand(B, -1, -1)
        context = context_BMW + self.position[self.tokens.start : P]
        return torch.cat([start, context, suffix_SW.expand(B, -1, -1)], dim=1)

    def project(self, pooled: Tensor) -> Tensor:
        projection = self.tower.text_projection
        if projection is None:
            return pooled
        return projection(pooled) if isinstance(projection, nn.Linear) else pooled @ projection


class PlainText(TextTower):
    """Any tower, through `model.encode_text`."""

    def __init__(self, backbone: Backbone, tokens: PromptTokens, context_MW: Tensor) -> None:
        super().__init__(backbone, tokens, context_MW)
        self.model: Any = backbone.model
        self.tokens_per_sample = tokens.ids_KL.numel()
        self._embedding = token_embedding(backbone)

    def features(self, context_BMW: Tensor) -> Tensor:
        B, K = len(context_BMW), len(self.tokens.ids_KL)
        size = accelerator().batch_limit("prompts", context_BMW.device)
        ids = self.tokens.ids_KL.repeat(B, 1).split(size)
        contexts = context_BMW.repeat_interleave(K, dim=0).split(size)
        # One chunk of activations at a time: those of 1000 full-length prompts do not fit on a common GPU.
        again = len(ids) > 1 and torch.is_grad_enabled() and context_BMW.requires_grad
        parts = []
        for some_ids, some_contexts in zip(ids, contexts, strict=True):
            if again:
                parts.append(checkpoint(self._encode, some_ids, some_contexts, use_reentrant=False))
            else:
                parts.append(self._encode(some_ids, some_contexts))
        return F.normalize(torch.cat(parts), dim=-1).view(B, K, -1)

    def noisy_features(self, context_BMW: Tensor, noise_BLW: Tensor) -> Tensor:
        some_ids = self.tokens.ids_KL.split(accelerator().batch_limit("prompts", context_BMW.device))
        samples = []
        for context, noise in zip(context_BMW, noise_BLW, strict=True):
            parts = [self._encode(ids, context.expand(len(ids), -1, -1), noise) for ids in some_ids]
            samples.append(F.normalize(torch.cat(parts), dim=-1))
        return torch.stack(samples)

    def _encode(self, ids: Tensor, context: Tensor, noise_LW: Tensor | float = 0.0) -> Tensor:
        start, end, thread = self.tokens.start, self.tokens.prefix, threading.get_ident()

        def put_context(module: nn.Module, inputs: Any, embedded: Tensor) -> Tensor | None:
            if threading.get_ident() != thread:
                return None  # another task of this model, which has its own hook
            whole = torch.cat([embedded[:, :start], context.to(embedded.dtype), embedded[:, end:]], dim=1)
            return whole + noise_LW

        handle = self._embedding.register_forward_hook(put_context)
        try:
            return self.model.encode_text(ids)
        finally:
            handle.remove()


class NoTower(TextTower):
    """Text features (K,D) in place of a text tower; other contexts cannot be encoded."""

    tokens_per_sample = 1  # never used: nothing is encoded

    def __init__(self, name: str, text_KD: Tensor) -> None:
        self.name, self.text = name, text_KD

    def features(self, context_BMW: Tensor) -> Tensor:
        if context_BMW.requires_grad or len(context_BMW) != 1:
            self._refuse()
        return self.text[None]

    def noisy_features(self, context_BMW: Tensor, noise_BLW: Tensor) -> Tensor:
        self._refuse()

    def tuned_features(self, context_BMW: Tensor) -> Tensor:
        self._refuse()

    def pull_back(self, cotangent_BKD: Tensor) -> Tensor:
        self._refuse()

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
