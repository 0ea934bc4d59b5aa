"""`cots.load`: from the name of a model to a Backbone."""

from importlib.resources import files
from pathlib import Path

import torch

from .._arrays import own_modes
from .._checks import one_of
from .._errors import InputError, unknown_name
from ._backbone import PRECISIONS, Backbone, Tokenizer
from ._mini import mini_parts

EMBEDDED = "mini"
KINDS = ("random", "local-dir", "hf-hub")
SPEC_HELP = (
    "Use mini, ARCH/TAG (such as ViT-B-16/openai), ARCH//path/to/weights, hf-hub:ORG/NAME, local-dir:/folder "
    "or random:ARCH."
)


@own_modes()
def load(
    name: str = EMBEDDED,
    pretrained: str | None = None,
    *,
    device: str | torch.device | None = None,
    precision: str = "float32",
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
    quick_gelu: bool | None = None,
) -> Backbone:
    """Load a vision-language model with its tokenizer and its preprocessing.

    | name | model |
    |---|---|
    | `mini` (default) | the small model that comes with cots; works offline |
    | `ViT-B-16/openai`, `RN50/openai`, `ViT-B-16-SigLIP/webli`, ... | architecture and weights tag of open_clip |
    | `ViT-B-16//models/ViT-B-16.pt` | architecture and a weights file |
    | `hf-hub:org/name` | a model repository on the Hugging Face Hub |
    | `local-dir:/folder` | a folder with open_clip_config.json and weights |
    | `random:ViT-B-16` | random weights drawn from `seed`, for tests and benchmarks |

    `pretrained`: the tag or file, where it is not part of the name, as in `cots.load("ViT-B-16", "openai")`.
    Architectures and tags match in any case and with / for -, such as "ViT-B/16".

    `device` defaults to the GPU, if any. `tokenizer` replaces the model's own. `quick_gelu` overrides the activation
    that the weights were trained with; by default it follows the tag, the config or the file.

    >>> import cots
    >>> cots.load("mini").logit_scale
    66.11...
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    _check_device(device)
    one_of("precision", precision, PRECISIONS)
    kind, _, rest = name.partition(":")
    named = name == EMBEDDED or (kind in KINDS and bool(rest))
    if named and pretrained is not None:
        raise InputError(f"{name} has its own weights, so pretrained={pretrained!r} has no effect; remove it.")
    name = name if pretrained is None else f"{name}/{pretrained}"
    if not named and "/" not in name:
        raise unknown_name("model", name, [EMBEDDED], SPEC_HELP)
    folder = Path(str(files("cots"))) / "embedded" / EMBEDDED
    if name == EMBEDDED and not quick_gelu:
        model, own, preprocess = mini_parts(folder)
    else:
        from ._open_clip import canonical, parts_of  # imports open_clip, torchvision and timm: seconds

        name = name if named else canonical(name)
        spec = f"local-dir:{folder}" if name == EMBEDDED else name
        model, own, preprocess = parts_of(spec, seed, tokenizer, quick_gelu)
    parts = {"tokenizer": tokenizer or own, "preprocess": preprocess}
    return Backbone(name=name, model=model.to(device), precision=precision, **parts)


def _check_device(device: str | torch.device) -> None:
    """Refuse an unusable device before downloading a model for it."""
    try:
        torch.empty(0, device=device)
    # Torch raises an AssertionError if it was built without CUDA.
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"device {str(device)!r} cannot be used ({reason}). Use cpu, or omit device.") from None
