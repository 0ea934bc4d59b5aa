"""Load open_clip models and tokenizers by name, with a remedy in every error.

Importing this module takes seconds, because it imports open_clip, torchvision and timm; only `load` does.
"""

import difflib
import hashlib
import json
import logging
import re
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import open_clip
import torch
from huggingface_hub import constants, hf_hub_download, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError

from .._checkpoints import check_unpacked_size, is_torchscript, one_line, read_weights
from .._errors import BackboneError, CotsError, InputError, install_extra, unknown_name
from .._hub import hub_host, hub_reachable
from ._backbone import Tokenizer
from ._catalogue import SPEC_HELP
from ._convert import CONFIG
from ._hugging_face import WEIGHTS, parts_of_folder, read_json
from ._mini import PrunedTokenizer

OPENAI_CACHE = Path("~/.cache/clip")
OPEN_CLIP_CONFIG = "open_clip_config.json"
_DEFAULT_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
_NOT_WEIGHTS = ("input_resolution", "context_length", "vocab_size")  # constants in OpenAI's archives
_OTHER_FILE = (
    " Pass a safetensors file, one of torch.save or an archive of OpenAI with the weights of this architecture."
)
_loading = threading.Lock()


def parts_of(
    spec: str, seed: int, tokenizer: Any, quick_gelu: bool | None
) -> tuple[torch.nn.Module, Tokenizer, Mapping[str, Any]]:
    """Model, tokenizer and preprocessing of a full name: random:, local-dir:, hf-hub: or `ARCH/WEIGHTS`; see `load`."""
    try:
        with _quiet():
            return _parts_of(spec, seed, tokenizer, quick_gelu)
    except CotsError:
        raise
    except Exception as error:  # files of others can raise nearly anything
        reason, remedy = one_line(error).rstrip("."), _how_to_fetch(spec) or _OTHER_FILE
        raise BackboneError(f"Could not load {spec}: {reason}.{remedy}") from error


def _parts_of(
    spec: str, seed: int, tokenizer: Any, quick_gelu: bool | None
) -> tuple[torch.nn.Module, Tokenizer, Mapping[str, Any]]:
    kind, _, rest = spec.partition(":")
    source = spec  # the name by which open_clip finds the tokenizer
    if kind == "local-dir":
        folder = Path(rest).expanduser()
        if (folder / CONFIG).is_file() and not (folder / OPEN_CLIP_CONFIG).is_file():
            return parts_of_folder(folder, tokenizer, quick_gelu)
        model, source = _local_dir(folder, quick_gelu), f"local-dir:{folder}"
    elif kind == "hf-hub":
        if (folder := _transformers_folder(spec, rest)) is not None:
            return parts_of_folder(folder, tokenizer, quick_gelu)
        model = _create(spec, _activation(quick_gelu, rest))
    elif kind == "random":
        source = _arch(rest)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = _create(source, quick_gelu, pretrained_text=False)
    else:
        source, _, weights = spec.partition("/")
        model = _arch_and_weights(spec, source, weights, quick_gelu)
    return model, tokenizer or _tokenizer(spec, source), open_clip.get_model_preprocess_cfg(model)


def _full_name(spec: str) -> str:
    """The name with its prefix: local-dir: for a model's folder, hf-hub: for ORG/NAME that is no architecture."""
    if any((Path(spec).expanduser() / config).is_file() for config in (OPEN_CLIP_CONFIG, CONFIG)):
        return f"local-dir:{spec}"
    known, (first, _, rest) = [arch.lower() for arch in open_clip.list_models()], spec.partition("/")
    hub = re.fullmatch(r"[\w.-]+/[\w.-]+", spec) and not Path(rest).is_file()
    return f"hf-hub:{spec}" if hub and not difflib.get_close_matches(first.lower(), known, n=1, cutoff=0.7) else spec


def _transformers_folder(spec: str, repository: str) -> Path | None:
    """The downloaded folder of a transformers model; None for open_clip models, which take precedence."""
    _check_reachable(spec, repository, [OPEN_CLIP_CONFIG, CONFIG])
    with suppress(EntryNotFoundError):
        _model_cfg(Path(hf_hub_download(repository, OPEN_CLIP_CONFIG)))
        return None
    folder = Path(snapshot_download(repository, allow_patterns=["*.json", "*.txt", "*.model", WEIGHTS[0]]))
    if not any(folder.glob(WEIGHTS[0])):
        folder = Path(snapshot_download(repository, allow_patterns=[WEIGHTS[1]]))
    return folder


def canonical(name: str) -> str:
    """`ARCH/TAG` or `ARCH/FILE` as open_clip spells it, from any case and with / for - in the architecture; other
    names with their prefix, as `_full_name` does."""
    if (full := _full_name(name)) != name:
        return full
    parts = name.split("/")
    for i in range(1, len(parts)):  # an architecture can have a slash in place of a dash, and a tag is a path
        arch, tag = _known("/".join(parts[:i]), open_clip.list_models()), "/".join(parts[i:])
        if arch is not None and tag:
            return f"{arch}/{_known(tag, open_clip.list_pretrained_tags_by_model(arch)) or tag}"
    arch = _known(name.rstrip("/"), open_clip.list_models()) or _arch(parts[0])
    tags = ", ".join(open_clip.list_pretrained_tags_by_model(arch)) or "none, so pass a file"
    raise InputError(f"{arch} needs the tag of its weights, as {arch}/TAG or pretrained=TAG. Known: {tags}.")


def _arch(name: str) -> str:
    arch = _known(name, open_clip.list_models())
    if arch is None:
        raise unknown_name("architecture", name, open_clip.list_models(), SPEC_HELP)
    return arch


def _known(name: str, known: Sequence[str]) -> str | None:
    """The known name that equals `name`, or else differs only in case and in / for -."""
    if name in known:
        return name
    for one in known:
        if one.lower().replace("/", "-") == name.lower().replace("/", "-"):
            return one
    return None


def _activation(quick_gelu: bool | None, origin: str) -> bool | None:
    """QuickGELU for weights from OpenAI, whose models all use it; a converted folder often loses the setting."""
    if quick_gelu is None and "openai" in origin.lower():
        return True
    return quick_gelu


def _model_cfg(config_file: Path) -> dict[str, Any]:
    """The architecture in an open_clip_config.json, which must not ask for code of its own."""
    model_cfg = read_json(config_file).get("model_cfg")
    if not isinstance(model_cfg, dict):
        raise BackboneError(f"{config_file} needs model_cfg, an object that describes the architecture. Copy it again.")
    if "trust_remote_code" in json.dumps(model_cfg):
        raise BackboneError(
            f"{config_file} asks to run code of its tokenizer (trust_remote_code), which cots never does. Remove the "
            "setting and pass tokenizer= to cots.load."
        )
    return model_cfg


def _local_dir(folder: Path, quick_gelu: bool | None) -> torch.nn.Module:
    model_cfg = _model_cfg(folder / OPEN_CLIP_CONFIG)
    if not any(file.suffix in {".safetensors", ".bin", ".pth"} for file in folder.iterdir()):
        raise BackboneError(f"{folder} has no weights. Put open_clip_model.safetensors next to the config.")
    if "quick_gelu" not in model_cfg:
        quick_gelu = _activation(quick_gelu, str(folder))
    return _create(f"local-dir:{folder}", quick_gelu)


def _arch_and_weights(name: str, arch: str, tag: str, quick_gelu: bool | None) -> torch.nn.Module:
    file = Path(tag).expanduser()
    pretrained = open_clip.get_pretrained_cfg(arch, tag)
    if pretrained:
        if quick_gelu is None and pretrained.get("quick_gelu"):
            # open_clip only warns if the architecture's config and the tag disagree; the tag is right.
            quick_gelu = True
        cached = _find_openai_file(pretrained)
        if cached is None:
            repository, _, filename = str(pretrained.get("hf_hub", "")).rpartition("/")
            _check_reachable(name, repository, [filename] if filename else _DEFAULT_FILES)
            return _create(arch, quick_gelu, pretrained=tag)
        file = cached
    if file.is_file():
        if file.suffix in (".npz", ".npy"):  # weights of JAX, which open_clip reads with NumPy
            check_unpacked_size(file)
        if is_torchscript(file) and quick_gelu is None:
            quick_gelu = True  # as all of OpenAI's models
        return _create(arch, quick_gelu, pretrained=str(file))
    tags = open_clip.list_pretrained_tags_by_model(arch)
    raise unknown_name(f"weights of {arch}", tag, tags, "Or pass the path of a weights file: ARCH//path/to/file.")


def _create(model_name: str, quick_gelu: bool | None, **options: Any) -> torch.nn.Module:
    """open_clip.create_model with cots's reader of weights."""
    if quick_gelu is not None:
        options["quick_gelu"] = quick_gelu
    with _own_reader():
        return open_clip.create_model(model_name, **options)


@contextmanager
def _own_reader() -> Iterator[None]:
    """Let open_clip read weights with `read_weights`, which executes nothing and reads TorchScript too."""
    with _loading:
        theirs = open_clip.factory.load_state_dict
        open_clip.factory.load_state_dict = _read_state_dict
        try:
            yield
        finally:
            open_clip.factory.load_state_dict = theirs


def _read_state_dict(checkpoint_path: str, **options: Any) -> dict[str, torch.Tensor]:
    state = {}
    for name, tensor in read_weights(Path(checkpoint_path)).items():
        if name not in _NOT_WEIGHTS:
            state[name.removeprefix("module.")] = tensor  # the prefix is that of distributed training
    if not state:
        raise ValueError(f"{checkpoint_path} has no tensors.")
    return state


def _tokenizer(name: str, source: str) -> Tokenizer:
    try:
        tokenizer = open_clip.get_tokenizer(source)
    except ModuleNotFoundError as error:
        raise BackboneError(
            f"The tokenizer of {name} needs the package {error.name!r}: {install_extra('hf')} "
            "(or pass tokenizer= to cots.load)."
        ) from None
    except Exception as error:
        raise BackboneError(
            f"The tokenizer of {name} could not be loaded: {one_line(error)}\n"
            "Go online once, or pass tokenizer= to cots.load."
        ) from error
    vocabulary = Path(source.removeprefix("local-dir:")) / "vocabulary.json"
    if source.startswith("local-dir:") and vocabulary.is_file():
        return PrunedTokenizer.from_file(tokenizer, vocabulary)
    return tokenizer


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence open_clip, which logs to the root logger and warns about choices that `load` makes itself."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(level)


def _check_reachable(name: str, repository: str, filenames: Sequence[str]) -> None:
    """Fail at once, with the remedy, if offline: the hub's client would retry for most of a minute."""
    if any(isinstance(try_to_load_from_cache(repository, file), str) for file in filenames):
        return
    if hub_reachable():
        return
    raise BackboneError(
        f"The weights of {name} are not on this machine and {hub_host()} cannot be reached.{_how_to_fetch(name)}"
    )


def _how_to_fetch(name: str) -> str:
    """How to get the weights onto a machine without a connection; empty for files."""
    if name.startswith("hf-hub:"):
        repository, url = name.removeprefix("hf-hub:"), ""
    else:
        config = open_clip.get_pretrained_cfg(*name.split("/", 1)) if "/" in name else None
        if not config:
            return ""
        repository, url = str(config.get("hf_hub", "")).rstrip("/"), str(config.get("url", ""))
    lines = [
        "",
        f"On a machine with a connection run: hf download {repository} --local-dir FOLDER",
        "  Copy FOLDER to this machine and load 'local-dir:FOLDER',",
        f"  or copy the repository's cache entry to {constants.HF_HUB_CACHE}.",
    ]
    if "openaipublic" in url:
        lines.append(f"Or download {url} to {OPENAI_CACHE / url.rsplit('/', 1)[-1]}.")
    return "\n".join(lines)


def _find_openai_file(config: Mapping[str, Any]) -> Path | None:
    """OpenAI's weights file in the cache of its `clip` package, checked against the published SHA-256."""
    url = str(config.get("url", ""))
    file = OPENAI_CACHE.expanduser() / url.rsplit("/", 1)[-1]
    if "openaipublic" not in url or not file.is_file():
        return None
    expected = url.split("/")[-2]
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != expected:
        raise BackboneError(f"{file} is damaged (SHA-256 {digest[:12]}, not {expected[:12]}). Download {url} again.")
    return file
