"""Soak test: damage files, interrupt runs and flood a server on this machine, and print the results.

    python tools/soak.py                                       # everything, in about half an hour
    python tools/soak.py --parts requests --requests 20000     # the memory of a server

Each check is bounded in number and time, and only connects to 127.0.0.1. The exit status is 1 if anything failed.
"""

import argparse
import contextlib
import io
import itertools
import json
import math
import multiprocessing
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

import cots
from cots import bench
from cots._checked import DamagedFile, verify, write_json, write_tensors
from cots.bench import check_run
from cots.conformal import Policy
from cots.evaluate import write_report
from cots.views._read import MAX_PIXELS

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 10**30, float("nan"), "", "x", "../..", "\x00", "\ud800", "<b>", [], {}, [[]], {"a": {}},
    "9" * 999,
)  # fmt: skip
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
MODES = ("RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "I;16", "F")
HEADER_TIMEOUT = b"HTTP/1.1 408"
PARTS = ("flips", "repairs", "manifests", "images", "largest", "clients", "requests", "kills")
PEAK_GIB, GROWTH = 1.5, 0.05  # the limits that must hold
WARM, EVERY = 2000, 50  # requests before memory counts, and between two looks at it
PAGES = ("/", "/docs", "/healthz", "/metrics", "/v1/runs", "/v1/runs/x", "/v1/methods", "/nothing", "/v1/runs/%00")
TYPES = ("application/json", "multipart/form-data; boundary=b", "text/plain")
SIZES = ((40, 30), (400, 300))
Send = Callable[[str, bytes | None, str], int]


class Result(NamedTuple):
    """A check: how many times it was done, and what went wrong, by description."""

    name: str
    count: int
    problems: Counter[str]
    note: str = ""


def flip_bits(run: bench.Run, count: int, rng: random.Random, until: float = float("inf")) -> Result:
    """Flip one bit at a time in every kind of file that cots writes; each must be found, and in no other file."""
    folder = Path(str(run.folder))
    state = folder / "state" / "tda" / "00000.safetensors"  # as between two shards of a run
    write_tensors(state, {"features": torch.zeros(9)})
    kinds = {kind: sorted((folder / kind).rglob("*.safetensors")) for kind in ("features", "shards", "state")}
    done, found, problems = 0, Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        demo, policy = Path(name) / "demo.safetensors", Path(name) / "policy.json"
        shutil.copyfile(str(files("cots") / "embedded" / demo.name), demo)
        text: Any = dict.fromkeys(("model", "weights_hash", "method", "template"), "x")
        Policy(**text, classes=("cat", "dog"), views=2, n=9, accuracy=0.5, mean_confidence=0.5).save(policy)
        kinds |= {"manifest": [folder / "manifest.json"], "demo": [demo], "policy": [policy]}
        readers = {"demo": verify, "policy": Policy.load}
        for _ in _bounded(count, until):
            done += 1
            kind = rng.choice(list(kinds))
            file = rng.choice(kinds[kind])
            with _flipped(file, rng):
                named = _damaged(readers[kind], file) if kind in readers else check_run(folder).damaged
            (found if [error.file for error in named] == [file] else problems)[kind] += 1
    state.unlink()
    return Result("bit flips", done, problems, _listed(found))


def _damaged(read: Callable[[Path], object], file: Path) -> list[DamagedFile]:
    try:
        read(file)
    except DamagedFile as error:
        return [error]
    return []


@contextlib.contextmanager
def _flipped(file: Path, rng: random.Random) -> Iterator[None]:
    """One bit of a file is flipped for a while."""
    whole = file.read_bytes()
    _flip(file, rng)
    yield
    file.write_bytes(whole)


def _flip(file: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def repair(run: bench.Run, config: bench.RunConfig, rng: random.Random) -> Result:
    """Damage features and shards and run again: each is named, set aside and made again, with the same records."""
    folder, problems, before = Path(str(run.folder)), Counter[str](), _records(run)
    for kind in ("features", "shards"):
        file = rng.choice(sorted((folder / kind).rglob("*.safetensors")))
        if kind == "features":  # which are read only where a shard is missing
            shutil.rmtree(folder / "shards")
        _flip(file, rng)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            again = bench.run(config)
        if not any(str(file) in str(warning.message) for warning in said):
            problems[f"{kind}: not named"] += 1
        if _records(again) != before or not check_run(folder).ok:
            problems[f"{kind}: not repaired"] += 1
    return Result("repairs", 2, problems)


def _records(run: bench.Run) -> dict[str, bytes]:
    return {
        f"{dataset} {method}": run.records(dataset, method, seed).probabilities.tobytes()
        for dataset in run.datasets
        for method in run.methods
        for seed in run.seeds
    }


def fuzz_manifests(run: bench.Run, count: int, rng: random.Random, send: Send, until: float = float("inf")) -> Result:
    """Change one value of a manifest at a time: report and check raise cots' own errors only, the server none."""
    from cots.cli import app

    file = Path(str(run.folder)) / "manifest.json"
    whole, out = file.read_bytes(), tempfile.mkdtemp()
    formats = itertools.cycle([*[("md", "tex", "csv")] * 9, ("html",)])  # pages take longest
    readers: list[Callable[[], object]] = [
        lambda: write_report(bench.Run.open(file.parent), out, next(formats), figures=(), resamples=2),
        lambda: app(["validate", str(file.parent)], standalone_mode=False),
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
        for path in ("/v1/runs", f"/v1/runs/{file.parent.name}"):
            if (status := send(path, None, "")) >= 500:
                problems[f"{path}: {status}"] += 1
        for reader in readers:
            try:
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    reader()
            except cots.CotsError:
                refused += 1
            except Exception as error:
                problems[f"{type(error).__name__}: {error}"[:80]] += 1
    file.write_bytes(whole)
    shutil.rmtree(out)
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
        elif kind < 0.4:
            for _ in range(500):
                inner = [inner]
            value[key] = inner
        else:
            value[key] = rng.choice(ODD)
        return


def mutate_images(count: int, rng: random.Random, until: float = float("inf")) -> Result:
    """Damage image files of every format and mode: each is read, or refused with an InputError."""
    noise = Image.fromarray(np.random.default_rng(rng.randrange(2**32)).integers(0, 256, (48, 64, 3), dtype=np.uint8))
    wholes = [data for kind in FORMATS for mode in MODES if (data := _encoded(noise, mode, kind))]
    done, problems, read, before = 0, Counter[str](), 0, _peak()
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
    if _peak() > max(PEAK_GIB, before + 0.5):  # the caller may have used more
        problems["memory"] += 1
    return Result("mutated images", done, problems, f"{read} readable, peak {_peak():.2f} GiB")


def _encoded(image: Image.Image, mode: str, kind: str) -> bytes | None:
    """An image file, or None where the format has no such mode."""
    buffer = io.BytesIO()
    with contextlib.suppress(OSError, ValueError, KeyError):
        image.convert("L" if mode == "I;16" else mode).convert(mode).save(buffer, kind)
    return buffer.getvalue() or None


def read_largest(until: float = float("inf")) -> Result:
    """Read the largest image that is allowed and one that is too large, of each kind in a process of its own."""
    done, problems, worst = 0, Counter[str](), 0.0
    with tempfile.TemporaryDirectory() as name:
        allowed, refused = Path(name) / "allowed", Path(name) / "refused"
        for kind, per_pixel, write in LARGEST:
            if time.monotonic() > until:
                break
            done += 1
            side = math.isqrt(int(3 * MAX_PIXELS / per_pixel))
            write(side, allowed)
            write(side + 1, refused)
            read, peak = in_child(_read_and_measure, (allowed, refused))
            worst = max(worst, peak)
            if not read[0]:
                problems[f"{kind} of {side} x {side}: refused"] += 1
            if read[1]:
                problems[f"{kind} of {side + 1} x {side + 1}: read"] += 1
            if peak > PEAK_GIB:
                problems[f"{kind}: {peak:.2f} GiB"] += 1
    return Result("largest images", done, problems, f"of {len(LARGEST)} kinds, peak {worst:.2f} GiB")


def _read_and_measure(images: Sequence[Path]) -> tuple[list[bool], float]:
    """Whether each image is read, and the most memory that this process has used, in GiB."""
    return [_is_read(image) for image in images], _peak()


def _is_read(image: Path) -> bool:
    try:
        cots.read_image(image)
    except cots.InputError:
        return False
    return True


def _peak() -> float:
    """In GiB; getrusage would count what the parent used before this process was a program of its own."""
    return memory_mib("self", "VmHWM") / 1024


def memory_mib(process: int | str, kind: str) -> float:
    """Memory of a process as Linux counts it: VmRSS now, VmHWM at most so far."""
    found = re.search(rf"{kind}:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def in_child(call: Callable[..., Any], *args: Any) -> Any:
    """The result of a call in a new process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(call, *args).result()


def _blank(mode: str, kind: str, **options: Any) -> Callable[[int, Path], None]:
    return lambda side, file: Image.new(mode, (side, side)).save(file, kind, **options)


def _deep_png(side: int, file: Path) -> None:
    """A PNG of four channels of 16 bits, which PIL reads and does not write."""
    packer, row = zlib.compressobj(1), bytes(1 + 8 * side)
    rows = b"".join([*(packer.compress(row) for _ in range(side)), packer.flush()])
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", side, side, 16, 6, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b"")]
    parts = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


# Bytes that reading takes per pixel, as the limit counts them.
LARGEST = (
    ("16-bit RGBA PNG", 8, _deep_png),
    ("RGBA PNG", 4, _blank("RGBA", "PNG", compress_level=1)),
    ("palette PNG", 3, _blank("P", "PNG", compress_level=1, transparency=0)),
    ("16-bit grey PNG", 3, _blank("I;16", "PNG", compress_level=1)),
    ("JPEG", 3, _blank("RGB", "JPEG", subsampling=0)),
    ("progressive JPEG", 3 * 1.25, _blank("RGB", "JPEG", subsampling=0, progressive=True)),
    ("CMYK JPEG", 4, _blank("CMYK", "JPEG")),
    ("float TIFF", 4, _blank("F", "TIFF", compression="tiff_lzw")),
    ("GIF", 3, _blank("P", "GIF")),
    ("WebP", 3 * 2.5, _blank("RGB", "WEBP", method=0)),
    ("AVIF", 3 * 2.5, _blank("RGB", "AVIF", speed=10)),
)  # fmt: skip


def kill_runs(folder: Path, count: int, rng: random.Random, until: float = float("inf")) -> Result:
    """Kill a run at random moments until it finishes: its records are those of a run that was left alone."""
    settings = folder / "kills.toml"
    settings.write_text('methods = ["zeroshot", "tpt", "tda"]\nviews = 4\nshard_size = 8\nbatch_size = 4\n')
    words = [sys.executable, "-m", "cots", "run", "--datasets", str(folder / "photos"), "--config", str(settings)]
    alone, killed = ([*words, "--quiet", "--out", str(folder / name)] for name in ("alone", "killed"))
    subprocess.run(alone, check=True)
    done, problems = 0, Counter[str]()
    for _ in _bounded(count, until):
        done += 1
        process = subprocess.Popen(killed)
        while process.poll() is None and not (folder / "killed" / "manifest.json").exists():
            time.sleep(0.05)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0, 10))
        process.kill()
        process.wait()
    subprocess.run(killed, check=True)
    expected, found = bench.Run.open(folder / "alone"), bench.Run.open(folder / "killed")
    if _records(expected) != _records(found):
        problems["records differ"] += 1
    problems.update(str(error) for error in check_run(found.folder).damaged)
    return Result("random kills", done, problems)


def _bounded(count: int, until: float) -> Iterator[int]:
    for number in range(1, count + 1):
        if time.monotonic() > until:
            return
        yield number


def _listed(counts: Counter[Any]) -> str:
    return ", ".join(f"{what}: {n}" for what, n in sorted(counts.items()))


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
        return memory_mib(self.process.pid, "VmRSS")


def fuzz_requests(
    send: Send, count: int, rng: random.Random, memory: Callable[[], float], until: float = float("inf")
) -> Result:
    """Send good, bad and hostile requests: no status above 499 but 503 and 504, and no growth of memory once warm."""
    images = [_encoded(Image.effect_noise(size, 60), "RGB", kind) for size in SIZES for kind in ("JPEG", "PNG")]
    statuses, done, sizes = Counter[int](), 0, []
    for done in _bounded(count, until):
        statuses[send(*_request(rng, images))] += 1
        if done % EVERY == 0:
            sizes.append(memory())
    problems = Counter({f"status {code}": n for code, n in statuses.items() if code >= 500 and code not in (503, 504)})
    note, warm, window = _listed(statuses), WARM // EVERY, WARM // EVERY // 2
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
    if kind < 0.8:
        logits = [[rng.gauss(0, 3) for _ in range(rng.choice((1, 3, 200)))] for _ in range(rng.choice((1, 4)))]
        method = rng.choice(("cots", "none", "x"))
        body: Any = {"adapted": logits, "zero_shot": logits, "rows": "samples", "method": method}
        if rng.random() < 0.5:
            _mutate(body, rng)
        return "/v1/calibrate", json.dumps(body).encode(errors="replace"), TYPES[0]
    data = bytearray(rng.choice(images))
    if rng.random() < 0.2:
        data[rng.randrange(len(data))] ^= 255
    names = "\n".join(f"thing {rng.randrange(10**6)}" for _ in range(rng.choice((2, 5, 40))))
    fields = {"classes": names, "methods": rng.choice(("zeroshot", "tpt+cots", "tpt+ecots", "nonsense"))}
    parts = [f'--b\r\ncontent-disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in fields.items()]
    head = "".join([*parts, '--b\r\ncontent-disposition: form-data; name="image"; filename="x"\r\n\r\n'])
    body = head.encode() + bytes(data) + b"\r\n--b--\r\n"
    return "/v1/predict", body[: rng.randrange(len(body))] if rng.random() < 0.1 else body, TYPES[1]


def over_http(port: int) -> Send:
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
    parser.add_argument("--minutes", type=float, default=10.0, help="upper bound for each part")
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated; default: %(default)s")
    parser.add_argument("--requests", type=int, default=2 * WARM)
    parser.add_argument("--flips", type=int, default=300)
    parser.add_argument("--manifests", type=int, default=1000)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--clients", type=int, default=300)
    args = parser.parse_args()
    if unknown := set(args.parts.split(",")) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}")
    results = []
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder, rng = Path(name), random.Random(args.seed)
        options: Any = {"datasets": photos(folder / "photos"), "methods": "zeroshot,tpt,tda", "views": 2}
        config = bench.RunConfig(**options, out=folder / "runs" / "x")
        run = bench.run(config)
        server = stack.enter_context(Server("--runs", str(folder / "runs")))
        send = over_http(server.port)
        parts: dict[str, Callable[[float], Result]] = {
            "flips": lambda until: flip_bits(run, args.flips, rng, until),
            "repairs": lambda until: repair(run, config, rng),
            "manifests": lambda until: fuzz_manifests(run, args.manifests, rng, send, until),
            "images": lambda until: in_child(mutate_images, args.images, rng, until),
            "largest": read_largest,
            "clients": lambda until: slow_clients(server.port, args.clients),
            "requests": lambda until: fuzz_requests(send, args.requests, rng, lambda: server.resident, until),
            "kills": lambda until: kill_runs(folder, args.kills, rng, until),
        }
        for part in args.parts.split(","):
            began = time.monotonic()
            result = parts[part](began + 60 * args.minutes)
            results.append(result)
            told = "; ".join(f"{n} x {what}" for what, n in result.problems.most_common(5)) or "ok"
            print(
                f"{result.name:20} {result.count:6} {time.monotonic() - began:6.0f} s  {told}  {result.note}",
                flush=True,
            )
    return int(any(result.problems for result in results))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    raise SystemExit(main())
