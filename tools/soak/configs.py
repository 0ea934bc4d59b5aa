"""Configs and class lists of a wrong form."""

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cots import bench
from cots.data import open_dataset

from .checks import ENDLESS, Result, bounded, unexpected

LINE_S = 5.0  # for a class list of one line of 10 MB
WHOLE = {
    "model": "mini", "methods": ["zeroshot", "tpt"], "seeds": [0], "limit": 2, "batch_size": 2, "shard_size": 2,
    "device": "cpu", "precision": "float32", "workers": 0, "solver": "adam", "template": "a photo of a {}.",
    "published_names": False, "stream_order": "list", "views": 2, "augmix": True, "renderer": "pil",
    "engine": "inline",
}  # fmt: skip
OPTIONAL = ("data", "cache", "classes", "context", "corrupt", "ray_address", "gpus_per_worker", "cpus_per_worker",
            "max_workers", "wait", "plugins", "out", "datasets")  # fmt: skip
VALUES = ("-1", "0", "7", "1e400", "nan", '""', '"x"', '"\\u0000"', '"../.."', "[]", "[1]", '["x", 1]', "[[[]]]", "{}",
          "{ a = 1 }", "true", "1979-05-27", "07:32:00", "9" * 30, '"' + "x" * 5000 + '"')  # fmt: skip
SETTINGS = ("lr", "rho", "weight", "x", '""')  # as many `steps` as in VALUES would take years


def mutate_configs(photos: Path, out: Path, count: int, rng: random.Random, until: float = ENDLESS) -> Result:
    """Config files with values of a wrong type: planning a run raises cots' own errors only."""
    file, problems, done = out / "config.toml", Counter[str](), 0
    for _ in bounded(count, until):
        done += 1
        text = _config(photos, out / "x", rng)
        file.write_text(text, encoding="utf-8")
        # The command prints errors of the file system, such as a name that is too long, in one line.
        error = unexpected(lambda: bench.plan(bench.RunConfig.from_toml(file)), OSError)
        if error:
            problems[error] += 1
    return Result("config mutations", done, problems)


def _config(photos: Path, out: Path, rng: random.Random) -> str:
    """A TOML file with one or two hostile values or settings, or with values that are nested too deeply."""
    values = {key: json.dumps(value) for key, value in WHOLE.items()}
    values |= {"out": json.dumps(str(out)), "datasets": json.dumps([str(photos)])}
    tables = ""
    for _ in range(rng.choice((1, 1, 2))):
        kind = rng.random()
        if kind < 0.7:
            values[rng.choice([*WHOLE, *OPTIONAL])] = rng.choice(VALUES)
        elif kind < 0.9:
            tables = (
                f"[settings.{rng.choice(('tpt', 'zeroshot', 'x'))}]\n{rng.choice(SETTINGS)} = {rng.choice(VALUES)}\n"
            )
        elif kind < 0.95:
            values[rng.choice(list(WHOLE))] = "[" * 5000 + "]" * rng.choice((0, 5000))
        else:
            values["settings"] = rng.choice(VALUES)
            tables = ""
    lines = [f"{key} = {value}" for key, value in values.items()]
    return "\n".join([*lines, tables])


def hostile_class_lists(photos: Path, folder: Path, until: float = ENDLESS) -> Result:
    """Class lists that are nested, long or of another kind: refused by cots' own errors, and quickly."""
    contents: dict[str, tuple[str, Callable[[], str]]] = {
        "deep JSON": ("deep.json", lambda: "[" * 100_000),
        "deep text": ("deep.txt", lambda: "[" * 100_000),
        "numbers": ("numbers.json", lambda: json.dumps([1, 2, None])),
        "an object": ("object.json", lambda: json.dumps({"car": [1], "cat": {}, "tree": None})),
        "a line of 10 MB": ("line.txt", lambda: "x" * 10_000_000 + "\ncat\ntree\n"),
        "a line of 10 MB in words": ("words.txt", lambda: "x y" * 3_333_333 + "\ncat\ntree\n"),
        "a name of 10 MB": ("name.json", lambda: json.dumps({"car": "x" * 10_000_000, "cat": "c", "tree": "t"})),
    }
    done, problems, slowest = 0, Counter[str](), 0.0
    for name, (file, content) in contents.items():
        if done and time.monotonic() > until:
            break
        done += 1
        path = folder / file
        path.write_text(content())
        config: dict[str, Any] = {"datasets": photos, "classes": path, "methods": "zeroshot", "out": folder / "never"}
        started = time.monotonic()
        for call in (
            lambda path=path: open_dataset(photos, classes=path),
            lambda config=config: bench.plan(bench.RunConfig(**config)),
        ):
            error = unexpected(call)
            if error:
                problems[f"{name}: {error}"] += 1
        seconds = time.monotonic() - started
        slowest = max(slowest, seconds)
        if seconds > LINE_S:
            problems[f"{name}: {seconds:.0f} s"] += 1
        path.unlink()
    return Result("class lists", done, problems, f"at most {slowest:.1f} s")
