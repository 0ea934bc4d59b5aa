"""The command line: which parts run, and how the time is divided among them."""

import argparse
import contextlib
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cots import bench

from . import configs, images, programs, runs, server, weights
from .checks import Result, in_child


@dataclass(frozen=True)
class Scene:
    """What the parts work on: a finished run, a server that lists it, and a folder."""

    folder: Path
    config: bench.RunConfig
    run: bench.Run
    server: server.Server
    rng: random.Random
    scale: float  # of the number of repetitions

    @property
    def photos(self) -> Path:
        return self.folder / "photos"

    @property
    def send(self) -> server.Send:
        return server.over_http(self.server.port)

    def count(self, number: int) -> int:
        return max(1, round(self.scale * number))


Part = Callable[[Scene, float], Result]
# Each part with its share of the time. Most have a fixed number of steps; the others stop when their time is over.
PARTS: dict[str, tuple[float, Part]] = {
    "weights": (4, lambda s, until: weights.load_malicious_files(until)),
    "bodies": (4, lambda s, until: server.large_bodies(s.count(4 * server.MIB), until)),
    "readers": (4, lambda s, until: server.slow_readers(600, max(5.0, 20 * s.scale), until)),
    "clients": (2, lambda s, until: server.slow_clients(s.server.port, s.count(300), 30, until)),
    "photos": (1, lambda s, until: images.hostile_datasets(s.folder, s.send, until)),
    "swaps": (3, lambda s, until: runs.swap_files(s.run, s.config, s.folder, until)),
    "repairs": (1, lambda s, until: runs.repair(s.run, s.config, s.rng, until)),
    "flips": (3, lambda s, until: runs.flip_bits(s.run, s.count(300), s.rng, until)),
    "configs": (4, lambda s, until: configs.mutate_configs(s.photos, s.folder, s.count(1000), s.rng, until)),
    "classes": (2, lambda s, until: configs.hostile_class_lists(s.photos, s.folder, until)),
    "locks": (1, lambda s, until: runs.interleave_locks(until)),
    "done": (1, lambda s, until: runs.finish_and_report(s.run, s.folder, until)),
    "malformed": (1, lambda s, until: server.malformed_requests(s.count(2000), until)),
    "images": (3, lambda s, until: in_child(images.mutate_images, s.count(4000), s.rng, until)),
    "crowd": (2, lambda s, until: server.crowd(s.count(200), until)),
    "manifests": (3, lambda s, until: runs.fuzz_manifests(s.run, s.count(300), s.rng, s.send, until)),
    "requests": (6, lambda s, until: server.fuzz_requests(
        s.send, s.count(2 * server.WARM), s.rng, lambda: s.server.resident, until)),
    "limit": (2, lambda s, until: images.raise_the_limit(until)),
    "largest": (4, lambda s, until: images.read_largest(until)),
    "kills": (4, lambda s, until: runs.kill_runs(s.folder, s.count(5), s.rng, until)),
    "schemathesis": (4, lambda s, until: programs.run_schemathesis(s.count(50), until)),
    "bandit": (1, lambda s, until: programs.run_bandit(until)),
}  # fmt: skip
# What takes long at any scale.
SLOW = ("clients", "limit", "largest", "kills", "schemathesis", "bandit", "manifests", "crowd")


def main(description: str | None) -> int:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all parts together; default: %(default)s")
    parser.add_argument(
        "--parts", help=f"comma-separated: {', '.join(PARTS)}; default: all, or the quick ones below 5 minutes"
    )
    given = parser.parse_args()
    scale = min(1.0, given.minutes / 10)
    names = (
        given.parts.split(",") if given.parts else [name for name in PARTS if given.minutes >= 5 or name not in SLOW]
    )
    unknown = sorted(set(names) - set(PARTS))
    if unknown:
        parser.error(f"unknown parts: {', '.join(unknown)}")
    end = time.monotonic() + 60 * given.minutes
    failed = []
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        config = bench.RunConfig(**runs.options(runs.photos(folder / "photos")), out=folder / "runs" / "x")
        run = bench.run(config)
        running = stack.enter_context(server.Server("--runs", str(folder / "runs")))
        scene = Scene(folder, config, run, running, random.Random(given.seed), scale)
        for index, name in enumerate(names):
            left = sum(PARTS[other][0] for other in names[index:])
            if run_part(name, scene, PARTS[name][0] / left * (end - time.monotonic())):
                failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "ok", flush=True)
    return int(bool(failed))


def run_part(name: str, scene: Scene, seconds: float) -> bool:
    """Run a part and print its result; whether it found a problem. An error of the part itself counts as one."""
    started = time.monotonic()
    try:
        result = PARTS[name][1](scene, started + seconds)
    except Exception as error:
        print(f"{name:20} {'':6} {time.monotonic() - started:6.0f} s  {type(error).__name__}: {error}", flush=True)
        return True
    problems = "; ".join(f"{n} x {what}" for what, n in result.problems.most_common(8)) or "ok"
    took = time.monotonic() - started
    print(f"{result.name:20} {result.count:6} {took:6.0f} s  {problems}  {result.note}", flush=True)
    return bool(result.problems)
