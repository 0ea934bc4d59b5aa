"""Where weights come from, and what to say when they cannot be had."""

from __future__ import annotations

import hashlib
import os
import socket
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import open_clip
import torch
from huggingface_hub import constants, try_to_load_from_cache

from .._errors import BackboneError

OPENAI_CACHE = Path("~/.cache/clip")
DEFAULT_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
OPENAI_ACTIVATION = True  # every model that OpenAI published was trained with QuickGELU


def check_reachable(name: str, repository: str, filenames: Sequence[str]) -> None:
    """Fail at once, with the remedy, where the hub's client would retry for most of a minute."""
    if any(isinstance(try_to_load_from_cache(repository, file), str) for file in filenames):
        return
    behind_proxy = any(os.environ.get(key) for key in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"))
    host = urlparse(constants.ENDPOINT).hostname or ""
    if constants.HF_HUB_OFFLINE or not (behind_proxy or _resolves(host)):
        raise BackboneError(
            f"The weights of {name} are not on this machine and {host} cannot be reached.\n{how_to_fetch(name)}"
        )


def how_to_fetch(name: str) -> str:
    """The files to bring and where to put them, for a machine without a connection."""
    if name.startswith("hf-hub:"):
        repository, url = name.removeprefix("hf-hub:"), ""
    else:
        arch, _, tag = name.partition("/")
        config = open_clip.get_pretrained_cfg(arch, tag)
        if not config:
            return ""
        repository, url = str(config.get("hf_hub", "")).rstrip("/"), str(config.get("url", ""))
    lines = [f"On a machine with a connection fetch the model repository {repository!r} of the hub"]
    lines.append(f"  (hf download {repository} --local-dir FOLDER), copy FOLDER here and load 'local-dir:FOLDER';")
    lines.append(f"  or copy its cache entry to {constants.HF_HUB_CACHE}.")
    if "openaipublic" in url:
        lines.append(f"Or fetch {url}")
        lines.append(f"  and put it at {OPENAI_CACHE / url.rsplit('/', 1)[-1]}.")
    return "\n".join(lines)


def find_openai_file(config: Mapping[str, Any]) -> Path | None:
    """OpenAI's own file where its package or a person has put it, checked against the published SHA-256."""
    url = str(config.get("url", ""))
    if "openaipublic" not in url:
        return None
    file = OPENAI_CACHE.expanduser() / url.rsplit("/", 1)[-1]
    if not file.is_file():
        return None
    expected = url.split("/")[-2]
    if (found := file_hash(file)) != expected:
        raise BackboneError(f"{file} is damaged (SHA-256 {found[:12]}..., not {expected[:12]}...). Fetch {url} again.")
    return file


def openai_state_dict(file: Path) -> dict[str, torch.Tensor] | None:
    """The weights in OpenAI's TorchScript archive as float32, or None where `file` is no such archive."""
    if not zipfile.is_zipfile(file):
        return None
    with zipfile.ZipFile(file) as archive:
        if not any("/code/" in entry for entry in archive.namelist()):
            return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.jit.load(file, map_location="cpu")
    state = module.state_dict()
    for key in ("input_resolution", "context_length", "vocab_size"):
        state.pop(key, None)
    return {key: value.float() for key, value in state.items()}


def file_hash(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _resolves(host: str) -> bool:
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True
