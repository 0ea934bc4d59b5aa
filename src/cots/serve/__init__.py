"""The HTTP service: predictions, calibration and finished runs, with a page; `pip install 'cots[serve]'`.

    app = cots.serve.create_app(cots.load("mini"), cots.serve.ServeSettings(queue=16))

`cots serve` runs it; any ASGI server can.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._errors import CotsError
from ..backbones import Backbone
from ._settings import ServeSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["ServeSettings", "create_app", "run_server"]


def create_app(backbone: Backbone | Sequence[Backbone], settings: ServeSettings | None = None) -> FastAPI:
    """The application for a backbone, or for copies of one backbone on several devices (a worker thread for each)."""
    _need("fastapi", "python_multipart")
    from ._app import make_app

    copies = [backbone] if isinstance(backbone, Backbone) else list(backbone)
    return make_app(copies, settings or ServeSettings())


def run_server(app: FastAPI, host: str, port: int, *, grace_s: float = 60.0) -> None:
    """Serve until SIGTERM or SIGINT; then stop accepting, answer what is under way, and return."""
    _need("uvicorn")
    from ._server import serve_until_told

    serve_until_told(app, host, port, grace_s)


def _need(*modules: str) -> None:
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError:
            raise CotsError(f"Serving needs the package of {module!r}: pip install 'cots[serve]'.") from None
