"""`cots serve` as a process: many requests at once, its memory, and a stop while requests are running."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from support.kills import forked
from support.models import tiny
from support.serving import photo, until

import cots
from cots.cli import app
from cots.serve import create_app, run_server

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the server is a fork of this process"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]
VIEWS, QUEUE, LOAD = 2, 8, 16
LISTS = (("cat", "dog", "car"), ("tree", "boat", "flower", "bird"))
IMAGES = [photo(seed, (60, 50)) for seed in range(2)]
METHODS = ("zeroshot", "tpt+cots")
CASES = [(image, names) for image in range(len(IMAGES)) for names in LISTS]


@pytest.fixture(scope="module")
def mini():
    return cots.load("mini", device="cpu")


@pytest.fixture(scope="module")
def expected(mini):
    """The library's prediction for each image, class list and method."""
    found = {}
    for names in LISTS:
        for method in METHODS:
            for i, prediction in enumerate(cots.Classifier(mini, names, method, views=VIEWS)(IMAGES)):
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
def server(mini, tmp_path, monkeypatch):
    monkeypatch.setattr("cots.backbones.load", lambda name, **options: mini)
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


def test_many_requests_at_once_then_a_stop(server, expected):
    address = server.address
    large = (b"x" * 65536 for _ in range(24))
    head = {"content-type": "application/json"}
    answer = httpx.post(address + "/v1/calibrate", content=large, headers=head, trust_env=False, timeout=60)
    assert answer.status_code == 413, "a chunked body over a socket"
    assert answer.json()["error"]["code"] == "body_too_large"
    assert "server" not in answer.headers

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
    assert server.errors.read_text() == ""
    with pytest.raises(httpx.ConnectError):
        httpx.get(address + "/healthz", trust_env=False)


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(cots.CotsError, match=f"port {port}"):
            run_server(create_app(tiny("vit")), "127.0.0.1", port)
