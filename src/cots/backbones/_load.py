"""`cots.load`: a model's name in, a Backbone out."""

from __future__ import annotations

import json
import logging
import warnings
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import open_clip
import torch

from .._arrays import own_modes
from .._errors import BackboneError, InputError, unknown_name
from ._backbone import Backbone, Tokenizer
from ._download import (
    DEFAULT_FILES,
    OPENAI_ACTIVATION,
    check_reachable,
    find_openai_file,
    how_to_fetch,
    openai_state_dict,
)
from ._tokens import PrunedTokenizer

EMBEDDED = "mini"
SPEC_HELP = (
    "Write mini, ARCH/TAG (such as ViT-B-16/openai), ARCH//path/to/weights, hf-hub:ORG/NAME, local-dir:/folder, "
    "or random:ARCH."
)


@own_modes()
def load(
    name: str = EMBEDDED,
    *,
    device: str | torch.device | None = None,
    precision: str = "float32",
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
    quick_gelu: bool | None = None,
) -> Backbone:
    """Load a vision-language model with its tokenizer and its preprocessing.

    | name | what it is |
    |---|---|
    | `mini` (default) | the small model that comes with cots; works offline |
    | `ViT-B-16/openai`, `RN50/openai`, `ViT-B-16-SigLIP/webli`, ... | architecture and weights tag of open_clip |
    | `ViT-B-16//models/ViT-B-16.pt` | architecture and a weights file |
    | `hf-hub:org/name` | a model repository of the hub |
    | `local-dir:/folder` | a folder with open_clip_config.json and weights |
    | `random:ViT-B-16` | random weights drawn from `seed`; for tests and benchmarks |

    `device` defaults to the GPU where there is one. `tokenizer` replaces the model's own. `quick_gelu` overrides the
    activation that the weights were trained with; by default it follows the tag, the config or the file itself.

    >>> import cots
    >>> cots.load("random:ViT-B-32").logit_scale
    14.285...
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    _check_device(device)
    place = f"local-dir:{files('cots') / 'embedded' / EMBEDDED}" if name == EMBEDDED else name
    kind, _, rest = place.partition(":")
    if kind == "random" and rest:
        model, source = _random(rest, seed, quick_gelu), rest
    elif kind == "local-dir" and rest:
        model, source = _local_dir(Path(rest).expanduser(), quick_gelu), f"local-dir:{Path(rest).expanduser()}"
    elif kind == "hf-hub" and rest:
        check_reachable(name, rest, ["open_clip_config.json"])
        openai = quick_gelu is None and "openai" in rest.lower()
        model, source = _create(name, name, quick_gelu=OPENAI_ACTIVATION if openai else quick_gelu), name
    elif "/" in name:
        model, source = _arch_and_weights(name, quick_gelu)
    else:
        raise unknown_name("model", name, [EMBEDDED], SPEC_HELP)
    tokenizer = tokenizer or _tokenizer(name, source)
    preprocess = open_clip.get_model_preprocess_cfg(model)
    return Backbone(name=name, model=model.to(device), tokenizer=tokenizer, preprocess=preprocess, precision=precision)


def _check_device(device: str | torch.device) -> None:
    """Refuse a device that is not there before a model is fetched for it."""
    try:
        torch.empty(0, device=device)
    # Torch raises an AssertionError where it was built without CUDA.
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"device {str(device)!r} cannot be used ({reason}): give cpu, or leave it out.") from None


def _random(arch: str, seed: int, quick_gelu: bool | None) -> torch.nn.Module:
    _check_arch(arch)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _create(arch, arch, quick_gelu=quick_gelu, pretrained_text=False)


def _local_dir(folder: Path, quick_gelu: bool | None) -> torch.nn.Module:
    config_file = folder / "open_clip_config.json"
    if not config_file.is_file():
        raise BackboneError(
            f"{config_file} does not exist. A local-dir: folder needs open_clip_config.json (keys model_cfg and "
            "preprocess_cfg) and a weights file such as open_clip_model.safetensors."
        )
    try:
        model_cfg = json.loads(config_file.read_text(encoding="utf-8"))["model_cfg"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise BackboneError(f"{config_file} is not an open_clip config with a model_cfg: {error!r}") from None
    weights = [f for f in sorted(folder.iterdir()) if f.suffix in {".safetensors", ".bin", ".pth"}]
    if not weights:
        raise BackboneError(f"{folder} holds no weights; put open_clip_model.safetensors beside the config.")
    if quick_gelu is None and "quick_gelu" not in model_cfg and "openai" in str(folder).lower():
        # A converted folder often loses this key; its name is then the only trace of where the weights come from.
        quick_gelu = OPENAI_ACTIVATION
    return _create(f"local-dir:{folder}", str(folder), quick_gelu=quick_gelu)


def _arch_and_weights(name: str, quick_gelu: bool | None) -> tuple[torch.nn.Module, str]:
    arch, _, tag = name.partition("/")
    _check_arch(arch)
    file = Path(tag).expanduser()
    pretrained = open_clip.get_pretrained_cfg(arch, tag)
    if pretrained:
        if quick_gelu is None and pretrained.get("quick_gelu"):
            # open_clip only warns when the architecture's config and the tag disagree; the tag is right.
            quick_gelu = True
        cached = find_openai_file(pretrained)
        if cached is None:
            repository, _, filename = str(pretrained.get("hf_hub", "")).rpartition("/")
            check_reachable(name, repository, [filename] if filename else DEFAULT_FILES)
            return _create(arch, name, pretrained=tag, quick_gelu=quick_gelu), arch
        file = cached
    if file.is_file():
        state = openai_state_dict(file)
        if state is None:
            return _create(arch, name, pretrained=str(file), quick_gelu=quick_gelu), arch
        model = _create(arch, name, quick_gelu=OPENAI_ACTIVATION if quick_gelu is None else quick_gelu)
        model.load_state_dict(state)
        return model, arch
    tags = open_clip.list_pretrained_tags_by_model(arch)
    raise unknown_name(f"weights of {arch}", tag, tags, "Or give the path of a weights file: ARCH//path/to/file.")


def _check_arch(arch: str) -> None:
    if open_clip.get_model_config(arch) is None:
        raise unknown_name("architecture", arch, open_clip.list_models(), SPEC_HELP)


def _create(model_name: str, what: str, quick_gelu: bool | None = None, **options: Any) -> torch.nn.Module:
    """open_clip.create_model, silent when all is well, with an error that says what to do when it is not."""
    if quick_gelu is not None:
        options["quick_gelu"] = quick_gelu
    with _quiet():
        try:
            return open_clip.create_model(model_name, **options)
        except InputError:
            raise
        except Exception as error:
            raise BackboneError(f"Could not load {what}: {error}\n{how_to_fetch(what)}") from error


def _tokenizer(name: str, source: str) -> Tokenizer:
    try:
        with _quiet():
            tokenizer = open_clip.get_tokenizer(source)
    except ModuleNotFoundError as error:
        raise BackboneError(
            f"The tokenizer of {name} needs the package {error.name!r}: pip install 'cots[hf]' "
            "(or pass tokenizer= to cots.load)."
        ) from None
    except Exception as error:
        raise BackboneError(
            f"The tokenizer of {name} could not be loaded: {error}\nFetch it once with a connection "
            "(it then stays in the hub's cache), or pass tokenizer= to cots.load."
        ) from error
    if source.startswith("local-dir:"):
        vocabulary = Path(source.removeprefix("local-dir:")) / "vocabulary.json"
        if vocabulary.is_file():
            return PrunedTokenizer.from_file(tokenizer, vocabulary)
    return tokenizer


@contextmanager
def _quiet():
    """open_clip logs on the root logger and warns of things that `load` decides itself."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(level)
