"""uvicorn with the limits on connections that it lacks, and an orderly stop."""

import asyncio
import logging
import signal
import socket
import time
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from .._errors import CotsError

CONNECTIONS = 512  # open at a time; operating systems often allow a process 1024 files
PER_ADDRESS = 256  # of them; a reverse proxy is one address
PIPELINED = 8  # requests sent before the response to the one before
HEADER_S = 10.0  # for the header of a request, or less with a shorter timeout
WRITE_S = 10.0  # a client that reads less than WRITE_BYTES of a response in this time is disconnected
WRITE_BYTES = 2**14
STUCK_S = 1.0  # a client that has read nothing for this long makes room for another
SEND_BUFFER = 2**18  # bytes of a response that the system holds per connection
KEEP_ALIVE_S = 5  # an idle connection is closed after this
LINGER_S = 0.25  # after a signal, for requests that are about to arrive
STOP_S = 3.0  # after the grace period, for the application to stop
LOG_S = 60.0  # a problem of a client is logged once in this time
_CLOSE = b"connection: close\r\ncontent-length: 0\r\n\r\n"


class Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn's own method re-raises the signal after the shutdown, but a requested stop is not a failure.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
        if self.force_exit:  # uvicorn would log the traceback of everything that it cancels
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        # The system ends the process after the grace period, whatever its threads do.
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, (self.config.timeout_graceful_shutdown or 0) + STOP_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        # uvicorn closes connections without a request at once, even if their request is about to arrive.
        await asyncio.sleep(LINGER_S)
        await super().shutdown(sockets)


class LogLimit(logging.Filter):
    """Passes one record of each text in `LOG_S` seconds, with the number of those left out before it."""

    def __init__(self) -> None:
        super().__init__()
        self._next: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text, now = str(record.msg), time.monotonic()
        if now < self._next.get(text, 0):
            self._left_out[text] = self._left_out.get(text, 0) + 1
            return False
        self._next[text] = now + LOG_S
        if more := self._left_out.pop(text, 0):
            record.msg = f"{text} ({more} more since the last such line)"
        return True


def serve_until_stopped(app: FastAPI, host: str, port: int, grace_s: float) -> None:
    # Malformed forms get an error response; the parser's own warnings would only fill the log.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    config = uvicorn.Config(
        app, http=protocol(grace_s), log_level="warning", access_log=False, server_header=False, lifespan="on",
        loop="asyncio", timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=int(grace_s) + 1,
    )  # fmt: skip
    logging.getLogger("uvicorn.error").addFilter(LogLimit())
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
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        print(f"cots: serving at http://{shown}:{sock.getsockname()[1]}/ (Ctrl+C stops)", flush=True)
        Server(config).run(sockets=[sock])
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)


def protocol(timeout_s: float) -> type[H11Protocol]:
    """The protocol of a server whose requests time out after `timeout_s` seconds."""
    return type("Protocol", (Protocol,), {"header_s": min(HEADER_S, timeout_s)})


class Protocol(H11Protocol):
    """uvicorn's protocol with deadlines for headers and for reading responses, and limits on connections.

    hypercorn and granian have no deadline for reading responses and no limit per address either.
    """

    header_s = HEADER_S
    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _unread = 0  # bytes of a response that the client has not read at the last check
    _unread_since = 0.0
    _pipelined = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # writing is paused while anything is unread
        if self._admit():
            self._watch_header()
        else:
            self.connections.discard(self)  # many refused at once would leave no room for other addresses
            transport.write(b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 10\r\n" + _CLOSE)
            transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_header()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_header_timer()
        self._stop_write_timer()

    def on_response_complete(self) -> None:
        self._pipelined = self._pipelined + 1 if self.conn.trailing_data[0] else 0
        if self._pipelined > PIPELINED:
            self.transport.close()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread, self._unread_since = self.transport.get_write_buffer_size(), self.loop.time()
        self._write_timer = self.loop.call_later(WRITE_S, self._check_reader)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()

    def _admit(self) -> bool:
        """Whether the connection is within the limits, after disconnecting a client that does not read, if needed."""
        others: list[Protocol] = [one for one in self.connections if isinstance(one, Protocol) and one is not self]
        alike = [one for one in others if one.client and self.client and one.client[0] == self.client[0]]
        for connections, limit in ((alike, PER_ADDRESS), (others, CONNECTIONS)):
            if len(connections) < limit:
                continue
            stuck = [one for one in connections if one._is_stuck()]
            if not stuck:
                return False
            min(stuck, key=lambda one: one._unread_since)._disconnect()
        return True

    def _is_stuck(self) -> bool:
        return self._write_timer is not None and self.loop.time() - self._unread_since > STUCK_S

    def _disconnect(self) -> None:
        """Close the connection without sending what is unread."""
        self._stop_write_timer()
        self.connections.discard(self)
        self.transport.abort()

    def _check_reader(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if self._unread - unread < WRITE_BYTES:
            self._disconnect()
            return
        self._unread = unread
        self._write_timer = self.loop.call_later(WRITE_S, self._check_reader)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _watch_header(self) -> None:
        """Keep one timer from the start of a header, or of the connection, to the header's end."""
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._stop_header_timer()
        elif self._header_timer is None:
            self._header_timer = self.loop.call_later(self.header_s, self._on_slow_header)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _on_slow_header(self) -> None:
        self._header_timer = None
        # A header can also end while the response to the request before it is being sent.
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 408 Request Timeout\r\n" + _CLOSE)
            self.transport.close()
