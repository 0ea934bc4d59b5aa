"""What every request passes first: headers, token, size of the body, time, counting, and the last resort for errors."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ._counts import Counts
from ._errors import ApiError
from ._settings import ServeSettings, host_name

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
# A body that is too large is read to this many times the limit before the answer: a client that is still sending
# when the connection closes never sees why.
PATIENCE = 4


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, counts: Counts) -> None:
        self.app, self.settings, self.counts = app, settings, counts
        self._token = None if settings.token is None else settings.token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, method = time.perf_counter(), 0, scope["method"]
        if method == "HEAD":  # as GET, without the body
            scope = {**scope, "method": "GET"}
        scope["cots.deadline"] = started + self.settings.timeout_s
        self.counts.arrived()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", []), *HEADERS]}
            elif method == "HEAD":
                message = {**message, "body": b""}
            await send(message)

        try:
            self._check_host(scope)
            self._check_token(scope)
            await self.app(scope, self._limited(scope, receive), sending)
        except ApiError as error:
            await answer(sending, error)
        except Exception:
            # Nothing of the reason may reach the client: it could name paths.
            log.exception("%s %s failed", scope["method"], scope["path"])
            if not status:
                await answer(sending, ApiError(500, "internal", "The server failed; its log says why."))
        finally:
            route = getattr(scope.get("route"), "path", "other")
            # A client that went away has no status; 499 is what proxies call it.
            kind = method if method in METHODS else "other"
            self.counts.answered(kind, route, status or 499, time.perf_counter() - started)

    def _check_host(self, scope: Scope) -> None:
        """A page of another site can point its own name at this machine; its requests then bear that name."""
        given = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        if self.settings.hosts is not None and host_name(given) not in self.settings.hosts:
            raise ApiError(
                403,
                "unknown_host",
                f"This server does not answer to the name {given[:100]!r}; start it with --allow-host NAME.",
            )

    def _check_token(self, scope: Scope) -> None:
        path = scope["path"]
        if self._token is None or not (path.startswith("/v1") or path == "/metrics"):
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        kind, _, word = given.partition(b" ")
        if kind.lower() != b"bearer" or not hmac.compare_digest(word.strip(), self._token):
            raise ApiError(
                401,
                "unauthorized",
                "This server asks for its token: send the header Authorization: Bearer TOKEN.",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        """`receive` that counts the body, declared or not, and does not wait for ever."""
        limit, got, whole = self.settings.max_body, 0, False
        declared = dict(scope["headers"]).get(b"content-length", b"")
        expected = int(declared) if declared.isdigit() and len(declared) < 20 else 0

        async def one() -> Message:
            nonlocal got, whole
            left = scope["cots.deadline"] - time.perf_counter()
            try:
                message = await asyncio.wait_for(receive(), max(left, 0.0))
            except TimeoutError:
                raise ApiError(408, "slow_request", "The request did not arrive in time; send it again.") from None
            got += len(message.get("body", b""))
            whole = message["type"] != "http.request" or not message.get("more_body", False)
            return message

        async def limited() -> Message:
            if whole:
                return await receive()
            message = await one() if expected <= limit else {}
            if max(got, expected) <= limit:
                return message
            while not whole and max(got, expected) <= PATIENCE * limit:
                await one()
            raise too_large(limit)

        return limited


def too_large(limit: int) -> ApiError:
    return ApiError(413, "body_too_large", f"The request is larger than {limit} bytes; send a smaller image or part.")


async def answer(send: Any, error: ApiError) -> None:
    """An error as a response, outside of any framework."""
    body = json.dumps(error.body()).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
