"""HTTP connections with limits: a deadline for the header of a request, and a number of open connections."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_S = 10.0  # for the header of a request, or less with a shorter timeout
CONNECTIONS = 512  # open at a time; operating systems often allow a process 1024 files
_CLOSE = b"connection: close\r\ncontent-length: 0\r\n\r\n"


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
