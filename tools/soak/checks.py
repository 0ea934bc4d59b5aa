"""What all parts share: results, bounded loops, hostile values, memory, child processes."""

import multiprocessing
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import cots

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 10**30, float("nan"), "", "x", "../..", "\x00", "\ud800", "<b>", [], {}, [[]], {"a": {}},
    "9" * 999,
)  # fmt: skip
ENDLESS = float("inf")


class Result(NamedTuple):
    """A check: how many times it was done, and what went wrong, by description."""

    name: str
    count: int
    problems: Counter[str]
    note: str = ""


def bounded(count: int, until: float) -> Iterator[int]:
    """1 to `count`, as long as there is time, and 1 in any case: a part that does nothing would always succeed."""
    for number in range(1, count + 1):
        if number > 1 and time.monotonic() > until:
            return
        yield number


def listed(counts: Counter[Any]) -> str:
    return ", ".join(f"{what}: {n}" for what, n in sorted(counts.items()))


def unexpected(call: Callable[[], object], *also: type[Exception]) -> str | None:
    """The error of a call in one line, unless it is one of cots' own, of `also`, or there is none."""
    try:
        call()
    except (cots.CotsError, *also):
        return None
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:80].replace("\n", " ")
    return None


def mutate(value: Any, rng: random.Random) -> None:
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


def peak_gib() -> float:
    """Of this process; getrusage would count what the parent used before this process was a program of its own."""
    return memory_mib("self", "VmHWM") / 1024


def memory_mib(process: int | str, kind: str) -> float:
    """Memory of a process as Linux counts it: VmRSS now, VmHWM at most so far."""
    match = re.search(rf"{kind}:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return int(match[1]) / 1024 if match else 0.0


def in_child(call: Callable[..., Any], *args: Any) -> Any:
    """The result of a call in a new process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(call, *args).result()


def run_cots(*words: object) -> subprocess.CompletedProcess[str]:
    """`cots` with these words, in a process of its own."""
    command = [sys.executable, "-m", "cots", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
