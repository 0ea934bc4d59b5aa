"""A loaded dual encoder with its tokenizer and preprocessing."""

import copy
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._arrays import one_thread_each, own_modes
from .._errors import InputError, one_of
from .._kernels import Recorded, scale_to_memory
from ._blocks import ImageTower
from ._fold import fold_batch_norms

Tokenizer = Callable[..., Tensor]

_GPU_SAMPLES = 4  # per pass: the 64 views of one sample do not fill a GPU
_AT_ONCE = {"cpu": 4, "cuda": 256}  # images per pass; the activations of a few fit in a CPU's cache
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


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
    model: nn.Module
    tokenizer: Tokenizer = field(repr=False)
    preprocess: Mapping[str, Any] = field(repr=False)
    precision: str = "float32"

    def __post_init__(self) -> None:
        one_of("precision", self.precision, PRECISIONS)
        if low := [n for n, p in self.model.named_parameters() if p.dtype in (torch.float16, torch.bfloat16)]:
            raise InputError(
                f"The weights of {self.name} are in half precision ({low[0]}, ...). Call model.float() and set "
                "precision='float16' or 'bfloat16' to run the image encoder in half precision."
            )
        self.model.eval().requires_grad_(False)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """dtype of the features: that of the logit scale, at least float32."""
        return torch.promote_types(self._parameter("logit_scale").dtype, torch.float32)

    @cached_property
    def logit_scale(self) -> float:
        """1/tau_clip of Eq. 1, about 100 for CLIP. A logit bias cancels in every softmax and is omitted."""
        return float(self._parameter("logit_scale").detach().double().exp())

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

    @property
    def half_text(self) -> bool:
        """Whether the text tower runs in half precision under tuned contexts."""
        return self.precision != "float32" and self.device.type == "cuda"

    @own_modes()
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
        flat = pixels.reshape(-1, 3, height, width)
        chunks = flat.split(batch_size or self._images_at_once)
        threaded = self.device.type == "cpu" and self._tower is None and self._folded is not None and len(chunks) > 1
        if threaded and torch.get_num_threads() > 1:
            with one_thread_each(on_cpu=True) as pool:
                parts = list(pool.map(self._encode, chunks))
        else:
            parts = list(map(self._encode, chunks))
        return torch.cat(parts).reshape(*pixels.shape[:-3], -1)

    def prepare_images(self) -> None:
        """Compute now what `encode_images` needs once per model."""
        _ = self._tower or self._folded

    def samples_at_once(self, views: int) -> int:
        """Number of samples with `views` views each that a GPU encodes per pass: 4, or fewer if memory is small."""
        return max(1, min(_GPU_SAMPLES, self._images_at_once // views))

    @property
    def _images_at_once(self) -> int:
        images = _AT_ONCE.get(self.device.type, _AT_ONCE["cuda"])
        if self.device.type == "cpu":  # the 64 views of one sample keep many cores busy too
            most = getattr(getattr(self.model, "visual", None), "images_at_once", images)
            images = max(images, min(most, 32 // torch.get_num_threads()))
        return scale_to_memory(images, self.device)

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
        return self._forward(self.model, pixels.to(self.device, self.dtype))

    @cached_property
    def _tower(self) -> ImageTower | None:
        visual = getattr(self.model, "visual", None)
        return ImageTower(visual, PRECISIONS[self.precision] or self.dtype) if ImageTower.supports(visual) else None

    @cached_property
    def _folded(self) -> nn.Module | None:
        """A copy of the model with folded batch norms, with channels-last weights on a CPU; None if there are none."""
        visual = getattr(self.model, "visual", None)
        if visual is None:
            return None
        example = torch.linspace(-1, 1, 3 * math.prod(self.image_size), dtype=self.dtype, device=self.device)
        cpu = self.device.type == "cpu"
        pack = cpu and self.dtype == torch.float32 and self.precision == "float32"
        folded = fold_batch_norms(visual, example.reshape(1, 3, *self.image_size), pack)
        if folded is None:
            return None
        model = copy.copy(self.model)
        model._modules = self.model._modules | {
            "visual": folded.to(memory_format=torch.channels_last) if cpu else folded
        }
        return model

    @cached_property
    def _replay(self) -> Recorded:
        return Recorded(lambda pixels: self._through(self._tower, pixels))

    @staticmethod
    @torch.no_grad()
    def _through(tower: ImageTower | None, pixels: Tensor) -> tuple[Tensor, ...]:
        assert tower is not None
        return (F.normalize(tower.features(pixels), dim=-1),)

    def _encode(self, pixels: Tensor) -> Tensor:
        if self._tower is not None:
            pixels = pixels.to(self.device, non_blocking=True)
            # Also large passes: in a server, other threads hold the interpreter's lock between two launches.
            replayed = self._replay(pixels) if len(pixels) <= self._images_at_once else None
            return self._through(self._tower, pixels)[0] if replayed is None else replayed[0]
        if self._folded is None:
            return self.forward_images(pixels)
        return self._forward(self._folded, pixels.to(self.device, self.dtype))

    @torch.no_grad()
    def _forward(self, model: nn.Module, pixels: Tensor) -> Tensor:
        low = PRECISIONS[self.precision]
        with torch.autocast(self.device.type, dtype=low, enabled=low is not None):
            features = model.encode_image(pixels)  # type: ignore[operator]
        return F.normalize(features.to(self.dtype), dim=-1)

    def _parameter(self, name: str) -> Tensor:
        parameter = getattr(self.model, name, None)
        if not isinstance(parameter, Tensor):
            raise InputError(f"{self.name} has no `{name}`; use a contrastive (CLIP-like) open_clip model.")
        return parameter


class FixedText(nn.Module):
    """Text features (K,D) of `classes` and a logit scale in place of a model; it encodes nothing."""

    def __init__(self, classes: Sequence[str], features: Tensor, logit_scale: float) -> None:
        super().__init__()
        self.classes = tuple(classes)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(logit_scale)))
        self.register_buffer("features", F.normalize(features.float(), dim=-1))

    def rows(self, names: Sequence[str]) -> Tensor:
        """The features of the classes `names`."""
        place = range(len(names)) if tuple(names) == self.classes else map(self.classes.index, names)
        return self.get_buffer("features")[list(place)]


def fixed_backbone(
    name: str, classes: Sequence[str], features: Tensor, logit_scale: float, device: str | torch.device
) -> Backbone:
    """A backbone with text features only, for precomputed view features."""
    model = FixedText(classes, features, logit_scale).to(device)
    return Backbone(name=name, model=model, tokenizer=_no_tokenizer, preprocess={"size": 1})


def _no_tokenizer(texts: Sequence[str], context_length: int | None = None) -> Tensor:
    raise InputError("This backbone has text features only; load a model to encode other texts.")
