"""Helpers for the server tests: small photos, a client, a blocked worker, metrics."""

from __future__ import annotations

import contextlib
import io
import struct
import threading
import time
import zlib

import numpy as np
from fastapi.testclient import TestClient
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from cots.serve import ServeSettings, create_app
from support.models import CLASSES, tiny

VIEWS = 8


def photo(seed: int = 0, size: tuple[int, int] = (50, 40), kind: str = "PNG") -> bytes:
    noise = np.random.default_rng(seed).integers(0, 256, (size[1] // 5, size[0] // 5, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC).save(file, kind)
    return file.getvalue()


def client(**settings) -> TestClient:
    app = create_app(tiny("vit"), ServeSettings(**{"views": VIEWS, "batch_s": 3600.0, **settings}))
    return TestClient(app, raise_server_exceptions=False)


def ask(web: TestClient, image: bytes | None = None, files: dict | None = None, **fields):
    fields = {"classes": "\n".join(CLASSES), **fields}
    fields = {name: value for name, value in fields.items() if value is not None}
    files = {"image": ("photo.png", photo() if image is None else image)} if files is None else files
    return web.post("/v1/predict", data=fields, files=files)


def refused(answer, status: int, code: str, field: str | None = None) -> str:
    """The message of an error response with the expected status, code and field."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["field"]) == (code, field)
    assert len(error["message"]) > 20
    return error["message"]


def samples(web: TestClient) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """All samples of /metrics by name and labels."""
    found = {}
    for family in text_string_to_metric_families(web.get("/metrics").text):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, "a series appears once"
            found[key] = sample.value
    return found


@contextlib.contextmanager
def blocked(web: TestClient):
    """Keep the worker busy until the block ends; yields the engine."""
    engine, entered, release = web.app.state.engine, threading.Event(), threading.Event()

    def hold():
        entered.set()
        release.wait(60)

    future = engine.submit(hold)
    assert entered.wait(60)
    try:
        yield engine
    finally:
        release.set()
        future.result(60)


def until(condition, what: str, seconds: float = 60) -> None:
    """Wait for a condition that another thread makes true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.005)


def bomb(width: int, height: int) -> bytes:
    """A PNG whose header declares far more pixels than it contains."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body
