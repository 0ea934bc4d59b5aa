"""Connect to a Ray cluster, or start one on this machine."""

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

from .._errors import CotsError, InputError, install_extra

START_WAIT = 180.0  # seconds for Ray's processes to start on this machine; Ray itself gives them 30
_TOKEN = (
    "If the cluster authenticates with tokens, as Ray does from version 2.61 on, set RAY_AUTH_MODE=token and put the "
    "cluster's token into ~/.ray/auth_token or RAY_AUTH_TOKEN on every machine."
)


def import_ray() -> Any:
    # Under `uv run`, Ray would make every worker build an environment from a copy of the current folder. Ray reads this
    # variable when it is imported.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    try:
        import ray
    except ImportError:
        raise InputError(f"engine='ray' needs Ray: {install_extra('ray')}.") from None
    return ray


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Ray, connected to the cluster at `address`, at RAY_ADDRESS or on this machine, or to a new local one."""
    ray = import_ray()
    if ray.is_initialized():  # the caller's own connection
        yield ray
        return
    where = address or os.environ.get("RAY_ADDRESS") or ""
    host, _, port = where.rpartition("://")[2].rpartition(":")
    try:
        if host and port.isdigit():  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        with _patience(ray):
            ray.init(
                address, include_dashboard=None if where else False, log_to_driver=False, logging_level=logging.ERROR
            )
    except Exception as error:  # Ray raises Exception itself if a node does not start in time
        reason = str(error).rstrip(".")
        if where:
            raise CotsError(
                f"No Ray cluster could be reached at {where} ({reason}). Check --ray-address or RAY_ADDRESS, and that "
                f"`ray status` answers there. {_TOKEN}"
            ) from error
        raise CotsError(
            f"Ray could not be started on this machine ({reason}). If the machine is busy, run the same command again "
            "later; --engine inline needs no Ray."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _patience(ray: Any) -> Iterator[None]:
    """Let a node of this machine take `START_WAIT` to start; Ray has a setting for a part of that only."""
    setting = "RAY_gcs_server_port_wait_time_s"
    given = os.environ.get(setting)
    os.environ.setdefault(setting, f"{START_WAIT:.0f}")
    services = getattr(getattr(ray, "_private", None), "services", None)
    find_node = getattr(services, "get_node", None)

    def get_node(*args: Any, **options: Any) -> Any:
        deadline = time.monotonic() + START_WAIT
        while True:
            try:
                return find_node(*args, **options)  # type: ignore[misc]
            except RuntimeError:  # not registered yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    if find_node is not None:
        services.get_node = get_node  # type: ignore[union-attr]
    try:
        yield
    finally:
        if find_node is not None:
            services.get_node = find_node  # type: ignore[union-attr]
        if given is None:
            del os.environ[setting]
