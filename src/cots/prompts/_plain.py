"""Text features of any tower: the model's own forward, with the context put in place of the token embeddings.

Non-causal towers (SigLIP) let every token see the whole prompt, so nothing can be shared between classes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .._errors import InputError
from .._memory import scale_to_memory
from ..backbones import Backbone
from ._tokens import PromptTokens

CHUNK = 256  # prompts whose activations are held at a time
ROWS = 16384  # tokens whose gradients are taken at a time


class PlainText:
    """`features(context_BMW) -> (B,K,D)` through `model.encode_text`, whatever the tower is."""

    def __init__(self, backbone: Backbone, tokens: PromptTokens) -> None:
        self.model: Any = backbone.model
        self.tokens = tokens
        self._embedding = _token_embedding(backbone)

    @property
    def tokens_per_sample(self) -> int:
        return self.tokens.ids_KL.numel()

    def features(self, context_BMW: Tensor) -> Tensor:
        """L2-normalised text features `(B,K,D)` under each sample's context."""
        B, K = len(context_BMW), len(self.tokens.ids_KL)
        contexts = context_BMW.repeat_interleave(K, dim=0)
        ids = self.tokens.ids_KL.repeat(B, 1)
        encode: Callable[..., Any] = self._encode
        if torch.is_grad_enabled() and context_BMW.requires_grad:
            # Activations of one chunk at a time: 1000 classes at full length do not fit a usual card otherwise.
            parts = [checkpoint(encode, i, c, use_reentrant=False) for i, c in _chunks(ids, contexts)]
        else:
            parts = [encode(i, c) for i, c in _chunks(ids, contexts)]
        return F.normalize(torch.cat(parts), dim=-1).view(B, K, -1)  # type: ignore[arg-type]

    def tuned_features(self, context_BMW: Tensor) -> Tensor:
        """As `features`, without gradients."""
        with torch.no_grad():
            return self.features(context_BMW)

    def pull_back(self, context_MW: Tensor) -> Callable[[Tensor], Tensor]:
        """Gradients `(B,M,W)` at this context for gradients `(B,K,D)` with respect to the text features."""

        def pull(cotangent_BKD: Tensor) -> Tensor:
            found = []
            for part in cotangent_BKD.split(max(1, scale_to_memory(ROWS, context_MW.device) // self.tokens_per_sample)):
                with torch.enable_grad():
                    context = context_MW.expand(len(part), -1, -1).clone().requires_grad_()
                    found.append(torch.autograd.grad(self.features(context), context, part)[0])
            return torch.cat(found)

        return pull

    def _encode(self, ids: Tensor, context: Tensor) -> Tensor:
        start, end, thread = self.tokens.start, self.tokens.prefix, threading.get_ident()

        def put_context(module: nn.Module, inputs: Any, embedded: Tensor) -> Tensor | None:
            if threading.get_ident() != thread:
                return None  # another task of this model, with a hook of its own
            return torch.cat([embedded[:, :start], context.to(embedded.dtype), embedded[:, end:]], dim=1)

        handle = self._embedding.register_forward_hook(put_context)
        try:
            return self.model.encode_text(ids)
        finally:
            handle.remove()


def _chunks(ids: Tensor, contexts: Tensor) -> list[tuple[Tensor, Tensor]]:
    size = scale_to_memory(CHUNK, ids.device)
    return list(zip(ids.split(size), contexts.split(size), strict=True))


def _token_embedding(backbone: Backbone) -> nn.Module:
    tower: Any = getattr(backbone.model, "text", backbone.model)
    embedding = getattr(tower, "token_embedding", None)
    if embedding is None and hasattr(getattr(tower, "transformer", None), "get_input_embeddings"):
        embedding = tower.transformer.get_input_embeddings()
    if not isinstance(embedding, nn.Module):
        raise InputError(f"{backbone.name}: cots cannot find the token embedding of its text tower.")
    return embedding


def token_vectors(backbone: Backbone, ids: Tensor) -> Tensor:
    """Token embeddings of `ids`, as the tower looks them up."""
    with torch.no_grad():
        return _token_embedding(backbone)(ids)
