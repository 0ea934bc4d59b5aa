"""Causal text towers: half precision, groups of similar length, written-out gradients, recorded calls."""

import math
from functools import cached_property

import torch
from torch import Tensor

from ..accelerate import Function
from ..backbones import Backbone
from ..prompts import CausalText, PromptTokens
from . import kernels
from .backward import Jacobian, PullBack
from .blocks import FusedBlocks
from .graphs import compiled
from .memory import card_bytes, scale_to_memory
from .packed import HEADS, FusedPacked

LINEARISE_FROM = 1024  # samples
JACOBIAN_SHARE = 0.3  # of a GPU's memory, for the Jacobian of the text features
RECORDED_TOKENS = 2**17  # text tokens per batch; a larger batch keeps the GPU busy while its kernels are launched
_RAGGED = 3  # padded cells per token; above this, classes run in groups of similar length


class FastText(CausalText):
    """`pull_back` with written-out gradients; on a GPU, after enough samples, with the Jacobian of the text features.

    With the Jacobian, each `pull_back` is one matrix product. Computing it takes as long as about a thousand samples,
    so it is computed when that many were announced, or once pulling back has taken as long: at most half of the total
    time is lost, however many samples follow. Results then change by rounding.
    """

    def __init__(self, backbone: Backbone, tokens: PromptTokens, context_MW: Tensor) -> None:
        super().__init__(backbone, tokens, context_MW)
        # Several forward passes, if padding all classes to the longest would cost more.
        groups = self.group_by_length(stretch=2) if self.whole.cells > _RAGGED * self.whole.tokens else []
        self._groups = [(self.suffix(classes), self.packed(classes)) for classes in groups]
        self._order_K = torch.cat(groups).argsort() if groups else None
        self.half = self.blocks
        if backbone.precision != "float32" and backbone.device.type == "cuda":
            # float16 has ten bits of mantissa, bfloat16 seven; CLIP itself was trained and published in float16.
            self.half = FusedBlocks(self.tower.transformer.resblocks, self.tower.ln_final, torch.float16)
        head = self.blocks.blocks[0].qkv.weight.shape[1] // self.blocks.blocks[0].heads
        fused = self.half is not self.blocks and kernels.available(backbone.device) and head in HEADS
        # The published code computes these gradients in half precision too.
        self.half_gradients = fused and backbone.dtype == torch.float32
        self.linear, self._automatic, self._samples = False, True, 0
        self._in_compiled = False

    def pack(self, lengths_K: Tensor) -> FusedPacked:
        return FusedPacked(self.tokens.prefix, lengths_K)

    def features(self, context_BMW: Tensor) -> Tensor:
        if not self._groups:
            return super().features(context_BMW)
        features = [self.forward(context_BMW, suffix, packed, self.blocks) for suffix, packed in self._groups]
        return torch.cat(features, dim=1)[:, self._order_K]

    def tuned_features(self, context_BMW: Tensor) -> Tensor:
        if self.half is self.blocks:
            return self.features(context_BMW)
        # The kernels need no padding.
        return self.forward(context_BMW, self.suffix_SW, self.whole, self.half)

    def pull_back(self, cotangent_BKD: Tensor) -> Tensor:
        pull = self._jacobian if self.linear else self._pull_back
        gradient_BMW = pull(cotangent_BKD)
        if not self._in_compiled:
            self._count(len(cotangent_BKD))
        return gradient_BMW

    def expect(self, samples: int | None, exactly: bool, memory: int | None) -> None:
        if memory is not None and self.jacobian_bytes > memory:
            self._automatic = False
        if samples is not None and samples >= LINEARISE_FROM:
            self._linearise()
        if exactly:
            self._automatic = False

    def compiled(self, function: Function) -> Function:
        def run(features_BVD: Tensor) -> tuple[Tensor, ...]:
            small = len(features_BVD) * self.tokens_per_sample <= scale_to_memory(RECORDED_TOKENS, features_BVD.device)
            if not small or not features_BVD.numel():
                return function(features_BVD)
            # A replay calls no `pull_back`, and a recording calls it twice and cannot contain a new Jacobian.
            self._in_compiled = True
            try:
                results = compiled(function, self, self.linear)(features_BVD)
            finally:
                self._in_compiled = False
            self._count(len(features_BVD))
            return results

        return run

    @property
    def compiles(self) -> bool:
        """Not if activations are recomputed for every batch, which cannot be recorded."""
        pull = vars(self).get("_pull_back")
        return self.context_MW.device.type == "cuda" and (self.linear or pull is None or bool(pull.kept))

    @property
    def bytes_per_token(self) -> int:
        """Stored for a backward pass: two norms, queries, keys and values, and the slope of the activation."""
        width = self.suffix_SW.shape[-1]
        hidden = self.blocks.blocks[0].up.weight.shape[0]
        size = 2 if self.half_gradients else self.suffix_SW.element_size()
        return len(self.blocks.blocks) * (5 * width + hidden) * size

    @property
    def jacobian_bytes(self) -> int:
        features = self.project(self.suffix_SW[:1]).shape[1] * len(self.lengths_K)
        size = 2 if self.half_gradients else self.context_MW.element_size()
        return features * self.context_MW.numel() * size

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

    def packed(self, classes: Tensor) -> FusedPacked:
        return self.pack(self.lengths_K[classes])

    def suffix(self, classes: Tensor) -> Tensor:
        """Embedded suffix tokens of `classes`, concatenated, (S,W)."""
        return self.suffix_SW[self.whole.pad_KL[classes][self.whole.keep_KL[classes]]]

    def _count(self, samples: int) -> None:
        if self._automatic and not self.linear and "_pull_back" in vars(self):
            self._samples += samples
            if self._samples >= LINEARISE_FROM:
                self._automatic = False
                self._linearise()

    def _linearise(self) -> None:
        """Use the Jacobian from the next gradient on, if it fits."""
        device = self.context_MW.device
        if device.type == "cuda":
            self.linear = self.jacobian_bytes <= JACOBIAN_SHARE * card_bytes(device)

    @cached_property
    def _jacobian(self) -> Jacobian:
        return Jacobian(self, self.context_MW)

    @cached_property
    def _pull_back(self) -> PullBack:
        return PullBack(self, self.context_MW)
