"""The Ray engine: workers load the model once and then compute one unit of the run after another.

Ray places the workers (actors), restarts those that are lost, and repeats a start that was lost. The driver assigns
units to ready workers, repeats units that failed or were lost, and writes error records after three attempts in vain.

Two simpler designs do not fit. `ray.util.ActorPool` assigns work to workers that still wait for resources, and raises
errors without the work, whose records need the error. Remote functions with `max_calls=0` keep the model in their
process, but Ray runs the next call of a process on any GPU that is free, and a process cannot change its GPU.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import signal
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from msgspec.structs import asdict

from .._errors import CotsError
from .._files import Halt, location
from .._registry import load_plugin, plugin_source
from ..accelerate import accelerator
from ._cluster import connected
from ._config import RunConfig
from ._job import Job, Progress, missing_in, silent, units
from ._manifest import differences, read_manifest
from ._schema import Manifest
from ._setup import Setup, open_setup
from ._walk import run_unit

TRIES = 3
_TICK = 1.0  # seconds between two reports


@dataclass(frozen=True, kw_only=True)
class ClusterState:
    """Progress of a cluster: records done and in total, workers ready, failed attempts, abandoned units."""

    done: int
    total: int
    workers: int
    failures: int
    given_up: int
    waiting: bool  # no worker is ready


ClusterProgress = Callable[[ClusterState], None]  # called about once a second


def run_on_ray(
    setup: Setup, manifest: Manifest, jobs: Sequence[Job], progress: Progress, watch: ClusterProgress
) -> None:
    """Compute the missing records of `jobs` on a Ray cluster; call it with the folder locked."""
    with (
        connected(setup.config.ray_address) as ray,
        contextlib.closing(_Driver(ray, setup, manifest, jobs, progress, watch)) as driver,
    ):
        driver.wait_for_room()
        driver.run(streams=False)
        driver.run(streams=True)  # they need the features of all shards


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """What a worker must have in common with the driver.

    options: of the RunConfig. folder: the working folder. created: of the manifest. plugins: content by path.
    """

    options: Mapping[str, Any]
    folder: str
    threads: int
    cots: str
    created: str
    device: str
    gpus: float
    plugins: Mapping[str, bytes]


class Worker:
    """A Ray actor: a process with the model loaded that writes its results to the run folder."""

    def ready(self, given: WorkerSetup) -> str:
        """Load everything and return the name of this machine; refuses if results would differ from the driver's."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver
        here, own = f"The worker on {platform.node()}", version("cots")
        with contextlib.suppress(OSError):
            os.chdir(given.folder)  # so that relative paths mean the same as for the driver
        # The last bit of a sum can depend on the number of threads, which Ray changes.
        torch.set_num_threads(given.threads)
        if own != given.cots:
            raise CotsError(f"{here} has cots {own}, the driver {given.cots}. Install the same version.")
        for path, source in given.plugins.items():
            load_plugin(path, source)
        config = RunConfig(**given.options)
        manifest = read_manifest(location(config.out))
        if manifest is None or manifest.created != given.created:
            raise CotsError(
                f"{here} does not see the run in {config.out}. Put the run folder on a shared file system, or "
                "use a URL such as s3://bucket/run."
            )
        if given.device == "cuda" and not torch.cuda.is_available():
            raise CotsError(f"{here} was assigned a GPU but finds none. Check its GPU driver and torch.")
        if 0 < given.gpus < 1:
            accelerator().limit_memory(given.gpus)
        setup = open_setup(config, config.datasets, given.device)  # type: ignore[arg-type]
        if changed := differences(manifest, setup.manifest):
            raise CotsError(f"{here} would give different results than the driver: {'; '.join(changed)}.")
        self.units = list(itertools.chain(*units(setup.jobs())))
        return platform.node()

    def work(self, unit: int) -> None:
        """Compute the missing records of a unit."""
        run_unit(self.units[unit], silent)


@dataclass(eq=False)
class _Worker:
    """The driver's view of a worker: starting (a call but no unit), busy (both) or idle (neither)."""

    actor: Any
    host: str = ""  # once it is ready
    call: Any = None
    unit: int | None = None


class _Driver:
    def __init__(
        self,
        ray: Any,
        setup: Setup,
        manifest: Manifest,
        jobs: Sequence[Job],
        progress: Progress,
        watch: ClusterProgress,
    ) -> None:
        self.ray, self.config, self.progress, self.watch = ray, setup.config, progress, watch
        self.cpus, self.gpus = setup.config.worker_resources
        self.failures = self.given_up = 0
        self._units = list(itertools.chain(*units(jobs)))
        self._left = list(map(Job.count, self._units, missing_in(self._units)))  # missing records of each unit
        self._tries: Counter[int] = Counter()  # of each unit, since it last made progress
        self._total = Counter({(job.name, job.seed): len(job.methods) * len(job.indices) for job in jobs})
        self._done = self._total.copy()
        self._done.subtract({(job.name, job.seed): job.count(job.missing()) for job in jobs})
        self._queue: deque[int] = deque()
        self._workers: list[_Worker] = []
        remote = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_restarts=-1, max_task_retries=TRIES - 1)
        self._actor = remote(Worker)
        # In the object store once, with the samples and any model that the caller has loaded.
        self._setup = ray.put(
            WorkerSetup(
                options=_worker_options(setup),
                folder=os.getcwd(),
                threads=torch.get_num_threads(),
                cots=version("cots"),
                created=manifest.created,
                device=manifest.device,
                gpus=self.gpus,
                plugins={str(path): plugin_source(str(path)) for path in setup.config.plugins},
            )
        )

    def wait_for_room(self) -> None:
        """Start one worker; its process must exist within `wait` seconds."""
        self._start_worker()
        process = self._workers[0].actor.__ray_ready__.remote()
        deadline = time.monotonic() + self.config.patience
        while not self.ray.wait([process], timeout=min(_TICK, self.config.patience))[0]:
            self._report()
            if time.monotonic() > deadline:
                has, free = self.ray.cluster_resources(), self.ray.available_resources()
                amounts = [f"{of.get('CPU', 0):g} CPU and {of.get('GPU', 0):g} GPU" for of in (has, free)]
                raise CotsError(
                    f"No resources for a worker within {self.config.patience:g} s: it needs "
                    f"{self.config.worker_demand} on one machine; the cluster has {amounts[0]} in total and "
                    f"{amounts[1]} free. Request less (--cpus-per-worker, --gpus-per-worker) or wait longer (--wait)."
                )

    def run(self, *, streams: bool) -> None:
        """Compute the missing streams or groups of shards, in any order, on as many workers as fit."""
        self._queue.extend(n for n, unit in enumerate(self._units) if self._left[n] and unit.is_stream == streams)
        while self._queue or any(worker.unit is not None for worker in self._workers):
            for _ in range(self._wanted() - len(self._workers)):
                self._start_worker()
            for worker in self._workers:
                if worker.call is None and self._queue:
                    worker.unit = self._queue.popleft()
                    # If the worker is lost, another one may be ready before Ray has restarted it.
                    worker.call = worker.actor.work.options(max_task_retries=0).remote(worker.unit)
            calls = {worker.call: worker for worker in self._workers if worker.call is not None}
            for call in self.ray.wait(list(calls), timeout=_TICK)[0]:
                self._on_result(calls[call])
            self._report()

    def close(self) -> None:
        """Stop all workers, even in the middle of a shard."""
        for worker in self._workers:
            self.ray.kill(worker.actor)

    def _start_worker(self) -> None:
        self._workers.append(_Worker(self._actor.remote()))
        self._make_ready(self._workers[-1])

    def _make_ready(self, worker: _Worker) -> None:
        worker.host, worker.call = "", worker.actor.ready.remote(self._setup)

    def _wanted(self) -> int:
        """The number of workers that fit into the cluster now and have work; machines may join and leave."""
        asked = {"CPU": self.cpus, "GPU": self.gpus}
        machines = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        fits = [[int(has.get(name, 0.0) / need + 1e-6) for name, need in asked.items() if need] for has in machines]
        room = max(1, sum(min(each, default=1) for each in fits))
        busy = sum(worker.unit is not None for worker in self._workers)
        return min(room, self.config.max_workers or room, busy + len(self._queue))

    def _on_result(self, worker: _Worker) -> None:
        """Handle the call of a worker that returned or failed."""
        call, unit = worker.call, worker.unit
        worker.call = worker.unit = None
        try:
            value = self.ray.get(call)
        except self.ray.exceptions.RayError as error:
            raised = isinstance(error, self.ray.exceptions.RayTaskError)
            cause = error.cause if raised else RuntimeError(f"its process or machine was lost ({type(error).__name__})")
            if unit is None:
                raise CotsError(f"No worker could start: {cause}") from cause
            self._on_failure(unit, cause, worker.host)
            if not raised:
                self._make_ready(worker)  # when Ray has restarted its process
            elif self.gpus and not isinstance(cause, CotsError):  # the GPU may be in any state: use a new process
                self._workers.remove(worker)
                self.ray.kill(worker.actor)
            return
        if unit is None:
            worker.host = value
        else:
            self._set_left(unit, 0)

    def _on_failure(self, number: int, cause: BaseException, host: str) -> None:
        """Repeat a unit if records are missing; write error records after `TRIES` attempts without progress."""
        self.failures += 1
        unit, before = self._units[number], self._left[number]
        missing = unit.missing()
        self._set_left(number, left := unit.count(missing))
        self._tries[number] = 0 if left < before else self._tries[number] + 1
        if self._tries[number] < TRIES:
            if left:
                self._queue.append(number)
            return
        if isinstance(cause, Halt):
            raise Halt(f"{cause} (Tried {TRIES} times, the last time on {host}.)") from cause
        reason = f"{TRIES} times, the last time on {host}: {type(cause).__name__}: {cause}"
        shard = min(set().union(*missing.values()))
        stopped = f"The stream stopped at shard {shard}. " if unit.is_stream else ""
        unit.give_up(f"{stopped}This shard failed {reason}")
        self._set_left(number, 0)
        self.given_up += 1
        if self.given_up == 1:
            warnings.warn(
                f"Shard {shard} of {unit.name}, seed {unit.seed}, failed {reason.rstrip('.')}. The run continues, and "
                "the error is in the records; re-run the same command with --retry-failed to repeat failed shards.",
                stacklevel=2,
            )

    def _set_left(self, number: int, left: int) -> None:
        key = self._units[number].name, self._units[number].seed
        self._done[key] += self._left[number] - left
        self._left[number] = left
        self.progress("methods", *key, self._done[key], self._total[key])

    def _report(self) -> None:
        ready, total = sum(bool(worker.host) for worker in self._workers), self._total.total()
        counts = {"failures": self.failures, "given_up": self.given_up, "waiting": not ready}
        self.watch(ClusterState(done=self._done.total(), total=total, workers=ready, **counts))


def _worker_options(setup: Setup) -> dict[str, Any]:
    """The options of a worker's config: datasets opened, and paths that mean the same in another working folder."""
    options = asdict(setup.config)
    options |= {"datasets": setup.datasets, "data": None, "plugins": ()}
    for name in ("out", "cache"):
        where = options[name]
        if where is not None and "://" not in str(where):
            options[name] = os.path.abspath(where)
    return options
