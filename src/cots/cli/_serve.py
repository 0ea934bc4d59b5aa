"""`cots serve`: the HTTP service and its page."""

from __future__ import annotations

import ipaddress
import sys
from pathlib import Path
from typing import Annotated

import typer

from .._errors import InputError
from ._bench import Precision, split_names


def serve(
    model: Annotated[str, typer.Option(help="Model, as for cots.load.")] = "mini",
    host: Annotated[str, typer.Option(help="Address to listen on; the default is this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    runs: Annotated[
        Path | None, typer.Option(help="Folder of run folders to show; default: runs, if it is there.")
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar="COTS_TOKEN", help="Bearer token that /v1 and /metrics ask for.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Further name that requests may address the server by; may be given several times."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, or several with commas: a worker for each.")] = None,
    precision: Precision = None,
    queue: Annotated[int, typer.Option(min=1, help="Requests that may wait; more are answered 429.")] = 64,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests of one class list that run together.")] = 8,
    timeout: Annotated[float, typer.Option(help="Seconds a request may take.")] = 60.0,
    max_body_mib: Annotated[int, typer.Option(min=1, help="Largest request.")] = 20,
    max_classes: Annotated[int, typer.Option(min=1, help="Largest class list.")] = 5000,
    task_cache_mib: Annotated[int, typer.Option(min=1, help="Memory kept for class lists.")] = 4096,
    views: Annotated[int, typer.Option(min=1, help="Views of each photo.")] = 64,
) -> None:
    """Serve predictions over HTTP, with a page at /; SIGTERM finishes what is under way and stops."""
    from ..backbones import load
    from ..serve import ServeSettings, create_app, run_server

    settings = ServeSettings(
        max_body=max_body_mib * 2**20, max_classes=max_classes, queue=queue, timeout_s=timeout, batch_size=batch_size,
        task_cache_bytes=task_cache_mib * 2**20, views=views, token=token or None, runs=_runs(runs),
        hosts=_hosts(host, allow_host or [], token),
    )  # fmt: skip
    if not _is_loopback(host) and settings.token is None:
        print(
            f"cots: listening on {host} without a token: whoever reaches this address can use the server. Give --token "
            "or set COTS_TOKEN, or put a reverse proxy with authentication before it.",
            file=sys.stderr,
        )
    devices = split_names(device) if device else (None,)
    if len(set(devices)) < len(devices):
        raise InputError(f"--device {device} names a device twice; one worker a device is enough.")
    backbones = [load(model, device=name, precision=precision or "float32") for name in devices]
    run_server(create_app(backbones, settings), host, port, grace_s=timeout)


def _hosts(host: str, further: list[str], token: str | None) -> frozenset[str] | None:
    """Names that are answered: its own for a server of this machine without a token; else any, or those given."""
    from ..serve import host_name

    if not further and (token or not _is_loopback(host)):
        return None
    return frozenset(host_name(name) for name in ("localhost", "127.0.0.1", "::1", host, *further))


def _runs(given: Path | None) -> Path | None:
    if given is not None and not given.is_dir():
        raise InputError(f"--runs {given} is no folder; give the folder that holds the run folders.")
    default = Path("runs")
    return given if given is not None else default if default.is_dir() else None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
