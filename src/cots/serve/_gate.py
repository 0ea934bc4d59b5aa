"""What every request passes: host name, token, size and deadline; security headers and metrics of every response."""

import asyncio
import hmac
import logging
import time

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ._metrics import Metrics
from ._schemas import ApiError
from ._settings import ServeSettings, host_name

log = logging.getLogger("cots.serve")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
METHODS = {"GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"}
# A client that is still sending when the connection closes never sees the response, so up to this multiple of the
# size limit is read before a request is refused.
DRAIN = 4


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
                given = dict(message.get("headers", []))
                more = [header for header in HEADERS if header[0] not in given]
                message = {**message, "headers": [*message.get("headers", []), *more]}
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
                left = scope["cots.deadline"] - time.perf_counter()
                try:
                    if left <= 0:
                        raise TimeoutError
                    async with asyncio.timeout(left):
                        message = await receive()
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
