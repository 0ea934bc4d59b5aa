"""Running the application: signals, and a shutdown in which no request is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from .._errors import CotsError

IDLE_S = 5  # a kept-alive connection without a request is closed after this
LINGER_S = 0.25  # after a signal, for requests whose first bytes are on their way


class Server(uvicorn.Server):
    """As uvicorn's, but a signal that was obeyed is not raised again: a stop that was asked for is no failure."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        kept = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
            print(f"cots: serving at http://{host}:{port}/ (Ctrl+C stops)", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        # A connection without a request is closed at once, also one whose request is about to arrive.
        await asyncio.sleep(LINGER_S)
        await super().shutdown(sockets)


def serve_until_told(app: FastAPI, host: str, port: int, grace_s: float) -> None:
    # A body that is no form is the client's mistake and is answered; the parser's own warnings would fill the log.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=int(grace_s) + 1,
        lifespan="on",
        http="h11",
        loop="asyncio",
    )
    with _listening(host, port) as sock:
        Server(config).run(sockets=[sock])


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise CotsError(
            f"{host} port {port} cannot be listened on ({error.strerror or error}): stop what uses it, or choose "
            "another --port or --host."
        ) from None
