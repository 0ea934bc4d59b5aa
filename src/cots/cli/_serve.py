"""`cots serve`: the HTTP service and its page."""

import ipaddress
import sys
from pathlib import Path
from typing import Annotated

import typer

from .._errors import InputError
from ._shared import Model, Precision, Views, split_names


def serve(
    model: Model = None,
    host: Annotated[str, typer.Option(help="Address to listen on; by default only this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8000,
    runs: Annotated[Path | None, typer.Option(help="Folder of run folders; default: runs, if it exists.")] = None,
    token: Annotated[str | None, typer.Option(envvar="COTS_TOKEN", help="Token for /v1 and /metrics.")] = None,
    allow_host: Annotated[list[str] | None, typer.Option(help="Another host name to accept; repeatable.")] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="Web origin whose pages may call the API (CORS), or *; repeatable.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or a comma-separated list, one worker each.")] = None,
    precision: Precision = None,
    queue: Annotated[int, typer.Option(min=1, help="Maximum waiting requests; others get status 429.")] = 64,
    batch_size: Annotated[int, typer.Option(min=1, help="Maximum number of requests per batch.")] = 16,
    timeout: Annotated[float, typer.Option(help="Seconds until a request times out.")] = 60.0,
    max_body_mib: Annotated[int, typer.Option(min=1, help="Maximum size of a request in MiB.")] = 20,
    max_classes: Annotated[int, typer.Option(min=1, help="Maximum number of classes per request.")] = 5000,
    task_cache_mib: Annotated[
        int | None, typer.Option(min=1, help="MiB for cached class lists; default: 512, or a fifth of a GPU.")
    ] = None,
    views: Views = 64,
    policy: Annotated[Path | None, typer.Option(help="Policy of cots check, for requests with its classes.")] = None,
) -> None:
    """Serve predictions over HTTP, with a page at /; SIGTERM finishes running requests and stops."""
    if runs is not None and not runs.is_dir():
        raise InputError(f"--runs {runs} is not a folder; pass the folder that contains the run folders.")
    if runs is None and Path("runs").is_dir():
        runs = Path("runs")
    devices = split_names(device) if device else (None,)
    if len(set(devices)) < len(devices):
        raise InputError(f"--device {device} names a device twice; name each device once.")
    from ..backbones import load
    from ..conformal import Policy
    from ..serve import ServeSettings, create_app, require_packages, run_server

    settings = ServeSettings(
        max_body=max_body_mib * 2**20, max_classes=max_classes, queue=queue, timeout_s=timeout, batch_size=batch_size,
        task_cache_bytes=task_cache_mib and task_cache_mib * 2**20, views=views, token=token or None, runs=runs,
        hosts=_hosts(host, allow_host or [], token), origins=frozenset(allow_origin or ()),
        policy=None if policy is None else Policy.load(policy),
    )  # fmt: skip
    if not _is_loopback(host) and settings.token is None:
        print(
            f"cots: listening on {host} without a token: anyone who can reach this address can use the server. Set "
            "--token or COTS_TOKEN, or put a reverse proxy with authentication in front of it.",
            file=sys.stderr,
        )
    require_packages()
    backbones = [load(model or "mini", device=name, precision=precision or "float32") for name in devices]
    if settings.policy and (
        other := settings.policy.warning(seed=settings.policy.seed, precision=precision or "float32")
    ):
        print(f"cots: {other}", file=sys.stderr)
    run_server(create_app(backbones, settings), host, port, grace_s=timeout)


def _hosts(host: str, further: list[str], token: str | None) -> frozenset[str] | None:
    """Accepted host names; None accepts any, the default with a token or on a network address."""
    from ..serve import host_name

    if not further and (token or not _is_loopback(host)):
        return None
    return frozenset(host_name(name) for name in ("localhost", "127.0.0.1", "::1", host, *further))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
