"""Latency and throughput of `cots serve`, measured by real clients over the loopback.

    uv run python benchmarks/serving.py --out serving.json        # uses a GPU if there is one

The model has random weights; speed does not depend on them. Each client keeps one connection and sends its next photo
when the last response has arrived. A request without a response of status 200 counts as lost.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import multiprocessing
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from speed import ARCH, class_names
from views import photo

BOUNDARY = "cots-benchmark"


def body(image: bytes, classes: list[str]) -> bytes:
    fields = {"classes": "\n".join(classes), "methods": "tpt+cots"}
    head = f"--{BOUNDARY}\r\nContent-Disposition: form-data; name="
    texts = "".join(f'{head}"{name}"\r\n\r\n{value}\r\n' for name, value in fields.items())
    return f'{texts}{head}"image"; filename="a.jpg"\r\n\r\n'.encode() + image + f"\r\n--{BOUNDARY}--\r\n".encode()


def photo_bytes(seed: int) -> bytes:
    file = io.BytesIO()
    photo(375, 500, seed).save(file, "JPEG", quality=90)
    return file.getvalue()


def client(port: int, bodies: list[bytes], stop: float, found: list[tuple[float, float, int]]) -> None:
    """Send photos until `stop`; for each its end, its seconds and its status, 0 without an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    i = 0
    while time.monotonic() < stop:
        started, status = time.monotonic(), 0
        try:
            connection.request("POST", "/v1/predict", bodies[i % len(bodies)], headers)
            answer = connection.getresponse()
            answer.read()
            status = answer.status
        except OSError:
            connection.close()
        ended = time.monotonic()
        found.append((ended, ended - started, status))
        i += 1


def clients(count: int, port: int, bodies: list[bytes], stop: float, pipe: Any) -> None:
    """Several clients in the threads of one process."""
    found: list[tuple[float, float, int]] = []
    threads = [threading.Thread(target=client, args=(port, bodies, stop, found)) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send(found)


def load(count: int, seconds: float, port: int, bodies: list[bytes]) -> dict[str, Any]:
    """`count` clients at a time; what they saw in `seconds` seconds after one second of warm-up."""
    processes, context = min(4, count), multiprocessing.get_context("fork")
    begin = time.monotonic() + 1
    ends, workers = [], []
    for _ in range(processes):
        ours, theirs = context.Pipe(duplex=False)
        each = (count // processes, port, bodies, begin + seconds, theirs)
        workers.append(context.Process(target=clients, args=each))
        ends.append(ours)
    for worker in workers:
        worker.start()
    found = [one for end in ends for one in end.recv()]
    for worker in workers:
        worker.join()
    took = sorted(spent for ended, spent, status in found if status == 200 and begin <= ended <= begin + seconds)
    return {
        "clients": count,
        "requests": len(found),
        "lost": sum(status != 200 for *_, status in found),
        "images_per_s": len(took) / seconds,
        "p50_ms": 1e3 * took[len(took) // 2] if took else None,
        "p95_ms": 1e3 * took[int(0.95 * len(took))] if took else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--views", default="64", help="a number, or auto")
    parser.add_argument("--model", default=ARCH)
    parser.add_argument("--classes", type=int, default=200)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    given = parser.parse_args()
    precision = "bfloat16" if given.device == "cuda" else "float32"
    command = [sys.executable, "-m", "cots", "serve", "--port", "0", "--model", given.model, "--device", given.device]
    command += ["--views", given.views]
    server = subprocess.Popen([*command, "--precision", precision, "--queue", "256"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        lines = iter(server.stdout.readline, "")
        port = int(next(found.group(1) for line in lines if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line))))
        threading.Thread(target=lambda: [None for _ in lines], daemon=True).start()
        bodies = [body(photo_bytes(seed), class_names(given.classes)) for seed in range(16)]
        client(port, bodies, time.monotonic() + 1, [])
        for count in (1, *range(2, 18, 3), 64, 64, 64):  # until all kernels and graphs exist
            load(count, 2, port, bodies)
        found = {"device": given.device, "classes": given.classes, "loads": []}
        for count in given.clients:
            found["loads"].append(load(count, given.seconds, port, bodies))
            print(json.dumps(found["loads"][-1]), flush=True)
    finally:
        server.terminate()
        server.wait()
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
