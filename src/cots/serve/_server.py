"""Running the application with uvicorn: one listening socket, signals, and a shutdown that loses no request."""

import asyncio
import logging
import signal
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from .._errors import CotsError
from ._protocol import protocol

KEEP_ALIVE_S = 5  # an idle connection is closed after this
LINGER_S = 0.25  # after a signal, for requests that are about to arrive


class Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn's own method re-raises the signal after the shutdown, but a requested stop is not a failure.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        # uvicorn closes connections without a request at once, even if their request is about to arrive.
        await asyncio.sleep(LINGER_S)
        await super().shutdown(sockets)


def serve_until_stopped(app: FastAPI, host: str, port: int, grace_s: float) -> None:
    # Malformed forms get an error response; the parser's own warnings would only fill the log.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    config = uvicorn.Config(
        app, http=protocol(grace_s), log_level="warning", access_log=False, server_header=False, lifespan="on",
        loop="asyncio", timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=int(grace_s) + 1,
    )  # fmt: skip
    shown, family = (f"[{host}]", socket.AF_INET6) if ":" in host else (host, socket.AF_INET)
    try:
        sock = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise CotsError(
            f"Cannot listen on {host} port {port} ({error.strerror or error}). Stop the program that uses it, or "
            "choose another --port or --host."
        ) from None
    with sock:
        # Inherited by connections. Without it a response waits 40 ms for the client to acknowledge its headers.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print(f"cots: serving at http://{shown}:{sock.getsockname()[1]}/ (Ctrl+C stops)", flush=True)
        Server(config).run(sockets=[sock])
