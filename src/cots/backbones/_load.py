"""`cots.load`: a backbone from a name or from a model of transformers."""

import functools
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from .._arrays import default_modes
from .._errors import InputError, check_one_of, unknown_name
from ._backbone import PRECISIONS, Backbone
from ._catalogue import EMBEDDED, KINDS, SPEC_HELP, similar_models
from ._mini import mini_parts


@default_modes()
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
    loader = None
    if tokenizer is None and isinstance(name, str):
        loader = functools.partial(load, name, pretrained, seed=seed, quick_gelu=quick_gelu)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    _check_device(device)
    check_one_of("precision", precision, PRECISIONS)
    if isinstance(name, str) and name != EMBEDDED:
        name, parts = _named(name, pretrained, seed, tokenizer, quick_gelu)
    elif pretrained is not None:
        raise _no_effect(name if isinstance(name, str) else "A model object", pretrained)
    elif isinstance(name, str):
        parts = _embedded(tokenizer, quick_gelu)
    else:
        from ._hugging_face import parts_of_model

        name, parts = parts_of_model(name, tokenizer, quick_gelu)
    model, tokenizer, preprocess = parts
    model.to(device)
    return Backbone(
        name=name, model=model, tokenizer=tokenizer, preprocess=preprocess, precision=precision, loader=loader
    )


def _embedded(tokenizer: Any, quick_gelu: bool | None) -> Sequence[Any]:
    folder = Path(str(files("cots"))) / "embedded" / EMBEDDED
    if quick_gelu:
        from ._open_clip import parts_of

        return parts_of(f"local-dir:{folder}", 0, tokenizer, quick_gelu)
    model, own, preprocess = mini_parts(folder)
    return model, tokenizer or own, preprocess


def _named(
    name: str, pretrained: str | None, seed: int, tokenizer: Any, quick_gelu: bool | None
) -> tuple[str, Sequence[Any]]:
    """The full name of a model, and its parts."""
    kind, _, rest = name.partition(":")
    complete = kind in KINDS and bool(rest)
    if complete and pretrained is not None:
        raise _no_effect(name, pretrained)
    if pretrained is not None:
        name = f"{name}/{pretrained}"
    if not complete and "/" not in name:
        raise unknown_name("model", name, [EMBEDDED, *similar_models(name)], SPEC_HELP)
    from ._open_clip import canonical, parts_of  # slow: imports open_clip, torchvision and timm

    spec = name if complete else canonical(name)
    if not spec.startswith(("hf-hub:", "local-dir:")):
        name = spec
    return name, parts_of(spec, seed, tokenizer, quick_gelu)


def _no_effect(model: str, pretrained: str) -> InputError:
    return InputError(f"{model} has its own weights, so pretrained={pretrained!r} has no effect; remove it.")


def _check_device(device: str | torch.device) -> None:
    """Refuse an unusable device before downloading a model for it."""
    try:
        torch.empty(0, device=device)
    # Torch raises an AssertionError if it was built without CUDA.
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"device {str(device)!r} cannot be used ({reason}). Use cpu, or omit device.") from None
