"""A server: hostile requests, large bodies, slow and many clients."""

import contextlib
import io
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from PIL import Image

from .checks import ENDLESS, Result, bounded, listed, memory_mib, mutate

Send = Callable[[str, bytes | None, str], int]
HEADER_TIMEOUT = b"HTTP/1.1 408"
GROWTH = 0.05  # of memory, once warm
WARM, EVERY = 2000, 50  # requests before memory counts, and between two looks at it
PAGES = ("/", "/docs", "/healthz", "/metrics", "/v1/runs", "/v1/methods", "/v1/monitor", "/nothing", "/v1/runs/%00")
TYPES = ("application/json", "multipart/form-data; boundary=b", "text/plain")
SIZES = ((40, 30), (400, 300))
MIB = 2**20
HEALTH_S = 1.0  # /healthz answers within this during any single request, on an idle machine
FACTOR, FIXED_MIB = 10, 200  # memory that a request may take: a multiple of its size, and a constant
LOG_BYTES = 64 * 1024  # that malformed requests may add to a log


class Server:
    """`cots serve` as a child process on a free port of 127.0.0.1."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "cots", "serve", "--port", "0", "--views", "2", "--device", "cpu", *words]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        line = self.process.stdout.readline() if self.process.stdout else ""
        self.port = int(line.rpartition("/ (")[0].rpartition(":")[2])

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *error: object) -> None:
        if not self.stop(90):
            self.process.kill()
        self._log.close()

    def stop(self, seconds: float) -> bool:
        """Whether SIGTERM ends the process in time."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def log_size(self) -> int:
        return self._log.seek(0, io.SEEK_END)

    @property
    def resident(self) -> float:
        """Memory in MiB."""
        return memory_mib(self.process.pid, "VmRSS")

    def reset_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    @property
    def peak(self) -> float:
        """Most memory in MiB since `reset_peak`."""
        return memory_mib(self.process.pid, "VmHWM")


def over_http(port: int, timeout: float = 120) -> Send:
    """Send a request; its status, or 599 without an answer."""

    def send(path: str, body: bytes | None, kind: str) -> int:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, {"content-type": kind} if kind else {})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                answer.read()
                return answer.status
        except urllib.error.HTTPError as error:
            error.read()
            return error.code
        except OSError:
            return 599

    return send


def multipart(image: bytes, classes: str, methods: str) -> bytes:
    """The form of a prediction, with the boundary `b`."""
    fields = {"classes": classes, "methods": methods}
    parts = [f'--b\r\ncontent-disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in fields.items()]
    head = "".join([*parts, '--b\r\ncontent-disposition: form-data; name="image"; filename="x"\r\n\r\n'])
    return head.encode() + image + b"\r\n--b--\r\n"


# --- hostile requests ------------------------------------------------------------------------------------------------


def fuzz_requests(
    send: Send, count: int, rng: random.Random, memory: Callable[[], float], until: float = ENDLESS
) -> Result:
    """Send good, bad and hostile requests: no status above 499 but 503 and 504, and no growth of memory once warm."""
    images = []
    for size in SIZES:
        for kind in ("JPEG", "PNG"):
            buffer = io.BytesIO()
            Image.effect_noise(size, 60).convert("RGB").save(buffer, kind)
            images.append(buffer.getvalue())
    statuses, done, sizes = Counter[int](), 0, []
    for done in bounded(count, until):
        statuses[send(*_request(rng, images))] += 1
        if done % EVERY == 0:
            sizes.append(memory())
    problems = Counter({f"status {code}": n for code, n in statuses.items() if code >= 500 and code not in (503, 504)})
    note, warm, window = listed(statuses), WARM // EVERY, WARM // EVERY // 2
    if len(sizes) >= warm + window:
        first, last = (sum(some) / window for some in (sizes[warm - window : warm], sizes[-window:]))
        note += f"; {first:.0f} MiB before {WARM} requests, {last:.0f} MiB at the end ({last / first - 1:+.1%})"
        if last / first - 1 >= GROWTH:
            problems["memory grows"] += 1
    return Result("requests", done, problems, note)


def _request(rng: random.Random, images: list[bytes]) -> tuple[str, bytes | None, str]:
    """Path, body and content type of one request."""
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(PAGES), None, ""
    if kind < 0.4:
        return rng.choice(("/v1/predict", "/v1/calibrate")), rng.randbytes(rng.randrange(3000)), rng.choice(TYPES)
    if kind < 0.45:
        labels: Any = {"labels": [{"id": f"{rng.randrange(16**24):024x}", "right": rng.random() < 0.5}]}
        mutate(labels, rng)
        return "/v1/labels", json.dumps(labels).encode(errors="replace"), TYPES[0]
    if kind < 0.8:
        logits = [[rng.gauss(0, 3) for _ in range(rng.choice((1, 3, 200)))] for _ in range(rng.choice((1, 4)))]
        method = rng.choice(("cots", "none", "x"))
        body: Any = {"adapted": logits, "zero_shot": logits, "rows": "samples", "method": method}
        if rng.random() < 0.5:
            mutate(body, rng)
        return "/v1/calibrate", json.dumps(body).encode(errors="replace"), TYPES[0]
    data = bytearray(rng.choice(images))
    if rng.random() < 0.2:
        data[rng.randrange(len(data))] ^= 255
    names = "\n".join(f"thing {rng.randrange(10**6)}" for _ in range(rng.choice((2, 5, 40))))
    body = multipart(bytes(data), names, rng.choice(("zeroshot", "tpt+cots", "tpt+ecots", "nonsense")))
    return "/v1/predict", body[: rng.randrange(len(body))] if rng.random() < 0.1 else body, TYPES[1]


# --- large bodies ----------------------------------------------------------------------------------------------------


def large_bodies(size: int = 4 * MIB, until: float = ENDLESS) -> Result:
    """One large request at a time: its memory is bounded, /healthz answers meanwhile, and SIGTERM ends the server."""
    done, problems, slowest, most = 0, Counter[str](), 0.0, 0.0
    with Server("--timeout", "10") as server:
        send = over_http(server.port)
        send("/v1/predict", multipart(_photo(), "a\nb", "zeroshot"), TYPES[1])
        for name, (path, body) in _large(size).items():
            if done and time.monotonic() > until:
                break
            done += 1
            server.reset_peak()
            before = server.resident
            with _watching(server.port) as health:
                status = send(path, body, TYPES[0])
            grown, waited = server.peak - before, max(health)
            slowest, most = max(slowest, waited), max(most, grown)
            if status >= 500:
                problems[f"{name}: status {status}"] += 1
            if grown > FACTOR * len(body) / MIB + FIXED_MIB:
                problems[f"{name}: {grown:.0f} MiB"] += 1
            if waited > HEALTH_S:
                problems[f"{name}: /healthz took {waited:.1f} s"] += 1
        body = _large(3 * size)["adapted of ones"][1]
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(send, "/v1/calibrate", body, TYPES[0])
            time.sleep(0.5)
            if not server.stop(30):
                problems["SIGTERM does not end the server"] += 1
                server.process.kill()
            answer.result()
    return Result("large bodies", done, problems, f"/healthz at most {slowest:.2f} s, at most +{most:.0f} MiB")


def _large(size: int) -> dict[str, tuple[str, bytes]]:
    """Path and body of requests of about `size` bytes."""
    ones = b"[" + b"1," * (size // 2) + b"1]"
    image = b'"image":"AAAA"'
    row = b"[" + b",".join(b"%.4f" % (0.01 * i) for i in range(1000)) + b"]"
    logits = b"[" + b",".join([row] * (size // 2 // len(row))) + b"]"
    return {
        "adapted of ones": ("/v1/calibrate", b'{"adapted":' + ones + b"}"),
        "classes of ones": ("/v1/predict", b"{" + image + b',"classes":' + ones + b"}"),
        "methods of ones": ("/v1/predict", b"{" + image + b',"classes":["a","b"],"methods":' + ones + b"}"),
        "nested lists": ("/v1/calibrate", b'{"adapted":' + b"[" * (size // 2) + b"]" * (size // 2) + b"}"),
        "keys": ("/v1/calibrate", b"{" + b",".join(b'"%d":0' % i for i in range(size // 12)) + b"}"),
        "valid logits": (
            "/v1/calibrate", b'{"adapted":' + logits + b',"zero_shot":' + logits + b',"rows":"samples"}',
        ),
    }  # fmt: skip


@contextlib.contextmanager
def _watching(port: int) -> Iterator[list[float]]:
    """Ask /healthz all the time; the seconds of each answer."""
    seconds, over, send = [0.0], threading.Event(), over_http(port)

    def watch() -> None:
        while not over.is_set():
            started = time.monotonic()
            status = send("/healthz", None, "")
            seconds.append(time.monotonic() - started if status == 200 else ENDLESS)
            over.wait(0.02)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seconds
    finally:
        over.set()
        thread.join()


def _photo(size: tuple[int, int] = (60, 40)) -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise(size, 60).convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


# --- slow and many clients -------------------------------------------------------------------------------------------


def slow_clients(port: int, count: int, seconds: float = 30.0, until: float = ENDLESS) -> Result:
    """Open connections whose headers never end: all are closed within `seconds`."""
    problems, end = Counter[str](), time.monotonic() + seconds
    clients = _connect(port, count, b"GET / HTTP/1.1\r\nx: ")
    for client in clients:
        client.settimeout(max(0.1, end - time.monotonic()))
        with contextlib.suppress(ConnectionError):
            try:
                data = client.recv(4096)
            except TimeoutError:
                problems["still open"] += 1
            else:
                if data and not data.startswith((HEADER_TIMEOUT, b"HTTP/1.1 503", b"HTTP/1.1 429")):
                    problems["other answer"] += 1
        client.close()
    return Result("slow clients", count, problems)


def slow_readers(count: int = 600, seconds: float = 20.0, until: float = ENDLESS) -> Result:
    """Clients that pipeline requests and read no answer: /healthz answers other addresses, and all are closed."""
    request = b"GET /static/classes.json HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 200
    problems, slowest = Counter[str](), 0.0
    with Server("--timeout", "10") as server:
        send, end = over_http(server.port, timeout=5), time.monotonic() + 3 * seconds
        clients = _connect(server.port, count, request)
        quiet = time.monotonic() + seconds
        while time.monotonic() < quiet:
            started = time.monotonic()
            status = send("/healthz", None, "")
            waited = time.monotonic() - started
            slowest = max(slowest, waited)
            if status != 200 or waited > 2 * HEALTH_S:
                problems[f"/healthz: {'no answer' if status == 599 else status}"] += 1
            time.sleep(0.2)
        left = clients
        while left and time.monotonic() < end:
            time.sleep(0.5)
            left = [client for client in left if _is_open(client)]
        if left:
            problems["still open"] += len(left)
        for client in clients:
            client.close()
    return Result("slow readers", count, problems, f"/healthz at most {slowest:.2f} s")


def _connect(port: int, count: int, data: bytes) -> list[socket.socket]:
    """Clients at another address of this machine that send as much of `data` as the server takes."""
    clients = []
    for _ in range(count):
        try:
            client = socket.create_connection(("127.0.0.1", port), 5, source_address=("127.0.0.2", 0))
        except OSError:
            continue
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        with contextlib.suppress(OSError):
            client.send(data)
        clients.append(client)
    return clients


def _is_open(client: socket.socket) -> bool:
    """Whether the server has not reset the connection; sending shows it, because this client does not read."""
    try:
        client.send(b"G")
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def crowd(count: int = 200, until: float = ENDLESS) -> Result:
    """Many clients at the same time: each gets a prediction, or is told at once to try again."""
    body = multipart(_photo((400, 300)), "a\nb\nc", "tpt+cots")
    with Server("--views", "64") as server, ThreadPoolExecutor(count) as pool:
        send = over_http(server.port)
        statuses = Counter(pool.map(lambda _: send("/v1/predict", body, TYPES[1]), range(count)))
    problems = Counter({f"status {code}": n for code, n in statuses.items() if code not in (200, 429, 503)})
    return Result("crowd", count, problems, listed(statuses))


def malformed_requests(count: int = 2000, until: float = ENDLESS) -> Result:
    """Requests that are no HTTP: each is refused, and the log stays short. Without a token, none is documented."""
    done, problems = 0, Counter[str]()
    with Server() as server:
        before = server.log_size
        for _ in bounded(count, until):
            done += 1
            with socket.create_connection(("127.0.0.1", server.port), 10) as client:
                client.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
                with contextlib.suppress(ConnectionError):
                    client.recv(4096)
        logged = server.log_size - before
        if logged > LOG_BYTES * done / count:
            problems[f"{logged} bytes of log"] += 1
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/openapi.json") as answer:
            api = json.load(answer)
        if "security" in json.dumps(api).lower():
            problems["the API documents a token that the server does not require"] += 1
    return Result("malformed requests", done, problems, f"{logged} bytes of log")
