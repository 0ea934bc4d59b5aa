"""`cots.load` and its result: a dual encoder with its tokenizer and preprocessing; the models of `cots ls models`."""

import csv
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._arrays import one_thread_each, own_modes
from .._errors import InputError, check_one_of, unknown_name
from ..accelerate import accelerator
from ..fast.memory import scale_to_memory
from ._fold import fold_model
from ._mini import FixedText, mini_parts

Tokenizer = Callable[..., Tensor]

_GPU_SAMPLES = 4  # per pass: the 64 views of one sample do not fill a GPU
_AT_ONCE = {"cpu": 4, "cuda": 256}  # images per pass; the activations of a few fit in a CPU's cache
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
EMBEDDED = "mini"
KINDS = ("random", "local-dir", "hf-hub")
SPEC_HELP = (
    "Use mini, ARCH/TAG (such as ViT-B-16/openai), ARCH//path/to/weights, ORG/NAME on the hub, local-dir:/folder "
    "or random:ARCH."
)
_FORMS = ("ORG/NAME on the Hugging Face Hub", "local-dir:DIR", "ARCH//FILE", "random:ARCH")


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
        check_one_of("precision", self.precision, PRECISIONS)
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
        return torch.promote_types(self._log_scale.dtype, torch.float32)

    @cached_property
    def logit_scale(self) -> float:
        """1/tau_clip of Eq. 1, about 100 for CLIP. A logit bias cancels in every softmax and is omitted."""
        return float(self._log_scale.detach().double().exp())

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
    def _tower(self) -> Any:
        from ..fast.image_tower import ImageTower  # behind the door once Backbone asks for `image_encoder`

        visual = getattr(self.model, "visual", None)
        return ImageTower(visual, PRECISIONS[self.precision] or self.dtype) if ImageTower.supports(visual) else None

    @cached_property
    def _folded(self) -> nn.Module | None:
        pixels = torch.linspace(-1, 1, 3 * math.prod(self.image_size), dtype=self.dtype, device=self.device)
        return fold_model(self.model, pixels.reshape(1, 3, *self.image_size), pack=self.precision == "float32")

    @torch.no_grad()
    def _through_tower(self, pixels: Tensor) -> tuple[Tensor, ...]:
        assert self._tower is not None
        return (F.normalize(self._tower.features(pixels), dim=-1),)

    def _encode(self, pixels: Tensor) -> Tensor:
        if self._tower is not None:
            pixels = pixels.to(self.device, non_blocking=True)
            # Also large passes: in a server, other threads hold the interpreter's lock between two launches.
            if len(pixels) > self._images_at_once:
                return self._through_tower(pixels)[0]
            return accelerator().compiled(self._through_tower, self)(pixels)[0]
        return self._forward(self._folded or self.model, pixels.to(self.device, self.dtype))

    @torch.no_grad()
    def _forward(self, model: nn.Module, pixels: Tensor) -> Tensor:
        low = PRECISIONS[self.precision]
        with torch.autocast(self.device.type, dtype=low, enabled=low is not None):
            features = model.encode_image(pixels)  # type: ignore[operator]
        return F.normalize(features.to(self.dtype), dim=-1)

    @property
    def _log_scale(self) -> Tensor:
        parameter = getattr(self.model, "logit_scale", None)
        if not isinstance(parameter, Tensor):
            raise InputError(f"{self.name} has no `logit_scale`; use a contrastive (CLIP-like) open_clip model.")
        return parameter


@own_modes()
def load(
    name: str | torch.nn.Module = EMBEDDED,
    pretrained: str | None = None,
    *,
    device: str | torch.device | None = None,
    precision: str = "float32",
    seed: int = 0,
    tokenizer: Any = None,
    quick_gelu: bool | None = None,
) -> Backbone:
    """Load a vision-language model with its tokenizer and preprocessing.

    | name | model |
    |---|---|
    | `mini` (default) | the small model that ships with cots; works offline |
    | `ViT-B-16/openai`, `RN50/openai`, `ViT-B-16-SigLIP/webli`, ... | architecture and weights tag of open_clip |
    | `ViT-B-16//models/ViT-B-16.pt` | architecture and a weights file |
    | `openai/clip-vit-base-patch16`, `hf-hub:org/name` | a repository on the Hugging Face Hub |
    | `local-dir:/folder`, `models/folder` | a folder with open_clip_config.json or config.json, and weights |
    | a model object | `CLIPModel` or `SiglipModel` of transformers |
    | `random:ViT-B-16` | random weights drawn from `seed`, for tests and benchmarks |

    `pretrained`: the tag or file if it is not part of the name, as in `cots.load("ViT-B-16", "openai")`.
    Architectures and tags match in any case and with / for -, such as "ViT-B/16". `CLIPModel` and `SiglipModel`, from
    repositories, folders or memory, are converted to open_clip's architecture.

    `device` defaults to the GPU, if any. `tokenizer` replaces the model's own: a function, or a tokenizer or processor
    of transformers. `quick_gelu` overrides the activation of the model; by default it follows the tag, config or file.

    >>> import cots
    >>> cots.load("mini").logit_scale
    66.11...
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    _check_device(device)
    check_one_of("precision", precision, PRECISIONS)
    kind, _, rest = name.partition(":") if isinstance(name, str) else ("", "", "")
    named = not isinstance(name, str) or name == EMBEDDED or (kind in KINDS and bool(rest))
    if named and pretrained is not None:
        shown = name if isinstance(name, str) else "A model object"
        raise InputError(f"{shown} has its own weights, so pretrained={pretrained!r} has no effect; remove it.")
    folder = Path(str(files("cots"))) / "embedded" / EMBEDDED
    if not isinstance(name, str):
        from ._hugging_face import parts_of_model

        name, model, tokenizer, preprocess = parts_of_model(name, tokenizer, quick_gelu)
    elif name == EMBEDDED and not quick_gelu:
        model, own, preprocess = mini_parts(folder)
        tokenizer = tokenizer or own
    else:
        name = name if pretrained is None else f"{name}/{pretrained}"
        if not named and "/" not in name:
            raise unknown_name("model", name, [EMBEDDED], SPEC_HELP)
        from ._open_clip import canonical, parts_of  # slow: imports open_clip, torchvision and timm

        spec = f"local-dir:{folder}" if name == EMBEDDED else name if named else canonical(name)
        name = name if spec.startswith(("hf-hub:", "local-dir:")) else spec
        model, tokenizer, preprocess = parts_of(spec, seed, tokenizer, quick_gelu)
    return Backbone(name=name, model=model.to(device), tokenizer=tokenizer, preprocess=preprocess, precision=precision)


def _check_device(device: str | torch.device) -> None:
    """Refuse an unusable device before downloading a model for it."""
    try:
        torch.empty(0, device=device)
    # Torch raises an AssertionError if it was built without CUDA.
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"device {str(device)!r} cannot be used ({reason}). Use cpu, or omit device.") from None


def known_models(everything: bool = False) -> Iterator[tuple[str, str, str, str]]:
    """(name, parameters, data, licence) of each model; with `everything`, of every tag of open_clip."""
    _, *lines = (files("cots") / "embedded" / "models.csv").read_text(encoding="utf-8").splitlines()
    rows = {row[0]: row for row in csv.reader(lines, delimiter=";", skipinitialspace=True)}
    for name, millions, data, licence in rows.values():
        yield name, f"{millions} M", data, licence
    if everything:
        import open_clip

        for arch, tag in open_clip.list_pretrained():
            if (name := f"{arch}/{tag}") not in rows:
                yield name, "unknown", "unknown", "unknown"
    for form in _FORMS:
        yield form, "", "", ""


def fixed_backbone(
    name: str, classes: Sequence[str], features: Tensor, logit_scale: float, device: str | torch.device
) -> Backbone:
    """A backbone with text features only, for precomputed view features."""
    model = FixedText(classes, features, logit_scale).to(device)
    return Backbone(name=name, model=model, tokenizer=_no_tokenizer, preprocess={"size": 1})


def _no_tokenizer(texts: Sequence[str], context_length: int | None = None) -> Tensor:
    raise InputError("This backbone has text features only; load a model to encode other texts.")
