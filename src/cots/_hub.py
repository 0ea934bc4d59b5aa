"""Whether the Hugging Face Hub can be reached, asked before its client, which would retry for most of a minute."""

import os
import socket
from contextlib import suppress
from urllib.parse import urlparse

from huggingface_hub import constants


def hub_host() -> str:
    return urlparse(constants.ENDPOINT).hostname or ""


def hub_reachable() -> bool:
    """Whether the hub's name can be resolved, or a proxy does that; never if HF_HUB_OFFLINE is set."""
    if constants.HF_HUB_OFFLINE:
        return False
    if any(map(os.environ.get, ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"))):
        return True
    with suppress(OSError):
        return bool(socket.getaddrinfo(hub_host(), 443))
    return False
