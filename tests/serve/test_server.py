"""`cots serve` as a process, with many requests and a stop; what every request passes: host, token, size, deadline."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from support.kills import forked
from support.models import mini, tiny
from support.serving import ask, client, photo, refused, samples, until

import cots
from cots.cli import app
from cots.serve import ServeSettings, create_app, run_server
from cots.serve._gate import POLICY

VIEWS, QUEUE, LOAD = 2, 8, 16
LISTS = (("cat", "dog", "car"), ("tree", "boat", "flower", "bird"))
IMAGES = [photo(seed, (60, 50)) for seed in range(2)]
METHODS = ("zeroshot", "tpt+cots")
CASES = [(image, names) for image in range(len(IMAGES)) for names in LISTS]


@pytest.fixture(scope="module")
def expected():
    """The library's prediction for each image, class list and method."""
    found = {}
    for names in LISTS:
        for method in METHODS:
            for i, prediction in enumerate(cots.Classifier(mini(), names, method, views=VIEWS)(IMAGES)):
                found[i, names, method] = prediction
    return found


@dataclass
class Server:
    """`cots serve` in a fork of this process, which has the imports and the model already."""

    pid: int
    errors: Path
    address: str = ""
    status: int | None = None

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status)[1])

    def ended(self) -> bool:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        self.status = os.waitstatus_to_exitcode(status) if pid else None
        return bool(pid)


@pytest.fixture
def server(tmp_path, monkeypatch):
    mini()  # before the fork
    monkeypatch.setattr("cots.backbones.load", lambda name, **options: mini())
    options = ["--port", "0", "--views", str(VIEWS), "--queue", str(QUEUE), "--timeout", "100", "--max-body-mib", "1"]
    reading, writing = os.pipe()

    def serve():
        sys.stdout, sys.stderr = os.fdopen(writing, "w", 1), (tmp_path / "errors").open("w", 1)
        app(["serve", "--device", "cpu", *options], standalone_mode=False)

    made = Server(forked(serve), tmp_path / "errors")
    os.close(writing)
    try:
        with os.fdopen(reading) as printed:
            first = printed.readline()
            found = re.search(r"http://\S+:\d+", first)
            assert found, first + made.errors.read_text()
            made.address = found[0]
            yield made
    finally:
        if made.status is None and not made.ended():
            os.kill(made.pid, signal.SIGKILL)
            os.waitpid(made.pid, 0)


async def send(web: httpx.AsyncClient, number: int):
    image, names = CASES[number % len(CASES)]
    answer = await web.post(
        "/v1/predict",
        data={"classes": "\n".join(names), "methods": ",".join(METHODS)},
        files={"image": (f"{number}.png", IMAGES[image])},
    )
    return number, answer


def count_right(answers, expected) -> int:
    """Number of correct answers; all others must be 429."""
    right = 0
    for number, answer in answers:
        if answer.status_code == 429:
            assert int(answer.headers["retry-after"]) >= 1
            continue
        assert answer.status_code == 200, answer.text
        image, names = CASES[number % len(CASES)]
        body = answer.json()
        assert body["image"]["name"] == f"{number}.png", "an answer belongs to its own request"
        for result in body["results"]:
            wanted = expected[image, names, result["method"]]
            assert result["label"] == wanted.label
            assert result["confidence"] == pytest.approx(wanted.confidence, abs=1e-3)
        right += 1
    return right


def web_client(address: str) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=address, limits=limits, timeout=120, trust_env=False)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the server is a fork of this process")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_many_requests_at_once_then_a_stop(server, expected):
    address = server.address
    large = (b"x" * 65536 for _ in range(24))
    head = {"content-type": "application/json"}
    answer = httpx.post(address + "/v1/calibrate", content=large, headers=head, trust_env=False, timeout=60)
    assert answer.status_code == 413, "a chunked body over a socket"
    assert answer.json()["error"]["code"] == "body_too_large"
    assert "server" not in answer.headers

    host, port = address.removeprefix("http://").split(":")
    for _ in range(5):
        with socket.create_connection((host, int(port)), timeout=60) as malformed:
            malformed.sendall(b"nonsense\r\n\r\n")
            assert malformed.recv(100).startswith(b"HTTP/1.1 400")

    async def load() -> list:
        async with web_client(address) as web:
            return await asyncio.gather(*(send(web, number) for number in range(LOAD)))

    assert QUEUE <= count_right(asyncio.run(load()), expected) <= LOAD
    before = server.resident_bytes()
    assert count_right(asyncio.run(load()), expected) >= QUEUE
    grown = server.resident_bytes() - before
    assert grown < 64 * 2**20, f"{grown / 2**20:.0f} MiB more after repeating the same requests"

    async def stopped() -> list:
        async with web_client(address) as web:
            sent = [asyncio.create_task(send(web, number)) for number in range(QUEUE)]
            arrived = waiting = 0
            while arrived < QUEUE:
                text = (await web.get("/metrics")).text
                waiting = int(float(re.search(r"^cots_requests_in_flight (\S+)", text, re.M)[1])) - 1
                arrived = waiting + sum(task.done() for task in sent)
            assert waiting > 1, "some requests are still running"
            os.kill(server.pid, signal.SIGTERM)
            return await asyncio.gather(*sent)

    assert count_right(asyncio.run(stopped()), expected) == QUEUE, "every request that had arrived is answered"
    until(server.ended, "the server to stop", 100)
    assert server.status == 0
    assert server.errors.read_text() == "WARNING:  Invalid HTTP request received.\n", "once for all"
    with pytest.raises(httpx.ConnectError):
        httpx.get(address + "/healthz", trust_env=False)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the server is a fork of this process")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_stop_always_ends_the_process(tmp_path, monkeypatch):
    """Even if the application never returns and holds the event loop."""
    monkeypatch.setattr("cots.serve._server.STOP_S", 0.1)

    async def stuck(scope, receive, send):
        await receive()
        await send({"type": "lifespan.startup.complete"})
        (tmp_path / "started").touch()
        await receive()
        time.sleep(60)

    pid = forked(lambda: run_server(stuck, "127.0.0.1", 0, grace_s=0.1))
    until((tmp_path / "started").exists, "the server to start")
    time.sleep(0.1)  # until it handles signals
    os.kill(pid, signal.SIGTERM)
    ended = Server(pid, tmp_path / "errors")
    try:
        until(ended.ended, "the process to end", 10)
    finally:
        if ended.status is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert ended.status == -signal.SIGALRM


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(cots.CotsError, match=f"port {port}"):
            run_server(create_app(tiny("vit")), "127.0.0.1", port)


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
