"""Run folders: flipped bits, files in the wrong place, damaged manifests, random kills, locks."""

import contextlib
import io
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fsspec.implementations.memory import MemoryFileSystem
from PIL import Image
from upath import UPath

import cots
from cots import bench
from cots._checked import DamagedFile, verify, write_json, write_tensors
from cots.bench import _lock, check_run
from cots.conformal import Policy
from cots.evaluate import write_report

from .checks import ENDLESS, Result, bounded, listed, mutate, run_cots, unexpected
from .server import Send

COLUMNS = ("ids", "label", "prediction", "confidence", "probabilities", "errors")


def photos(folder: Path, each: int = 4) -> Path:
    """Three classes of noisy photos."""
    rng = np.random.default_rng(0)
    for name in ("car", "cat", "tree"):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            pixels = rng.integers(0, 256, (8, 10, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((50, 40)).save(folder / name / f"{i}.png")
    return folder


def options(folder: Path) -> dict[str, Any]:
    """The settings of a small run with two seeds and several shards."""
    return {
        "datasets": folder, "methods": ("zeroshot", "tpt", "tda"), "views": 2, "seeds": (0, 1), "batch_size": 4,
        "shard_size": 4,
    }  # fmt: skip


def records_of(run: bench.Run) -> dict[str, str]:
    """Everything that a record says, except times."""
    records = {}
    for dataset, method, seed in itertools.product(run.datasets, run.methods, run.seeds):
        part = run.records(dataset, method, seed)
        for column in COLUMNS:
            value = getattr(part, column)
            text = value.tobytes().hex() if isinstance(value, np.ndarray) else repr(value)
            records[f"{dataset} {method} {seed} {column}"] = text
    return records


# --- flipped bits ----------------------------------------------------------------------------------------------------


def flip_bits(run: bench.Run, count: int, rng: random.Random, until: float = ENDLESS) -> Result:
    """Flip one bit at a time in every kind of file that cots writes; each must be found, and in no other file."""
    folder = Path(str(run.folder))
    state = folder / "state" / "tda" / "00000.safetensors"  # as between two shards of a run
    write_tensors(state, {"features": torch.zeros(9)})
    kinds = {kind: sorted((folder / kind).rglob("*.safetensors")) for kind in ("features", "shards", "state")}
    done, detected, problems = 0, Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        demo, policy = Path(name) / "demo.safetensors", Path(name) / "policy.json"
        shutil.copyfile(str(files("cots") / "embedded" / demo.name), demo)
        text: Any = dict.fromkeys(("model", "weights_hash", "method", "template"), "x")
        Policy(**text, classes=("cat", "dog"), views=2, n=9, accuracy=0.5, mean_confidence=0.5).save(policy)
        kinds |= {"manifest": [folder / "manifest.json"], "demo": [demo], "policy": [policy]}
        readers: dict[str, Callable[[Path], object]] = {"demo": verify, "policy": Policy.load}
        for _ in bounded(count, until):
            done += 1
            kind = rng.choice(list(kinds))
            file = rng.choice(kinds[kind])
            with _flipped(file, rng):
                outcome = _outcome(file, readers[kind] if kind in readers else lambda _: _check(folder))
            if outcome == "found":
                detected[kind] += 1
            else:
                problems[f"{kind}: {outcome}"] += 1
    shutil.rmtree(folder / "state")
    return Result("bit flips", done, problems, listed(detected))


def _check(folder: Path) -> None:
    """Raise what `check_run` finds in a run, or an error for more than one file."""
    damaged = check_run(folder).damaged
    if len(damaged) > 1:
        raise ValueError("also found in other files")
    for error in damaged:
        raise error


def _outcome(file: Path, read: Callable[[Path], object]) -> str:
    """`found` if reading names this file as damaged, else what happened."""
    try:
        read(file)
    except DamagedFile as error:
        return "found" if error.file == file else "found in another file"
    except Exception as error:
        return type(error).__name__
    return "not found"


@contextlib.contextmanager
def _flipped(file: Path, rng: random.Random) -> Iterator[None]:
    """One bit of a file is flipped for a while."""
    whole = file.read_bytes()
    _flip(file, rng)
    try:
        yield
    finally:
        file.write_bytes(whole)


def _flip(file: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


# --- damaged and misplaced files are made again ----------------------------------------------------------------------


def repair(run: bench.Run, config: bench.RunConfig, rng: random.Random, until: float = ENDLESS) -> Result:
    """Damage features and shards and run again: each is named, set aside and made again, with the same records."""
    folder, problems, before = Path(str(run.folder)), Counter[str](), records_of(run)
    for kind in ("features", "shards"):
        file = rng.choice(sorted((folder / kind).rglob("*.safetensors")))
        with _restored(folder):
            _flip(file, rng)
            _run_again(config, file, kind, before, problems)
    return Result("repairs", 2, problems)


def swap_files(run: bench.Run, config: bench.RunConfig, folder: Path, until: float = ENDLESS) -> Result:
    """Put valid files in the place of others: `validate` names each, a run makes it again, and no record changes."""
    given = config_options(config)
    other = bench.run(bench.RunConfig(**{**given, "views": 3, "out": folder / "other"}))
    corrupted = bench.run(bench.RunConfig(**{**given, "corrupt": "gaussian_noise:3", "out": folder / "corrupted"}))
    own, before = Path(str(run.folder)), records_of(run)
    shard = sorted((own / "shards").rglob("seed0/tpt/00000.safetensors"))[0]
    features = sorted((own / "features").rglob("seed0/00000.safetensors"))[0]
    swaps = {
        "another method": (shard.parents[1] / "zeroshot" / shard.name, shard),
        "another seed": (shard.parents[2] / "seed1" / "tpt" / shard.name, shard),
        "another shard": (shard.with_name("00001.safetensors"), shard),
        "another run": (_twin(other, shard), shard),
        "features of another seed": (features.parents[1] / "seed1" / features.name, features),
        "features of corrupted photos": (_twin(corrupted, features), features),
    }
    done, problems = 0, Counter[str]()
    for name, (source, target) in swaps.items():
        if done and time.monotonic() > until:
            break
        done += 1
        with _restored(own):
            shutil.copyfile(source, target)
            _run_again(config, target, name, before, problems)
    return Result("swapped files", done, problems, f"of {len(swaps)}")


def config_options(config: bench.RunConfig) -> dict[str, Any]:
    names = ("datasets", "methods", "views", "seeds", "batch_size", "shard_size")
    return {name: getattr(config, name) for name in names}


def _twin(run: bench.Run, file: Path) -> Path:
    """The file of another run with the same name, method and seed."""
    pattern = "seed0/tpt/00000.safetensors" if file.parent.name == "tpt" else "features/*/seed0/00000.safetensors"
    return sorted(Path(str(run.folder)).rglob(pattern))[0]


def _run_again(config: bench.RunConfig, file: Path, name: str, before: dict[str, str], problems: Counter[str]) -> None:
    """Validate a run with one wrong file and run it again; features are read only where a shard is missing."""
    folder = Path(str(config.out))
    if file not in [error.file for error in check_run(folder).damaged]:
        problems[f"{name}: not found by validate"] += 1
    if "features" in file.parts:
        shutil.rmtree(folder / "shards")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again = bench.run(config)
    if not any(str(file) in str(warning.message) for warning in caught):
        problems[f"{name}: not named by a run"] += 1
    try:
        same = records_of(again) == before
    except cots.CotsError:
        same = False
    if not same:
        problems[f"{name}: other records"] += 1
    elif not check_run(folder).ok:
        problems[f"{name}: not repaired"] += 1


@contextlib.contextmanager
def _restored(folder: Path) -> Iterator[None]:
    """The tensors of a run are afterwards as they were."""
    before = {file: file.read_bytes() for file in folder.rglob("*.safetensors")}
    try:
        yield
    finally:
        for file, data in before.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)


# --- manifests -------------------------------------------------------------------------------------------------------


def fuzz_manifests(run: bench.Run, count: int, rng: random.Random, send: Send, until: float = ENDLESS) -> Result:
    """Change one value of a manifest at a time: report and check raise cots' own errors only, the server none."""
    from cots.cli import app

    file = Path(str(run.folder)) / "manifest.json"
    whole, out = file.read_bytes(), tempfile.mkdtemp()
    content = json.loads(whole)
    content.pop("cots_checksum")
    formats = itertools.cycle([*[("md", "tex", "csv")] * 9, ("html",)])  # pages take longest
    readers: list[Callable[[], object]] = [
        lambda: write_report(bench.Run.open(file.parent), out, next(formats), figures=(), resamples=2),
        lambda: app(["validate", str(file.parent)], standalone_mode=False),
    ]
    done, problems = 0, Counter[str]()
    for _ in bounded(count, until):
        done += 1
        manifest = json.loads(json.dumps(content))
        mutate(manifest, rng)
        # With a valid checksum, without one (an earlier version), or cut short.
        if rng.random() < 0.5:
            write_json(file, manifest)
        else:
            text = json.dumps(manifest).encode()
            file.write_bytes(text if rng.random() < 0.9 else text[: rng.randrange(len(text))])
        status = send("/v1/runs", None, "")
        if status >= 500:
            problems[f"/v1/runs: {status}"] += 1
        for reader in readers:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                error = unexpected(reader)
            if error:
                problems[error] += 1
    file.write_bytes(whole)
    shutil.rmtree(out)
    return Result("manifest mutations", done, problems)


# --- kills and locks -------------------------------------------------------------------------------------------------


def kill_runs(folder: Path, count: int, rng: random.Random, until: float = ENDLESS) -> Result:
    """Kill a run at random moments until it finishes: its records are those of a run that was left alone."""
    settings = folder / "kills.toml"
    settings.write_text('methods = ["zeroshot", "tpt", "tda"]\nviews = 4\nshard_size = 8\nbatch_size = 4\n')
    words = [sys.executable, "-m", "cots", "run", "--datasets", str(folder / "photos"), "--config", str(settings)]
    alone, killed = ([*words, "--quiet", "--out", str(folder / name)] for name in ("alone", "killed"))
    subprocess.run(alone, check=True)
    done, problems = 0, Counter[str]()
    for _ in bounded(count, until):
        done += 1
        process = subprocess.Popen(killed)
        while process.poll() is None and not (folder / "killed" / "manifest.json").exists():
            time.sleep(0.05)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0, 3))
        process.kill()
        process.wait()
    subprocess.run(killed, check=True)
    expected, again = bench.Run.open(folder / "alone"), bench.Run.open(folder / "killed")
    if records_of(expected) != records_of(again):
        problems["records differ"] += 1
    problems.update(str(error) for error in check_run(again.folder).damaged)
    return Result("random kills", done, problems)


def interleave_locks(until: float = ENDLESS) -> Result:
    """Two processes find the lock of a dead one in an object store: at most one gets it, wherever they interleave."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    dead = {"pid": child.pid, "host": "here", "machine": _lock._machine()}
    done, problems = 0, Counter[str]()
    with _Store() as store:
        for step in bounded(200, until):
            folder = UPath(f"memory://soak-{os.getpid()}-{step}")
            (folder / "lock").write_bytes(json.dumps(dead).encode())
            with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
                holders: list[str] = []
                store.begin(step, lambda f=folder, s=second, h=holders: _lock_as("second", f, s, h))
                _lock_as("first", folder, first, holders)
                store.end()
                if len(holders) > 1:
                    problems["both hold the lock"] += 1
                elif holders and not (folder / "lock").exists():
                    problems["a live lock was removed"] += 1
            if store.operations < step:
                break
            done += 1
    return Result("lock interleavings", done, problems)


def _lock_as(name: str, folder: UPath, held: contextlib.ExitStack, holders: list[str]) -> None:
    _lock._held.clear()  # as in another process
    with contextlib.suppress(cots.CotsError):
        held.enter_context(_lock.locked(folder))
        holders.append(name)


class _Store:
    """Counts the operations on memory:// URLs, and calls `meanwhile` before one of them."""

    NAMES = ("info", "_open", "cat_file", "pipe_file", "rm", "rm_file", "_rm")

    def __init__(self) -> None:
        self.operations = self.step = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def begin(self, step: int, meanwhile: Callable[[], None]) -> None:
        self.operations, self.step, self.meanwhile = 0, step, meanwhile

    def end(self) -> None:
        self.step = 0

    def __enter__(self) -> "_Store":
        self.originals = {name: getattr(MemoryFileSystem, name) for name in self.NAMES}
        for name, original in self.originals.items():
            setattr(MemoryFileSystem, name, self._counting(original))
        return self

    def __exit__(self, *error: object) -> None:
        for name, original in self.originals.items():
            setattr(MemoryFileSystem, name, original)

    def _counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **keywords: Any) -> Any:
            if self.step:
                self.operations += 1
                if self.operations == self.step:
                    self.step, step = 0, self.step  # the other process is not interrupted
                    self.meanwhile()
                    self.step = step
            return original(*args, **keywords)

        return counted


# --- small ones ------------------------------------------------------------------------------------------------------


def finish_and_report(run: bench.Run, folder: Path, until: float = ENDLESS) -> Result:
    """An emptied DONE is found, and a report replaces no page of somebody else."""
    own, problems = Path(str(run.folder)), Counter[str]()
    done = own / "DONE"
    whole = done.read_bytes()
    done.write_bytes(b"")
    if not run_cots("validate", own).returncode:
        problems["validate ignores an emptied DONE"] += 1
    done.write_bytes(whole)
    page = folder / "pages" / "report.html"
    page.parent.mkdir()
    page.write_text("<p>mine</p>")
    run_cots("report", own, "--out", page.parent, "--figures", "", "--resamples", 2)
    if page.read_text() != "<p>mine</p>":
        problems["report overwrites a page of somebody else"] += 1
    return Result("DONE and report", 2, problems)
