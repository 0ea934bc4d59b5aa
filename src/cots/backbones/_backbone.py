"""A loaded dual encoder with its tokenizer and preprocessing."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._arrays import default_modes
from .._errors import InputError, check_one_of
from ..accelerate import accelerator
from ._mini import FixedText

Tokenizer = Callable[..., Tensor]

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SAMPLES = 4  # per pass of the image encoder, where the views of one do not fill it


@dataclass(frozen=True, eq=False, kw_only=True)
class Backbone:
    """An open_clip model with the tokenizer and the preprocessing of its weights.

    `cots.load` makes one from a name. To use your own model, pass the three parts:

        backbone = cots.Backbone(name="mine", model=model, tokenizer=tokenizer, preprocess=model.visual.preprocess_cfg)

    `precision` applies to the image encoder's matrix products: "float32", "bfloat16" or "float16". On a GPU, half
    precision also runs the text tower under tuned contexts in float16. Zero-shot text features, gradients and logits
    stay in float32, or float64 if the model is in float64.
    """

    name: str
    model: nn.Module = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    preprocess: Mapping[str, Any] = field(repr=False)
    precision: str = "float32"
    loader: Callable[..., "Backbone"] | None = field(default=None, repr=False)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy in another process loads the model again, if `cots.load` made this one from a name."""
        if self.loader is None:
            return super().__reduce_ex__(protocol)
        return _reload, (self.loader, str(self.device), self.precision, self.weights_hash)

    def __post_init__(self) -> None:
        check_one_of("precision", self.precision, PRECISIONS)
        if low := [n for n, p in self.model.named_parameters() if p.dtype in (torch.float16, torch.bfloat16)]:
            raise InputError(
                f"The weights of {self.name} are in half precision ({low[0]}, ...). Call model.float() and set "
                "precision='float16' or 'bfloat16' to run the image encoder in half precision."
            )
        _check_traits(self.name, getattr(self.model, "traits", None))
        self.model.eval().requires_grad_(False)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """dtype of the features: that of the logit scale, at least float32."""
        return torch.promote_types(self._log_scale.dtype, torch.float32)

    @cached_property
    def logit_scale(self) -> float:
        """1/tau_clip of Eq. 1, about 100 for CLIP. A logit bias cancels in every softmax and is omitted."""
        return float(self._log_scale.detach().double().exp())

    @cached_property
    def logit_bias(self) -> float | None:
        """The bias of a model that was trained with sigmoids, such as SigLIP; None for others."""
        bias = getattr(self.model, "logit_bias", None)
        return None if bias is None else float(bias.detach())

    @cached_property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the input of the image encoder."""
        size = self.preprocess["size"]
        return (int(size), int(size)) if isinstance(size, int) else (int(size[0]), int(size[1]))

    @cached_property
    def weights_hash(self) -> str:
        """SHA-256 of the names, dtypes, shapes and bytes of all weights; independent of the device."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            data = tensor.detach().cpu().contiguous()
            digest.update(f"{name}|{data.dtype}|{tuple(data.shape)}|".encode())
            digest.update(data.reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    @default_modes()
    def encode_images(self, pixels: Tensor, batch_size: int | None = None) -> Tensor:
        """L2-normalised image features `(..., D)` of normalised pixels `(..., 3, H, W)`.

        `batch_size` images are encoded at a time; default: 4 on a CPU (up to 16 for `mini`) and 256 on a GPU, fewer if
        its memory is small.

        >>> import cots, torch
        >>> backbone = cots.load("mini")
        >>> backbone.encode_images(torch.zeros(2, 3, 224, 224)).shape
        torch.Size([2, 256])
        """
        height, width = self.image_size
        if pixels.ndim < 4 or pixels.shape[-3:] != (3, height, width) or not pixels.numel():
            raise InputError(
                f"pixels must have shape (..., 3, {height}, {width}) and at least one image for {self.name}, not "
                f"{tuple(pixels.shape)}. Use cots.make_views with ViewSettings.from_preprocess(backbone.preprocess)."
            )
        encoded = self._image_encoder(pixels.reshape(-1, 3, height, width), batch_size)
        return encoded.reshape(*pixels.shape[:-3], -1)

    def samples_at_once(self, views: int, most: int = _SAMPLES) -> int:
        """Number of samples with `views` views each to encode per pass: up to `most`, if their images fit."""
        return max(1, min(most, self._image_encoder.at_once // views))

    def tokenize(self, texts: Sequence[str], context_length: int | None = None) -> Tensor:
        """Token ids `(len(texts), context_length)`, padded, on the model's device."""
        return self.tokenizer(list(texts), context_length=context_length or self.context_length).to(self.device)

    @cached_property
    def context_length(self) -> int:
        tower = getattr(self.model, "text", self.model)
        length = getattr(tower, "context_length", None) or getattr(self.tokenizer, "context_length", None)
        if length is None:
            raise InputError(f"{self.name}: set context_length on the text tower or on the tokenizer.")
        return int(length)

    def forward_images(self, pixels: Tensor) -> Tensor:
        """Like `encode_images`, but in one batch and through the model's own modules, so that their hooks run."""
        return ImageEncoder(self).encode(pixels)

    @property
    def _image_encoder(self) -> "ImageEncoder":
        return accelerator().image_encoder(self) or ImageEncoder(self)

    @property
    def _log_scale(self) -> Tensor:
        parameter = getattr(self.model, "logit_scale", None)
        if not isinstance(parameter, Tensor):
            raise InputError(f"{self.name} has no `logit_scale`; use a contrastive (CLIP-like) open_clip model.")
        return parameter


def _check_traits(name: str, traits: Any) -> None:
    """Refuse what open_clip from version 4 on says that cots cannot use; models of earlier versions say nothing."""
    if traits is None:
        return
    problem = ""
    if not getattr(traits, "contrastive", True):
        problem = "is a generative model without a contrastive loss"
    elif getattr(traits, "image_input", "fixed") != "fixed":
        problem = "does not take images of a fixed size"
    if problem:
        raise InputError(f"{name} {problem}. Use a contrastive (CLIP-like) model for photos of a fixed size.")


def _reload(loader: Callable[..., Backbone], device: str, precision: str, weights_hash: str) -> Backbone:
    backbone = loader(device=device, precision=precision)
    if backbone.weights_hash != weights_hash:
        raise InputError(f"{backbone.name} has other weights here than where it was pickled. Use the same files.")
    return backbone


class ImageEncoder:
    """L2-normalised features `(N, D)` of images `(N, 3, H, W)` through the model's own forward.

    - model: in place of the backbone's
    """

    def __init__(self, backbone: Backbone, model: nn.Module | None = None) -> None:
        self.model: Any = model or backbone.model
        self.device, self.dtype = backbone.device, backbone.dtype
        self.precision = PRECISIONS[backbone.precision]

    @property
    def at_once(self) -> int:
        """Images per pass."""
        return accelerator().batch_limit("images", self.device)

    def __call__(self, pixels: Tensor, batch_size: int | None = None) -> Tensor:
        """The features of any number of images, `batch_size` or `at_once` per pass."""
        parts = [self.encode(part) for part in pixels.split(batch_size or self.at_once)]
        return torch.cat(parts)

    @torch.no_grad()
    def encode(self, pixels: Tensor) -> Tensor:
        """The features of the images of one pass."""
        pixels = pixels.to(self.device, self.dtype)
        with torch.autocast(self.device.type, dtype=self.precision, enabled=self.precision is not None):
            features = self.model.encode_image(pixels)
        return F.normalize(features.to(self.dtype), dim=-1)


def fixed_backbone(
    name: str, classes: Sequence[str], features: Tensor, logit_scale: float, device: str | torch.device
) -> Backbone:
    """A backbone with text features only, for precomputed view features."""
    model = FixedText(classes, features, logit_scale).to(device)
    return Backbone(name=name, model=model, tokenizer=_no_tokenizer, preprocess={"size": 1})


def _no_tokenizer(texts: Sequence[str], context_length: int | None = None) -> Tensor:
    raise InputError("This backbone has text features only; load a model to encode other texts.")
