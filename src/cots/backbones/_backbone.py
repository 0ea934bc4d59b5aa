"""A loaded dual encoder and what belongs to it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from .._arrays import own_modes
from .._errors import InputError
from .._memory import scale_to_memory
from ._vit import ImageTower

Tokenizer = Callable[..., Tensor]

GPU_SAMPLES = 4  # whose views a GPU encodes in one pass: the 64 of one alone do not fill it
_AT_ONCE = {"cpu": 8, "cuda": 256}  # images; on a CPU the activations of few stay near the cache

PRECISIONS: Mapping[str, torch.dtype | None] = {
    "float32": None,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Backbone:
    """An open_clip model with the tokenizer and the preprocessing that belong to its weights.

    `cots.load` makes one from a name. To use a model of your own, give the three parts:

        backbone = cots.Backbone(name="mine", model=model, tokenizer=tokenizer, preprocess=model.visual.preprocess_cfg)

    `precision` is that of the image encoder's matrix products ("float32", "bfloat16" or "float16"). Half precision on a
    GPU also runs the text tower under tuned contexts in float16; zero-shot text features, gradients, logits and
    everything after are float32, or float64 where the model is.
    """

    name: str
    model: nn.Module
    tokenizer: Tokenizer = field(repr=False)
    preprocess: Mapping[str, Any] = field(repr=False)
    precision: str = "float32"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise InputError(f"precision must be one of {', '.join(PRECISIONS)}, not {self.precision!r}.")
        if low := [n for n, p in self.model.named_parameters() if p.dtype in (torch.float16, torch.bfloat16)]:
            raise InputError(
                f"The weights of {self.name} are in half precision ({low[0]}, ...). Call model.float() first and set "
                "precision='float16' or 'bfloat16': the image encoder then runs in it, the text side stays exact."
            )
        self.model.eval().requires_grad_(False)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Floating type of the features: the logit scale keeps the type in which the model was made."""
        return torch.promote_types(self._parameter("logit_scale").dtype, torch.float32)

    @cached_property
    def logit_scale(self) -> float:
        """The factor 1/tau_clip of Eq. 1, about 100 for CLIP. A logit bias cancels in every softmax and is left out."""
        return float(self._parameter("logit_scale").detach().double().exp())

    @cached_property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the pixels that the image encoder takes."""
        size = self.preprocess["size"]
        return (int(size), int(size)) if isinstance(size, int) else (int(size[0]), int(size[1]))

    @cached_property
    def weights_hash(self) -> str:
        """SHA-256 over names, types, shapes and bytes of all weights: the same for the same weights on any device."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            data = tensor.detach().cpu().contiguous()
            digest.update(f"{name}|{data.dtype}|{tuple(data.shape)}|".encode())
            digest.update(data.reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    @property
    def half_text(self) -> bool:
        """Whether the text tower runs in half precision under tuned contexts."""
        return self.precision != "float32" and self.device.type == "cuda"

    @own_modes()
    def encode_images(self, pixels: Tensor, batch_size: int | None = None) -> Tensor:
        """L2-normalised image features `(..., D)` of normalised pixels `(..., 3, H, W)`, `batch_size` at a time.

        By default 256 on a GPU, fewer on one with little memory, and 8 on a CPU.

        >>> import cots, torch
        >>> backbone = cots.load("random:ViT-B-32")
        >>> backbone.encode_images(torch.zeros(2, 3, 224, 224)).shape
        torch.Size([2, 512])
        """
        height, width = self.image_size
        if pixels.ndim < 4 or pixels.shape[-3:] != (3, height, width):
            raise InputError(
                f"pixels must have shape (..., 3, {height}, {width}) for {self.name}, not {tuple(pixels.shape)}. "
                "cots.make_views(image, ViewSettings.from_preprocess(backbone.preprocess), seed) makes them."
            )
        flat = pixels.reshape(-1, 3, height, width)
        if len(flat) == 0:
            raise InputError("pixels hold no image: a leading dimension is 0.")
        size = batch_size or self._images_at_once
        parts = [self._encode(chunk) for chunk in flat.split(size)]
        return torch.cat(parts).reshape(*pixels.shape[:-3], -1)

    def samples_at_once(self, views: int) -> int:
        """How many samples of so many views a GPU encodes in one pass: 4, or as many as it has the memory for."""
        return max(1, min(GPU_SAMPLES, self._images_at_once // views))

    @property
    def _images_at_once(self) -> int:
        return scale_to_memory(_AT_ONCE.get(self.device.type, _AT_ONCE["cuda"]), self.device)

    def tokenize(self, texts: Sequence[str], context_length: int | None = None) -> Tensor:
        """Token ids `(len(texts), context_length)`, padded, on the model's device."""
        return self.tokenizer(list(texts), context_length=context_length or self.context_length).to(self.device)

    @cached_property
    def context_length(self) -> int:
        tower = getattr(self.model, "text", self.model)
        length = getattr(tower, "context_length", None) or getattr(self.tokenizer, "context_length", None)
        if length is None:
            raise InputError(f"{self.name}: neither the text tower nor the tokenizer says its context_length.")
        return int(length)

    @torch.no_grad()
    def forward_images(self, pixels: Tensor) -> Tensor:
        """As `encode_images`, in one piece and through the model's own modules, so that hooks on them run."""
        low = PRECISIONS[self.precision]
        with torch.autocast(self.device.type, dtype=low, enabled=low is not None):
            features = self.model.encode_image(pixels.to(self.device, self.dtype))  # type: ignore[operator]
        return nn.functional.normalize(features.to(self.dtype), dim=-1)

    @cached_property
    def _tower(self) -> ImageTower | None:
        visual = getattr(self.model, "visual", None)
        return ImageTower(visual, PRECISIONS[self.precision] or self.dtype) if ImageTower.supports(visual) else None

    @torch.no_grad()
    def _encode(self, pixels: Tensor) -> Tensor:
        if self._tower is None:
            return self.forward_images(pixels)
        features = self._tower.features(pixels.to(self.device, non_blocking=True))
        return nn.functional.normalize(features, dim=-1)

    def _parameter(self, name: str) -> Tensor:
        parameter = getattr(self.model, name, None)
        if not isinstance(parameter, Tensor):
            raise InputError(f"{self.name} has no `{name}`: cots needs a contrastive (CLIP-like) open_clip model.")
        return parameter
