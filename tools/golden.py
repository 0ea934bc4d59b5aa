"""Record the outputs of cots and compare two recordings, to check that a refactoring changes no number.

    python tools/golden.py make OUT --data DATA      # with the environment of the checkout to record
    python tools/golden.py compare BEFORE AFTER      # exit status 1 and one line per difference

DATA contains oxford_pets, caltech-101 and oxford_flowers in CoOp's layout. A recording contains run folders, a report,
the demo, predictions, comparisons with the paper's tables, and a response of the server.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

ADAPTERS = (
    "zeroshot tpt ctpt otpt atpt soc dtpt penalty zsnorm tps tda tda(ctpt) tda(otpt) tda(atpt) tda(soc) tda(penalty)"
)
CALIBRATORS = "none cots ecots ensemble sals cor ts zero"
PROGRAM = str(Path(sys.executable).with_name("cots"))
SETS = "pets,caltech,flowers"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
# Columns of a record, cells and JSON keys with measured time.
TIMES = re.compile(r"milliseconds|seconds|time|created|_s$|ms$")


def cots(*arguments: object, out: Path | None = None) -> None:
    command = [PROGRAM, *map(str, arguments)]
    print("$ cots", *arguments, flush=True)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    if out is not None:
        out.write_text(done.stdout)


def make(out: Path, data: Path, limit: int) -> None:
    out.mkdir(parents=True)
    photos = sorted((data / "oxford_pets" / "images").iterdir())[:400:80]
    every = ",".join(f"{a}+{c}" for a in ADAPTERS.split() for c in CALIBRATORS.split())
    common = ("--data", data, "--datasets", SETS, "--limit", limit, "--quiet", "--cache", out / "features")
    cots("run", *common, "--methods", every, "--seeds", "0,1", "--out", out / "run")
    cots("run", *common, "--methods", "tpt+cots,soc+ecots", "--solver", "exact", "--out", out / "run-exact")
    cots("run", "--data", data, "--datasets", "pets", "--limit", 2, "--quiet", "--model", "random:ViT-B-32",
         "--methods", "ttl,ttl+cots,zeroshot,tpt", "--out", out / "run-ttl")  # fmt: skip
    cots("report", out / "run", out=out / "report.txt")
    cots("demo", "--json", out=out / "demo.json")
    cots("predict", *photos, "--classes", "tabby cat,golden retriever,espresso", "--json", out=out / "predict.json")
    cots("paper", "compare", out / "run", "table:fine-grained", "--markdown", out=out / "paper-fine-grained.md")
    cots("paper", "compare", out / "run", "table:brier-fine-grained", "--markdown", out=out / "paper-brier.md")
    answer(photos[0], out)


def answer(photo: Path, out: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [PROGRAM, "serve", "--port", str(port), "--runs", str(out)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        base = f"http://127.0.0.1:{port}"
        for _ in range(120):
            try:
                urllib.request.urlopen(f"{base}/healthz").read()
                break
            except OSError:
                time.sleep(1)
        boundary = uuid.uuid4().hex
        body = (
            b"".join(
                f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'.encode()
                + value
                + b"\r\n"
                for name, extra, value in (
                    ("image", '; filename="photo.jpg"', photo.read_bytes()),
                    ("classes", "", b"tabby cat\ngolden retriever\nespresso"),
                    ("methods", "", b"zeroshot,tpt,tpt+cots,tpt+ecots,soc+ecots"),
                )
            )
            + f"--{boundary}--\r\n".encode()
        )
        request = urllib.request.Request(
            f"{base}/v1/predict", body, {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        )
        (out / "server.json").write_bytes(urllib.request.urlopen(request).read())
        (out / "server-run.json").write_bytes(urllib.request.urlopen(f"{base}/v1/runs/run").read())
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def flat(value: object, path: str = "") -> dict[str, object]:
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in flat(item, f"{path}/{key}").items()}
    if isinstance(value, list):
        return {k: v for i, item in enumerate(value) for k, v in flat(item, f"{path}/{i}").items()}
    return {path: value}


def read(file: Path) -> dict[str, object]:
    """A file as named values, without what was measured by a clock."""
    if file.suffix == ".safetensors":
        found: dict[str, object] = dict(load_file(file))
    elif file.suffix == ".json":
        lines = file.read_text().strip()
        try:
            found = flat(json.loads(lines))
        except json.JSONDecodeError:
            found = flat([json.loads(line) for line in lines.splitlines()])
    else:
        found = {str(i): line for i, line in enumerate(file.read_text().splitlines())}
    return {name: value for name, value in found.items() if not TIMES.search(name)}


def same(before: object, after: object) -> bool:
    """Tensors bit for bit; numbers inside text to 12 digits, since reports print more digits than they compute."""
    if isinstance(before, np.ndarray) and isinstance(after, np.ndarray):
        alike = before.dtype == after.dtype and before.shape == after.shape
        return alike and before.tobytes() == after.tobytes()
    if before == after or not isinstance(before, str) or not isinstance(after, str):
        return before == after
    if NUMBER.sub("#", before) != NUMBER.sub("#", after):
        return False
    pairs = zip(NUMBER.findall(before), NUMBER.findall(after), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=1e-12, abs_tol=1e-12) for a, b in pairs)


def compare(before: Path, after: Path) -> int:
    """Print one line per difference; their number. Paths of the two folders do not count."""
    differences = 0
    kinds = {".safetensors", ".json", ".csv", ".md", ".txt"}
    files = [file for file in sorted(before.rglob("*")) if file.suffix in kinds and file.is_file()]
    for file in files:
        name = file.relative_to(before)
        if not (after / name).is_file():
            differences += 1
            print(f"{name}: missing")
            continue
        old, new = read(file), read(after / name)
        for key in sorted(old.keys() | new.keys()):
            a, b = old.get(key), new.get(key)
            if isinstance(a, str) and isinstance(b, str):
                a, b = a.replace(str(before), ""), b.replace(str(after), "")
            if not same(a, b):
                differences += 1
                print(f"{name} {key}: {str(a)[:120]} -> {str(b)[:120]}")
    print(f"{len(files)} files, {differences} differences")
    return differences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    maker = verbs.add_parser("make")
    maker.add_argument("out", type=Path)
    maker.add_argument("--data", type=Path, required=True)
    maker.add_argument("--limit", type=int, default=12, help="photos per dataset")
    pair = verbs.add_parser("compare")
    pair.add_argument("before", type=Path)
    pair.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.verb == "make":
        os.environ.setdefault("OMP_NUM_THREADS", "2")
        make(given.out.resolve(), given.data.resolve(), given.limit)
    else:
        sys.exit(1 if compare(given.before, given.after) else 0)


if __name__ == "__main__":
    main()
