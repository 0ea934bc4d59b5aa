"""What surrounds the application: metrics, the gate of every request, and uvicorn with limits and an orderly stop."""

import asyncio
import hmac
import logging
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from .._errors import CotsError
from ..watch import Watch
from . import ServeSettings, host_name
from ._schemas import ApiError

log = logging.getLogger("cots.serve")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
METHODS = {"GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"}
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1, 2, 4, 8, 16, 32)
# A client that is still sending when the connection closes never sees the response, so up to this multiple of the
# size limit is read before a request is refused.
DRAIN = 4
HEADER_S = 10.0  # for the header of a request, or less with a shorter timeout
CONNECTIONS = 512  # open at a time; operating systems often allow a process 1024 files
_CLOSE = b"connection: close\r\ncontent-length: 0\r\n\r\n"
KEEP_ALIVE_S = 5  # an idle connection is closed after this
LINGER_S = 0.25  # after a signal, for requests that are about to arrive


class Metrics:
    """The Prometheus metrics of one application."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        labels = ("method", "route", "code")
        self.requests = Counter("cots_requests", "Responses by method, route and status.", labels, registry=registry)
        meaning = "Seconds from the first byte of a request to its response, by route."
        self.seconds = Histogram("cots_request_seconds", meaning, ("route",), buckets=SECONDS, registry=registry)
        self.batches = Histogram("cots_batch_size", "Requests per batch.", buckets=SIZES, registry=registry)
        self.in_flight = Gauge("cots_requests_in_flight", "Requests without a response yet.", registry=registry)

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        Gauge(name, text, registry=self.registry).set_function(value)

    def watch(self, watch: Watch) -> None:
        """Signals of the last predictions: they show when to look at the photos, not whether predictions are right."""
        recent = f"the last {watch.window} predictions"
        none = f"Share of photos that seem to show none of the classes over {recent}."
        for name, field, text in (
            ("predictions", "n", "Predictions watched so far."),
            ("confidence_mean", "confidence", f"Mean confidence over {recent}."),
            ("view_agreement_mean", "agreement", f"Share of the views that agree with the answer over {recent}."),
            ("none_of_these_share", "none_of_these", none),
            ("drift", "drift", f"1 while {recent} differ from the reference; look at the photos then."),
            ("drift_reference", "reference", "Predictions in the reference; 0 while the first ones are collected."),
        ):
            self.gauge(f"cots_{name}", text, lambda field=field: getattr(watch.seen(), field))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, metrics: Metrics) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics
        self._token = None if settings.token is None else settings.token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, method = time.perf_counter(), 0, scope["method"]
        if method == "HEAD":  # as GET, without the body
            scope = {**scope, "method": "GET"}
        scope["cots.deadline"] = started + self.settings.timeout_s
        self.metrics.in_flight.inc()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", []), *HEADERS]}
            elif method == "HEAD":
                message = {**message, "body": b""}
            await send(message)

        try:
            self._admit(scope["path"], dict(scope["headers"]))
            await self.app(scope, self._limited(scope, receive), sending)
        except ApiError as error:
            await error.response()(scope, receive, sending)
        except ClientDisconnect:
            log.info("%s %s: the client disconnected", scope["method"], scope["path"])
        except Exception:
            # The reason could contain paths of the server, so only the log gets it.
            log.exception("%s %s failed", scope["method"], scope["path"])
            if not status:
                error = ApiError(500, "internal", "The server failed; the reason is in its log.")
                await error.response()(scope, receive, sending)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            # Proxies report a client that disconnected before the response as 499.
            self.metrics.requests.labels(method if method in METHODS else "other", route, status or 499).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - started)
            self.metrics.in_flight.dec()

    def _admit(self, path: str, headers: dict[bytes, bytes]) -> None:
        """Check the host name and the token."""
        host = headers.get(b"host", b"").decode("latin-1")
        # A page of another site can point its own name at this machine.
        if self.settings.hosts is not None and host_name(host) not in self.settings.hosts:
            problem = f"This server does not accept the host name {host[:100]!r}; start it with --allow-host NAME."
            raise ApiError(403, "unknown_host", problem)
        if self._token is None or not (path.startswith("/v1") or path == "/metrics"):
            return
        kind, _, word = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() != b"bearer" or not hmac.compare_digest(word.strip(), self._token):
            problem = "This server requires a token: send the header Authorization: Bearer TOKEN."
            raise ApiError(401, "unauthorized", problem, headers={"WWW-Authenticate": "Bearer"})

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        """`receive` that counts the body, whether its size is declared or not, and stops at the deadline."""
        limit, size, complete = self.settings.max_body, 0, False
        declared = dict(scope["headers"]).get(b"content-length", b"")
        expected = int(declared) if declared.isdigit() and len(declared) < 20 else 0

        async def limited() -> Message:
            nonlocal size, complete
            while not complete:
                left = max(0.0, scope["cots.deadline"] - time.perf_counter())
                try:
                    message = await asyncio.wait_for(receive(), left)
                except TimeoutError:
                    raise ApiError(408, "slow_request", "The request did not arrive in time; retry.") from None
                size += len(message.get("body", b""))
                complete = not message.get("more_body", False)
                if max(size, expected) <= limit:
                    return message
                if complete or max(size, expected) > DRAIN * limit:
                    raise ApiError(413, "body_too_large", f"The request exceeds {limit} bytes; send a smaller one.")
            return await receive()

        return limited


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
