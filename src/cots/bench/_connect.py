"""To a Ray cluster and back: the package, the address, and whether anybody is there."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any

from .._errors import CotsError, InputError


def import_ray() -> Any:
    # Below `uv run` Ray would have every worker build an environment from a copy of the current folder; workers take
    # the one that their machine has, as below any other launcher. Ray reads this once, when it is imported.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    try:
        import ray
    except ImportError:
        raise InputError("engine='ray' needs Ray: pip install 'cots[ray]'.") from None
    return ray


def _knock(address: str) -> None:
    """Find out now that nobody is there; Ray would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


@contextlib.contextmanager
def connected(ray: Any, address: str | None) -> Iterator[None]:
    """Join the cluster at `address` (or RAY_ADDRESS, or one that runs here, or a new one of this machine alone)."""
    if ray.is_initialized():  # the caller's own connection
        yield
        return
    where = address or os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {} if where else {"include_dashboard": False}
    try:
        _knock(where or "")
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise CotsError(
            f"No Ray cluster could be reached at {where or 'this machine'} ({error}). Check --ray-address or "
            "RAY_ADDRESS, and that `ray status` answers there."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()
