"""`cots serve` as a process: many requests at once, its memory, and a stop while requests are running."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from support.models import tiny
from support.serving import photo

import cots
from cots.serve import create_app, run_server

VIEWS, QUEUE, LOAD = 2, 8, 40
LISTS = (("cat", "dog", "car"), ("tree", "boat", "flower", "bird"))
IMAGES = [photo(seed, (60, 50)) for seed in range(2)]
METHODS = ("zeroshot", "tpt+cots")
CASES = [(image, names) for image in range(len(IMAGES)) for names in LISTS]


@pytest.fixture(scope="module")
def expected():
    """The library's prediction for each image, class list and method."""
    mini = cots.load("mini", device="cpu")
    found = {}
    for names in LISTS:
        for method in METHODS:
            for i, prediction in enumerate(cots.Classifier(mini, names, method, views=VIEWS)(IMAGES)):
                found[i, names, method] = prediction
    return found


@pytest.fixture
def server():
    command = [sys.executable, "-c", "from cots.cli import main; main()", "serve", "--port", "0", "--device", "cpu"]
    options = ["--views", str(VIEWS), "--queue", str(QUEUE), "--timeout", "100", "--max-body-mib", "1"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)


def address_of(process: subprocess.Popen) -> str:
    first = process.stdout.readline()
    found = re.search(r"http://\S+:\d+", first)
    assert found, f"{first!r}, {process.communicate(timeout=60)}"
    return found[0]


def resident_bytes(process: subprocess.Popen) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status)[1])


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
    address = address_of(server)
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
    before = resident_bytes(server)
    assert count_right(asyncio.run(load()), expected) >= QUEUE
    grown = resident_bytes(server) - before
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
            server.send_signal(signal.SIGTERM)
            return await asyncio.gather(*sent)

    assert count_right(asyncio.run(stopped()), expected) == QUEUE, "every request that had arrived is answered"
    _, err = server.communicate(timeout=100)
    assert server.returncode == 0
    assert err == ""
    with pytest.raises(httpx.ConnectError):
        httpx.get(address + "/healthz", trust_env=False)


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(cots.CotsError, match=f"port {port}"):
            run_server(create_app(tiny("vit")), "127.0.0.1", port)
