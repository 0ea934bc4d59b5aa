"""HTTP service for predictions, calibration and finished runs, with a page; needs the extra `serve`.

    app = cots.serve.create_app(cots.load("mini"), cots.serve.ServeSettings(queue=16))

`cots serve` runs it; so does any ASGI server.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._errors import CotsError, install_extra
from ..backbones import Backbone
from ._settings import ServeSettings, host_name

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["ServeSettings", "create_app", "host_name", "require_packages", "run_server"]


def create_app(backbone: Backbone | Sequence[Backbone], settings: ServeSettings | None = None) -> FastAPI:
    """The application for one backbone, or for copies of it on several devices (one worker thread per device)."""
    require_packages()
    from ._app import make_app

    backbones = [backbone] if isinstance(backbone, Backbone) else list(backbone)
    return make_app(backbones, settings or ServeSettings())


def run_server(app: FastAPI, host: str, port: int, *, grace_s: float = 60.0) -> None:
    """Serve until SIGTERM or SIGINT; then stop accepting, finish the requests that have arrived, and return."""
    require_packages()
    from ._server import serve_until_stopped

    serve_until_stopped(app, host, port, grace_s)


def require_packages() -> None:
    """Refuse to serve without the packages of the extra `serve`."""
    for module in ("fastapi", "python_multipart", "prometheus_client", "uvicorn"):
        try:
            importlib.import_module(module)
        except ImportError as error:  # of the package, or of something it needs
            missing = error.name or module
            raise CotsError(f"Serving requires the Python module {missing!r}: {install_extra('serve')}.") from None
