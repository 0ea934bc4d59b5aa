"""Damage, interrupt and flood cots for a while, on this machine alone, and print what held.

    python tools/soak.py                          # a few minutes
    python tools/soak.py --requests 20000 --minutes 60

Each check is bounded in count and in time, and talks to 127.0.0.1 only. The exit status is 1 if anything failed.
"""

import argparse
import io
import json
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

import cots
from cots import bench
from cots._checked import write_json
from cots.bench import check_run
from cots.evaluate import summarise
from cots.serve._runs import RunFolders
from cots.serve._schemas import ApiError

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 10**30, float("nan"), "", "x", "../..", "\x00", "\ud800", "<b>", [], {}, [[]], {"a": {}},
    "9" * 999,
)  # fmt: skip
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
HEADER_TIMEOUT = b"HTTP/1.1 408"


class Result(NamedTuple):
    """A check: how many times it was done, and what went wrong, by description."""

    name: str
    count: int
    problems: Counter[str]
    note: str = ""


def flip_bits(run: bench.Run, count: int, rng: random.Random, until: float = float("inf")) -> Result:
    """Flip one bit at a time in every kind of file of a run; each must be found, in its file and in no other."""
    files = [file for file in Path(str(run.folder)).rglob("*") if file.suffix in (".safetensors", ".json")]
    done, problems = 0, Counter[str]()
    for _ in _bounded(count, until):
        done += 1
        file = rng.choice(files)
        whole = file.read_bytes()
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
        found = [error.file for error in check_run(run.folder).damaged]
        file.write_bytes(whole)
        if found != [file]:
            problems[f"{file.parent.parent.name}: not found"] += 1
    return Result("bit flips", done, problems)


def fuzz_manifests(run: bench.Run, count: int, rng: random.Random, until: float = float("inf")) -> Result:
    """Change one value of a manifest at a time: opening, figures and the server's lists raise cots' own errors only."""
    file = Path(str(run.folder)) / "manifest.json"
    whole, shelf = file.read_bytes(), RunFolders(file.parent.parent)
    readers: list[Callable[[], object]] = [
        lambda: summarise(bench.Run.open(file.parent), resamples=2),
        lambda: check_run(file.parent).text(),
        lambda: shelf.detail(file.parent.name),
        shelf.list,
    ]
    done, problems, refused = 0, Counter[str](), 0
    for _ in _bounded(count, until):
        done += 1
        manifest = json.loads(json.dumps(run.manifest))
        _mutate(manifest, rng)
        # With a valid checksum, without one (an earlier version), or cut short.
        if rng.random() < 0.5:
            write_json(file, manifest)
        else:
            text = json.dumps(manifest).encode()
            file.write_bytes(text if rng.random() < 0.9 else text[: rng.randrange(len(text))])
        for reader in readers:
            try:
                reader()
            except (cots.CotsError, ApiError):
                refused += 1
            except Exception as error:
                problems[f"{type(error).__name__}: {error}"[:80]] += 1
    file.write_bytes(whole)
    return Result("manifest mutations", done, problems, f"{refused} refusals")


def _mutate(value: Any, rng: random.Random) -> None:
    """Replace, remove or bury one value somewhere inside `value`."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = rng.choice(keys)
        inner = value[key]
        if isinstance(inner, (dict, list)) and inner and rng.random() < 0.7:
            value = inner
            continue
        kind = rng.random()
        if kind < 0.2:
            del value[key]
        elif kind < 0.3:
            for _ in range(500):
                inner = [inner]
            value[key] = inner
        else:
            value[key] = rng.choice(ODD)
        return


def mutate_images(count: int, rng: random.Random, until: float = float("inf")) -> Result:
    """Damage image files of every format: each is read, or refused with an InputError."""
    noise = np.random.default_rng(rng.randrange(2**32)).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    wholes = []
    for kind in FORMATS:
        buffer = io.BytesIO()
        Image.fromarray(noise).save(buffer, kind)
        wholes.append(buffer.getvalue())
    done, problems, read = 0, Counter[str](), 0
    for _ in _bounded(count, until):
        done += 1
        data = bytearray(rng.choice(wholes))
        for _ in range(rng.randrange(1, 6)):  # headers are where sizes are
            data[rng.randrange(min(len(data), rng.choice((64, len(data)))))] = rng.randrange(256)
        try:
            cots.read_image(bytes(data[: rng.choice((len(data), rng.randrange(1, len(data))))]))
            read += 1
        except cots.InputError:
            pass
        except Exception as error:
            problems[f"{type(error).__name__}: {error}"[:80]] += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return Result("mutated images", done, problems, f"{read} readable, peak {peak:.2f} GiB with torch")


def kill_runs(folder: Path, count: int, rng: random.Random, until: float = float("inf")) -> Result:
    """Kill a run at random moments until it finishes: its records are those of a run that was left alone."""
    words = [sys.executable, "-m", "cots", "run", "--datasets", str(folder / "photos"), "--methods", "zeroshot,tpt,tda"]
    alone, killed = (
        [*words, "--quiet", "--out", str(folder / "alone")],
        [*words, "--quiet", "--out", str(folder / "killed")],
    )
    subprocess.run(alone, check=True)
    done, problems = 0, Counter[str]()
    for _ in _bounded(count, until):
        done += 1
        process = subprocess.Popen(killed)
        try:
            process.wait(rng.uniform(3, 12))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    subprocess.run(killed, check=True)
    expected, found = bench.Run.open(folder / "alone"), bench.Run.open(folder / "killed")
    for method in expected.methods:
        records = [run.records("photos", method, 0) for run in (expected, found)]
        if records[0].probabilities.tobytes() != records[1].probabilities.tobytes():
            problems[f"{method} differs"] += 1
    problems.update(str(error) for error in check_run(found.folder).damaged)
    return Result("random kills", done, problems)


def _bounded(count: int, until: float) -> Iterator[int]:
    for number in range(1, count + 1):
        if time.monotonic() > until:
            return
        yield number


class Server:
    """`cots serve` as a child process on a free port of 127.0.0.1."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "cots", "serve", "--port", "0", "--views", "2", "--device", "cpu", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline() if self.process.stdout else ""
        self.port = int(line.rpartition("/ (")[0].rpartition(":")[2])

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(90)

    @property
    def resident(self) -> float:
        """Memory in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        return int(found[1]) / 1024 if found else 0.0


def fuzz_requests(
    send: Callable[[str, bytes | None, str], int], count: int, rng: random.Random, memory: Callable[[], float],
    until: float = float("inf"), warm: int = 2000,
) -> Result:  # fmt: skip
    """Send good, bad and hostile requests: no status above 499 but 503, and no growth of memory once warm."""
    statuses, done, first = Counter[int](), 0, 0.0
    for _ in _bounded(count, until):
        done += 1
        statuses[send(*_request(rng))] += 1
        if done == min(warm, count):
            first = memory()
    last = memory()
    problems = Counter({f"status {code}": n for code, n in statuses.items() if code >= 500 and code not in (503, 504)})
    growth = last / first - 1 if first else 0.0
    if growth >= 0.05:
        problems["memory grows"] += 1
    shown = ", ".join(f"{code}: {n}" for code, n in sorted(statuses.items()))
    return Result("requests", done, problems, f"{shown}; {first:.0f} MiB to {last:.0f} MiB ({growth:+.1%})")


def _request(rng: random.Random) -> tuple[str, bytes | None, str]:
    """Path, body and content type of one request."""
    kind = rng.random()
    if kind < 0.2:
        return (
            rng.choice(("/healthz", "/metrics", "/v1/runs", "/v1/methods", "/nothing", "/v1/runs/%00", "/")),
            None,
            "",
        )
    if kind < 0.5:
        logits = [[rng.gauss(0, 3) for _ in range(rng.choice((1, 3, 200)))] for _ in range(rng.choice((1, 4)))]
        body: Any = {
            "adapted": logits,
            "zero_shot": logits,
            "rows": "samples",
            "method": rng.choice(("cots", "none", "x")),
        }
        if rng.random() < 0.5:
            _mutate(body, rng)
        return "/v1/calibrate", json.dumps(body).encode(errors="replace"), "application/json"
    image = io.BytesIO()
    size = rng.choice(((40, 30), (400, 300), (1200, 900)))
    Image.effect_noise(size, 60).convert("RGB").save(image, rng.choice(("JPEG", "PNG")))
    data = bytearray(image.getvalue())
    if rng.random() < 0.2:
        data[rng.randrange(len(data))] ^= 255
    names = "\n".join(f"thing {rng.randrange(10**6)}" for _ in range(rng.choice((2, 5, 40))))
    fields = {"classes": names, "methods": rng.choice(("zeroshot", "tpt+cots", "tpt+ecots", "nonsense"))}
    mark = "frontier"
    parts = [
        f'--{mark}\r\ncontent-disposition: form-data; name="{k}"\r\n\r\n{v}\r\n'.encode() for k, v in fields.items()
    ]
    parts.append(f'--{mark}\r\ncontent-disposition: form-data; name="image"; filename="x"\r\n\r\n'.encode())
    body = b"".join([*parts, bytes(data), f"\r\n--{mark}--\r\n".encode()])
    body = body[: rng.randrange(len(body))] if rng.random() < 0.1 else body
    return "/v1/predict", body, f"multipart/form-data; boundary={mark}"


def over_http(port: int) -> Callable[[str, bytes | None, str], int]:
    def send(path: str, body: bytes | None, kind: str) -> int:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, {"content-type": kind} if kind else {})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                answer.read()
                return answer.status
        except urllib.error.HTTPError as error:
            error.read()
            return error.code

    return send


def slow_clients(port: int, count: int, seconds: float = 30.0) -> Result:
    """Open connections whose headers never end: all are closed within `seconds`."""
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    for client in clients:
        client.sendall(b"GET / HTTP/1.1\r\nx: ")
        client.settimeout(seconds)
    problems, until = Counter[str](), time.monotonic() + seconds
    for client in clients:
        client.settimeout(max(0.1, until - time.monotonic()))
        try:
            problems.update([] if client.recv(4096).startswith(HEADER_TIMEOUT) else ["other answer"])
        except TimeoutError:
            problems["still open"] += 1
        client.close()
    return Result("slow clients", count, problems)


def photos(folder: Path, each: int = 40) -> Path:
    """Three classes of noisy photos."""
    rng = np.random.default_rng(0)
    for name in ("car", "cat", "tree"):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            pixels = rng.integers(0, 256, (8, 10, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((50, 40)).save(folder / name / f"{i}.png")
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0, help="upper bound for each check")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--flips", type=int, default=300)
    parser.add_argument("--manifests", type=int, default=1000)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--clients", type=int, default=300)
    args = parser.parse_args()
    rng, results = random.Random(args.seed), []

    def until() -> float:
        return time.monotonic() + 60 * args.minutes

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        photos(folder / "photos")
        run = bench.run(
            bench.RunConfig(datasets=folder / "photos", methods="zeroshot,tpt", views=2, out=folder / "runs" / "x")
        )
        results.append(flip_bits(run, args.flips, rng, until()))
        results.append(fuzz_manifests(run, args.manifests, rng, until()))
        results.append(mutate_images(args.images, rng, until()))
        with Server("--runs", str(folder / "runs")) as server:
            results.append(slow_clients(server.port, args.clients))
            memory = lambda: server.resident  # noqa: E731
            results.append(fuzz_requests(over_http(server.port), args.requests, rng, memory, until()))
        results.append(kill_runs(folder, args.kills, rng, until()))
    for result in results:
        state = (
            "ok" if not result.problems else "; ".join(f"{n} x {what}" for what, n in result.problems.most_common(5))
        )
        print(f"{result.name:20} {result.count:6}  {state:10} {result.note}")
    return int(any(result.problems for result in results))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    raise SystemExit(main())
