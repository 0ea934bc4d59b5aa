"""The limits of a server."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from .._errors import InputError, check_one_of, whole_number
from ..calibrators import SOLVERS
from ..conformal import Policy
from ..rounds import Views
from ..taxonomy import TaxonomyFile

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """Limits of a server.

    - max_body: bytes per request
    - max_pixels: per image
    - max_classes, max_methods, max_images: per request
    - queue: waiting requests
    - timeout_s: seconds from the first byte of a request to its response
    - batch_size: maximum number of requests with the same classes, template and methods that run together; fewer if
      they would take longer than batch_s seconds
    - task_cache_bytes: for what is computed once per class list; default: 512 MiB on a CPU and a fifth of a GPU
    - views, augmix: as in `cots.Classifier`; default: the policy's, else "auto"
    - solver: of the temperature, as in `cots.Classifier`; default: the policy's for its requests, else exact
    - hosts: accepted names in the Host header, without ports; None accepts any
    - token: bearer token required by /v1 and /metrics
    - origins: web origins whose pages may use the API from a browser (CORS), such as https://example.org; "*" for any
    - runs: folder that contains run folders
    - policy: from `cots check`; it applies to requests with its classes, template and method
    - taxonomy: for requests with any of its classes to which the policy does not apply
    - monitor: file that records the predictions acted on under the policy, and their labels
    - ask: probability that the label of such a prediction is asked for
    """

    max_body: int = 20 * MIB
    max_pixels: int = 50_000_000
    max_classes: int = 5000
    max_methods: int = 8
    max_images: int = 32
    queue: int = 64
    timeout_s: float = 60.0
    batch_size: int = 16
    batch_s: float = 1.0
    task_cache_bytes: int | None = None
    views: Views | None = None
    augmix: bool = True
    solver: str | None = None
    hosts: frozenset[str] | None = None
    origins: frozenset[str] = frozenset()
    token: str | None = field(default=None, repr=False)
    runs: str | Path | None = None
    policy: Policy | None = None
    taxonomy: TaxonomyFile | None = None
    monitor: str | Path | None = None
    ask: float = 0.1

    def __post_init__(self) -> None:
        counts = ("max_body", "max_pixels", "max_classes", "max_methods", "max_images", "queue", "batch_size")
        for name in (*counts, "task_cache_bytes"):
            if name == "task_cache_bytes" and self.task_cache_bytes is None:
                continue
            whole_number(name, getattr(self, name), least=1)
        if self.views != "auto" and self.views is not None:
            whole_number("views", self.views, 1)
        if not self.batch_s > 0:
            raise InputError(f"batch_s must be a positive number of seconds, not {self.batch_s!r}.")
        if not 0 < self.timeout_s < 86_400:
            raise InputError(f"timeout_s must be between 0 and 86400 seconds, not {self.timeout_s!r}.")
        if not 0 < self.ask <= 1:
            raise InputError(f"ask must be a probability above 0, such as 0.1, not {self.ask!r}.")
        if self.monitor is not None and self.policy is None:
            raise InputError("A monitor records what is acted on under a policy; pass one that cots check wrote.")
        for origin in self.origins:
            if origin != "*" and not re.fullmatch(r"https?://[^/\s]+", origin):
                raise InputError(f"origin {origin!r} must be a scheme and a host, such as https://example.org, or *.")
        if self.solver is not None:
            check_one_of("solver", self.solver, SOLVERS)
        if self.token is not None and (not self.token.isascii() or not self.token.strip() or " " in self.token):
            # An HTTP header strips surrounding whitespace and has no agreed encoding for other characters.
            raise InputError("token must be one ASCII word, such as the output of: openssl rand -hex 24")


def host_name(header: str) -> str:
    """The name in a Host header, without port and brackets."""
    bare = header if header.count(":") > 1 and not header.startswith("[") else re.sub(r":\d*$", "", header)
    return bare.strip("[]").rstrip(".").lower()
