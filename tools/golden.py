"""Record the outputs of cots and compare two recordings, to check that a refactoring changes no number.

    python tools/golden.py make OUT --data DATA                      # with the environment of the checkout to record
    python tools/golden.py make OUT --data DATA --parts run predict  # less, for a check after each small change
    python tools/golden.py compare BEFORE AFTER                      # exit status 1 and one line per difference

DATA contains oxford_pets, caltech-101 and oxford_flowers in CoOp's layout. A recording has one folder per part: runs of
all methods, of the exact solver and of TTL, their report, comparisons with the paper's tables, the demo, predictions,
and a response of the server. `compare` reads the parts that AFTER contains. Records, features, sample ids and outputs
count; manifests and hashes do not, because a change of their format changes no number.
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
from safetensors import safe_open

ADAPTERS = (
    "zeroshot tpt rtpt ctpt otpt atpt soc dtpt penalty zsnorm tps mta tda onzeta dmn boostadapter dpe ecalp "
    "tda(ctpt) tda(otpt) tda(atpt) tda(soc) tda(penalty)"
)
CALIBRATORS = "none cots ecots ensemble sals cor ts zero pseudocal"
# `dac` compares text features before and after tuning, so only these adapters have it.
TEXT_TUNERS = "tpt rtpt ctpt otpt atpt soc dtpt penalty zsnorm dpe tda(ctpt) tda(otpt)"
CONFIG = "[settings.pseudocal]\ntemperature = 1.3\n"
PROGRAM = str(Path(sys.executable).with_name("cots"))
SETS = "pets,caltech,flowers"
CLASSES = "tabby cat,golden retriever,espresso"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
# Columns of a record, cells and JSON keys with measured time.
TIMES = re.compile(r"encoding|milliseconds|seconds|time|created|_s$|ms$")
HASH = re.compile(r"-[0-9a-f]{16}(?=/)")


def cots(*arguments: object, out: Path | None = None) -> None:
    command = [PROGRAM, *map(str, arguments)]
    print("$ cots", *arguments, flush=True)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    if out is not None:
        out.write_text(done.stdout)


def record_run(out: Path, data: Path, limit: int) -> None:
    (out / "settings.toml").write_text(CONFIG)
    methods = [f"{adapter}+{calibrator}" for adapter in ADAPTERS.split() for calibrator in CALIBRATORS.split()]
    methods += [f"{adapter}+dac" for adapter in TEXT_TUNERS.split()]
    # Fewer samples per batch than per dataset: online methods carry their state over a border.
    cots("run", "--config", out / "settings.toml", "--data", data, "--datasets", SETS, "--limit", limit,
         "--batch-size", limit - 1, "--quiet", "--cache", out / "features", "--methods", ",".join(methods),
         "--seeds", "0,1", "--out", out / "records")  # fmt: skip


def record_exact(out: Path, data: Path, limit: int) -> None:
    cots("run", "--data", data, "--datasets", SETS, "--limit", limit, "--quiet", "--methods", "tpt+cots,soc+ecots",
         "--solver", "exact", "--out", out / "records")  # fmt: skip


def record_ttl(out: Path, data: Path, limit: int) -> None:
    cots("run", "--data", data, "--datasets", "pets", "--limit", 2, "--quiet", "--model", "random:ViT-B-32",
         "--methods", "ttl,ttl+cots,zeroshot,tpt", "--out", out / "records")  # fmt: skip


def record_report(out: Path, data: Path, limit: int) -> None:
    cots("report", out.parent / "run" / "records", out=out / "report.txt")


def record_paper(out: Path, data: Path, limit: int) -> None:
    for table in ("fine-grained", "brier-fine-grained"):
        records = out.parent / "run" / "records"
        cots("paper", "compare", records, f"table:{table}", "--markdown", out=out / f"{table}.md")


def record_demo(out: Path, data: Path, limit: int) -> None:
    cots("demo", "--json", out=out / "demo.json")


def record_predict(out: Path, data: Path, limit: int) -> None:
    cots("predict", *pet_photos(data), "--classes", CLASSES, "--json", out=out / "predict.json")


def record_server(out: Path, data: Path, limit: int) -> None:
    answer(pet_photos(data)[0], out)


PARTS = {
    "run": record_run,
    "exact": record_exact,
    "ttl": record_ttl,
    "report": record_report,
    "paper": record_paper,
    "demo": record_demo,
    "predict": record_predict,
    "server": record_server,
}


def pet_photos(data: Path) -> list[Path]:
    return sorted((data / "oxford_pets" / "images").iterdir())[:400:80]


def make(out: Path, data: Path, limit: int, parts: list[str]) -> None:
    if limit < 2:
        sys.exit(f"--limit must be at least 2, not {limit}: online methods need two batches.")
    for part in PARTS:
        if part in parts:
            (out / part).mkdir(parents=True)
            started = time.monotonic()
            PARTS[part](out / part, data, limit)
            print(f"{part}: {time.monotonic() - started:.0f} s", flush=True)


def answer(photo: Path, out: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [PROGRAM, "serve", "--port", str(port)],
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
                    ("classes", "", CLASSES.replace(",", "\n").encode()),
                    ("methods", "", b"zeroshot,tpt,tpt+cots,tpt+ecots,soc+ecots"),
                )
            )
            + f"--{boundary}--\r\n".encode()
        )
        request = urllib.request.Request(
            f"{base}/v1/predict", body, {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        )
        (out / "server.json").write_bytes(urllib.request.urlopen(request).read())
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
        with safe_open(file, "np") as opened:
            values: dict[str, object] = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            values["ids"] = (opened.metadata() or {}).get("ids")
    elif file.suffix == ".json":
        lines = file.read_text().strip()
        try:
            values = flat(json.loads(lines))
        except json.JSONDecodeError:
            values = flat([json.loads(line) for line in lines.splitlines()])
    else:
        values = {str(i): line for i, line in enumerate(file.read_text().splitlines())}
    return {name: value for name, value in values.items() if not TIMES.search(name)}


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


def recorded(folder: Path) -> dict[str, Path]:
    """The files of a recording by name, without manifests and with folders named without the hash of their settings."""
    kinds = {".safetensors", ".json", ".csv", ".md", ".txt"}
    files = {}
    for file in sorted(folder.rglob("*")):
        if file.suffix in kinds and file.is_file() and file.name != "manifest.json":
            files[HASH.sub("", str(file.relative_to(folder)))] = file
    return files


def compare(before: Path, after: Path) -> int:
    """Print one line per difference; their number. Paths of the two folders do not count."""
    differences = 0
    parts = [part for part in PARTS if (after / part).is_dir()]
    if not parts:
        sys.exit(f"{after} contains no recording.")
    old_files, new_files = recorded(before), recorded(after)
    names = [name for name in sorted(old_files.keys() | new_files.keys()) if name.split("/")[0] in parts]
    for name in names:
        if name not in old_files or name not in new_files:
            differences += 1
            print(f"{name}: only in the recording {'after' if name in new_files else 'before'}")
            continue
        old, new = read(old_files[name]), read(new_files[name])
        for key in sorted(old.keys() | new.keys()):
            a, b = old.get(key), new.get(key)
            if isinstance(a, str) and isinstance(b, str):
                a, b = a.replace(str(before), ""), b.replace(str(after), "")
            if not same(a, b):
                differences += 1
                print(f"{name} {key}: {str(a)[:120]} -> {str(b)[:120]}")
    print(f"{', '.join(parts)}: {len(names)} files, {differences} differences")
    return differences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    maker = verbs.add_parser("make")
    maker.add_argument("out", type=Path)
    maker.add_argument("--data", type=Path, required=True)
    maker.add_argument("--limit", type=int, default=12, help="photos per dataset")
    maker.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to record; default: all")
    pair = verbs.add_parser("compare")
    pair.add_argument("before", type=Path)
    pair.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.verb == "make":
        os.environ.setdefault("OMP_NUM_THREADS", "2")
        make(given.out.resolve(), given.data.resolve(), given.limit, given.parts)
    else:
        sys.exit(1 if compare(given.before.resolve(), given.after.resolve()) else 0)


if __name__ == "__main__":
    main()
