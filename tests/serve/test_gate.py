"""What every request passes: headers, host, token, body size, deadline, metrics."""

from __future__ import annotations

import asyncio

import pytest
from support.serving import ask, client, refused, samples

from cots.serve import ServeSettings
from cots.serve._gate import POLICY


@pytest.fixture(scope="module")
def web():
    return client()


def request(app, path: str, content_type: str, receive) -> dict:
    """The response to a request without content-length, straight from the application."""
    got: dict = {"body": b""}

    async def send(message):
        got.update(status=message["status"]) if "status" in message else None
        got["body"] += message.get("body", b"")

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": path,
        "raw_path": path.encode(), "root_path": "", "scheme": "http", "query_string": b"", "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80), "headers": [(b"content-type", content_type.encode())],
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return got


def test_every_response_carries_the_security_headers(web):
    for answer in (web.get("/"), web.get("/no/such/place"), web.get("/v1/predict"), ask(web, b"no image")):
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


def test_bodies_that_are_too_large_declared_or_not():
    web = client(max_body=20_000)
    refused(ask(web, b"x" * 21_000), 413, "body_too_large")
    refused(ask(web, b"x" * 200_000), 413, "body_too_large")
    start = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
    for path, kind in (("/v1/predict", "multipart/form-data; boundary=x"), ("/v1/calibrate", "application/json")):
        read = []

        async def receive(path=path, read=read):
            read.append(1)
            body = start if path == "/v1/predict" and len(read) == 1 else b"y" * 4096
            return {"type": "http.request", "body": body, "more_body": True}

        assert request(web.app, path, kind, receive)["status"] == 413
        assert len(read) < 40
    assert ask(web).status_code == 200


def test_a_body_that_never_ends_times_out():
    async def receive():
        await asyncio.Event().wait()

    assert request(client(timeout_s=0.05).app, "/v1/calibrate", "application/json", receive)["status"] == 408


def test_the_token():
    web = client(token="s3cret-word")
    for path in ("/v1/models", "/v1/runs", "/metrics", "/v1/nothing"):
        answer = web.get(path)
        refused(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"
        for wrong in ("Bearer s3cret-wor", "Bearer s3cret-wordx", "s3cret-word", "Basic s3cret-word", "Bearer \xe9"):
            assert web.get(path, headers=[(b"authorization", wrong.encode("latin-1"))]).status_code == 401
    right = {"Authorization": "bearer s3cret-word"}
    assert web.get("/v1/models", headers=right).status_code == 200
    assert web.get("/metrics", headers=right).status_code == 200
    refused(web.get("/v1/nothing", headers=right), 404, "not_found")
    refused(ask(web), 401, "unauthorized")
    assert web.head("/v1/models").status_code == 401
    for path in ("/", "/docs", "/healthz", "/openapi.json", "/static/style.css"):
        assert web.get(path).status_code == 200, path
    assert "s3cret" not in repr(ServeSettings(token="s3cret-word"))


def test_foreign_host_names_are_refused(web):
    local = client(hosts=frozenset({"localhost", "127.0.0.1", "::1"}))
    for good in ("localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000", "[::1]", "localhost."):
        assert local.get("/v1/models", headers={"host": good}).status_code == 200, good
    for bad in ("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", ""):
        for path in ("/v1/models", "/", "/metrics", "/no/such/place"):
            assert "--allow-host" in refused(local.get(path, headers={"host": bad}), 403, "unknown_host")
    assert web.get("/v1/models", headers={"host": "evil.example"}).status_code == 200, "without a list"


def test_head_is_get_without_the_body(web):
    for path in ("/", "/docs", "/static/style.css", "/healthz", "/v1/methods", "/openapi.json"):
        get, head = web.get(path), web.head(path)
        assert head.status_code == 200, path
        assert head.content == b""
        for name in ("content-type", "content-length", "content-security-policy"):
            assert head.headers[name] == get.headers[name]
    assert web.head("/v1/predict").status_code == 405
    assert web.head("/no/such/place").status_code == 404
    assert samples(web)["cots_requests_total", (("code", "200"), ("method", "HEAD"), ("route", "/healthz"))] == 1


def test_metrics_are_prometheus_text(web):
    ask(web)
    web.get("/no/such/place")
    web.request("BREW", "/v1/predict")
    answer = web.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    for line in ("# TYPE cots_requests_total counter", "# TYPE cots_request_seconds histogram"):
        assert line in answer.text
    found = samples(web)
    assert found["cots_requests_total", (("code", "404"), ("method", "GET"), ("route", "other"))] >= 1
    assert found["cots_requests_total", (("code", "405"), ("method", "other"), ("route", "/v1/predict"))] >= 1
    predicted = found["cots_requests_total", (("code", "200"), ("method", "POST"), ("route", "/v1/predict"))]
    assert predicted >= 1
    for name in ("cots_queue_length", "cots_queue_capacity", "cots_task_cache_tasks", "cots_batch_size_count"):
        assert (name, ()) in found
    assert found["cots_task_cache_bytes", ()] > 0
    assert found["cots_requests_in_flight", ()] == 1, "the request for the metrics itself"
    other = samples(client())
    assert not any(dict(labels).get("route") == "/v1/predict" for _, labels in other), "each app has its own metrics"
