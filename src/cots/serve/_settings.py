"""What a server allows."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from .._errors import InputError

MIB = 2**20


def host_name(header: str) -> str:
    """The name in a Host header, without port and brackets.

    >>> host_name("LocalHost:8000"), host_name("[::1]:8000"), host_name("::1")
    ('localhost', '::1', '::1')
    """
    bare = header if header.count(":") > 1 and not header.startswith("[") else re.sub(r":\d*$", "", header)
    return bare.strip("[]").rstrip(".").lower()


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """Limits and places of a server.

    max_body: bytes of a request; max_pixels: of an image; queue: requests that wait; timeout_s: seconds from a
    request's first byte to its answer; batch_size: requests of one class list that run together, fewer
    where they would take more than batch_s seconds; task_cache_bytes: of
    text features and activations kept for class lists seen before, which is also the most that one list may need.
    views, augmix: as in `cots.Classifier`. hosts: the names, without ports, that a request's Host header may bear;
    None for any. token: the bearer token that /v1 and /metrics ask for. runs: the folder
    whose run folders can be looked at.
    """

    max_body: int = 20 * MIB
    max_pixels: int = 50_000_000
    max_classes: int = 5000
    max_methods: int = 8
    queue: int = 64
    timeout_s: float = 60.0
    batch_size: int = 8
    batch_s: float = 1.0
    task_cache_bytes: int = 4096 * MIB
    views: int = 64
    augmix: bool = True
    hosts: frozenset[str] | None = None
    token: str | None = field(default=None, repr=False)
    runs: str | Path | None = None

    def __post_init__(self) -> None:
        wholes = ("max_body", "max_pixels", "max_classes", "max_methods", "queue", "batch_size", "task_cache_bytes")
        for name in (*wholes, "views"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, not {value!r}.")
        if not self.batch_s > 0:
            raise InputError(f"batch_s must be a number of seconds above 0, not {self.batch_s!r}.")
        if not 0 < self.timeout_s < 86_400:
            raise InputError(f"timeout_s must be a number of seconds above 0 and below a day, not {self.timeout_s!r}.")
        if self.token is not None and (not self.token.isascii() or not self.token.strip() or " " in self.token):
            # A header carries it: white space at its ends would be lost, other letters have no agreed encoding.
            raise InputError("token must be one word of ASCII characters, such as the output of: openssl rand -hex 24")
