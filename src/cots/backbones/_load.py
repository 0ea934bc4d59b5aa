"""`cots.load`: from the name of a model to a Backbone; and the models that `cots ls models` lists."""

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from .._arrays import own_modes
from .._errors import InputError, one_of, unknown_name
from ._backbone import PRECISIONS, Backbone
from ._mini import mini_parts

EMBEDDED = "mini"
KINDS = ("random", "local-dir", "hf-hub")
SPEC_HELP = (
    "Use mini, ARCH/TAG (such as ViT-B-16/openai), ARCH//path/to/weights, ORG/NAME on the hub, local-dir:/folder "
    "or random:ARCH."
)


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
    one_of("precision", precision, PRECISIONS)
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


UNKNOWN = "unknown"
# name; parameters of both towers in millions; pretraining data; licence under which its authors publish the weights
_TABLE = """
mini; 8; ImageNet (image tower), Pets, Caltech-101, Flowers; Apache-2.0
RN50/openai; 102; WIT-400M; MIT
RN101/openai; 120; WIT-400M; MIT
ViT-B-32/openai; 151; WIT-400M; MIT
ViT-B-16/openai; 150; WIT-400M; MIT
ViT-L-14/openai; 428; WIT-400M; MIT
ViT-L-14-336/openai; 428; WIT-400M; MIT
ViT-B-32/laion2b_s34b_b79k; 151; LAION-2B; MIT
ViT-B-16/laion2b_s34b_b88k; 150; LAION-2B; MIT
ViT-L-14/laion2b_s32b_b82k; 428; LAION-2B; MIT
ViT-H-14/laion2b_s32b_b79k; 986; LAION-2B; MIT
convnext_base_w/laion2b_s13b_b82k; 179; LAION-2B; MIT
ViT-B-32/datacomp_xl_s13b_b90k; 151; DataComp-1B; MIT
ViT-B-16/datacomp_xl_s13b_b90k; 150; DataComp-1B; MIT
ViT-L-14/datacomp_xl_s13b_b90k; 428; DataComp-1B; MIT
ViT-B-16/metaclip_400m; 150; MetaCLIP-400M; CC-BY-NC-4.0
ViT-B-16/metaclip_fullcc; 150; MetaCLIP-2.5B; CC-BY-NC-4.0
ViT-B-16/dfn2b; 150; DFN-2B; Apple's own
EVA02-B-16/merged2b_s8b_b131k; 150; LAION-2B, COYO-700M; MIT
EVA02-L-14/merged2b_s4b_b131k; 428; LAION-2B, COYO-700M; MIT
ViT-B-16-SigLIP/webli; 203; WebLI; Apache-2.0
ViT-L-16-SigLIP-256/webli; 652; WebLI; Apache-2.0
ViT-SO400M-14-SigLIP/webli; 877; WebLI; Apache-2.0
ViT-B-16-SigLIP2/webli; 375; WebLI; Apache-2.0
ViT-L-16-SigLIP2-256/webli; 882; WebLI; Apache-2.0
"""
_FORMS = ("ORG/NAME on the Hugging Face Hub", "local-dir:DIR", "ARCH//FILE", "random:ARCH")


def known_models(everything: bool = False) -> Iterator[tuple[str, str, str, str]]:
    """(name, parameters, data, licence) of each model; with `everything`, of every tag of open_clip."""
    rows = {row[0]: row for row in (tuple(line.split("; ")) for line in _TABLE.strip().splitlines())}
    for name, millions, data, licence in rows.values():
        yield name, f"{millions} M", data, licence
    if everything:
        import open_clip

        for arch, tag in open_clip.list_pretrained():
            if (name := f"{arch}/{tag}") not in rows:
                yield name, UNKNOWN, UNKNOWN, UNKNOWN
    for form in _FORMS:
        yield form, "", "", ""
