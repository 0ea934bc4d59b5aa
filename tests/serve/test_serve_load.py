"""A real server under load: 200 requests at once, memory, and a stop in the middle of the work."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from support.serving import photo

import cots

VIEWS = 2
LISTS = (("cat", "dog", "car"), ("tree", "boat", "flower", "bird"))
IMAGES = [photo(seed, (60, 50)) for seed in range(4)]
METHODS = ("zeroshot", "tpt+cots")
CASES = [(image, names) for image in range(len(IMAGES)) for names in LISTS]


@pytest.fixture(scope="module")
def expected():
    """What the library says, for each image, class list and method."""
    mini = cots.load("mini", device="cpu")
    found = {}
    for names in LISTS:
        for method in METHODS:
            for i, prediction in enumerate(cots.Classifier(mini, names, method, views=VIEWS)(IMAGES)):
                found[i, names, method] = prediction
    return found


class Served:
    """`cots serve` as a process of its own."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-c", "from cots.cli import main; main()", "serve", "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--device", "cpu", "--views", str(VIEWS), *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        found = re.search(r"http://\S+:\d+", first)
        if not found:
            raise AssertionError(f"{first!r}, {self.process.communicate(timeout=60)}")
        self.address = found[0]

    def memory(self) -> int:
        """Resident bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status)[1])


async def send(web: httpx.AsyncClient, number: int):
    image, names = CASES[number % len(CASES)]
    answer = await web.post(
        "/v1/predict",
        data={"classes": "\n".join(names), "methods": ",".join(METHODS)},
        files={"image": (f"{number}.png", IMAGES[image])},
    )
    return number, answer


def check(answers, expected) -> int:
    """All are right or 429; how many are right."""
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


def test_two_hundred_at_once_then_a_stop(expected):
    server = Served("--queue", "24", "--timeout", "100", "--max-body-mib", "1")
    try:
        large = (b"x" * 65536 for _ in range(24))
        head = {"content-type": "application/json"}
        answer = httpx.post(server.address + "/v1/calibrate", content=large, headers=head, trust_env=False, timeout=60)
        assert answer.status_code == 413, "a chunked body, over a socket"
        assert answer.json()["error"]["code"] == "body_too_large"
        assert "server" not in answer.headers

        async def load() -> list:
            async with web_client(server.address) as web:
                return await asyncio.gather(*(send(web, number) for number in range(200)))

        right = check(asyncio.run(load()), expected)
        assert 24 <= right <= 200
        before = server.memory()
        assert check(asyncio.run(load()), expected) >= 24
        grown = server.memory() - before
        assert grown < 64 * 2**20, f"{grown / 2**20:.0f} MiB more after the same requests again"

        async def stopped() -> list:
            async with web_client(server.address) as web:
                sent = [asyncio.create_task(send(web, number)) for number in range(20)]
                arrived = 0
                while arrived < 20:
                    text = (await web.get("/metrics")).text
                    waiting = int(re.search(r"cots_requests_in_flight (\d+)", text)[1]) - 1
                    arrived = waiting + sum(task.done() for task in sent)
                assert waiting > 1, "some are still under way"
                server.process.send_signal(signal.SIGTERM)
                return await asyncio.gather(*sent)

        assert check(asyncio.run(stopped()), expected) == 20, "no request that had arrived is lost, none refused"
        _, err = server.process.communicate(timeout=100)
        assert server.process.returncode == 0
        assert err == ""
        with pytest.raises(httpx.ConnectError):
            httpx.get(server.address + "/healthz", trust_env=False)
    finally:
        server.process.kill()
        server.process.wait(60)


def test_binding_elsewhere_without_a_token_is_warned_of(monkeypatch):
    from typer.testing import CliRunner

    import cots.serve
    from cots.cli import app

    started = []
    monkeypatch.setattr(cots.serve, "run_server", lambda app, host, port, grace_s: started.append((host, port)))
    monkeypatch.setattr("cots.backbones.load", lambda name, **options: cots.load("mini", device="cpu"))
    result = CliRunner().invoke(app, ["serve", "--host", "0.0.0.0", "--port", "9"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "without a token" in result.stderr
    for words in (["--host", "0.0.0.0", "--token", "word"], ["--host", "::1"], []):
        result = CliRunner().invoke(app, ["serve", *words], catch_exceptions=False)
        assert "without a token" not in result.stderr
    assert started[0] == ("0.0.0.0", 9)
    assert started[-1] == ("127.0.0.1", 8000)
    with pytest.raises(cots.InputError, match="no folder"):
        CliRunner().invoke(app, ["serve", "--runs", "/no/such/place"], catch_exceptions=False)
