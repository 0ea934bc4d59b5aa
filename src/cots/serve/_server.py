"""Run the application with uvicorn: one socket, limits on connections, and a shutdown that loses no request."""

import asyncio
import logging
import signal
import socket
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from .._errors import CotsError

HEADER_S = 10.0  # for the header of a request, or less with a shorter timeout
CONNECTIONS = 512  # open at a time; operating systems often allow a process 1024 files
_CLOSE = b"connection: close\r\ncontent-length: 0\r\n\r\n"
KEEP_ALIVE_S = 5  # an idle connection is closed after this
LINGER_S = 0.25  # after a signal, for requests that are about to arrive


class Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn's own method re-raises the signal after the shutdown, but a requested stop is not a failure.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
        if self.force_exit:  # uvicorn would log the traceback of everything that it cancels
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)

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


def protocol(timeout_s: float) -> type[H11Protocol]:
    """The protocol of a server whose requests time out after `timeout_s` seconds."""
    return type("Protocol", (Protocol,), {"header_s": min(HEADER_S, timeout_s)})


class Protocol(H11Protocol):
    """uvicorn's protocol with a deadline for headers and a limit on connections; uvicorn alone has neither."""

    header_s = HEADER_S
    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.write(b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 10\r\n" + _CLOSE)
            transport.close()
        else:
            self._watch_header()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_header()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()

    def _watch_header(self) -> None:
        """Keep one timer from the start of a header, or of the connection, to the header's end."""
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._stop_timer()
        elif self._header_timer is None:
            self._header_timer = self.loop.call_later(self.header_s, self._on_slow_header)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _on_slow_header(self) -> None:
        self._header_timer = None
        # A header can also end while the response to the request before it is being sent.
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 408 Request Timeout\r\n" + _CLOSE)
            self.transport.close()
