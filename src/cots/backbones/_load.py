"""`cots.load`: a backbone from a name or from a model of transformers."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from .._arrays import default_modes
from .._errors import InputError, check_one_of, unknown_name
from ._backbone import PRECISIONS, Backbone
from ._catalogue import EMBEDDED, KINDS, SPEC_HELP
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
