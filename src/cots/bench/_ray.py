"""The Ray engine: workers load the model once and then process one unit of work after another.

Ray places the workers (actors), restarts those whose process or machine is lost, and repeats a start that was lost. The
driver assigns units to workers that are ready, repeats units that failed or were lost as long as they make progress,
and writes error records for the others.

Two simpler designs do not fit. `ray.util.ActorPool` assigns units to workers that still wait for resources, and raises
errors without the unit, whose records need the error. Remote functions with `max_calls=0` keep the model in their
process, but Ray runs the next call of a process on any GPU that is free, and a process cannot change its GPU.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch

from .._errors import CotsError, InputError, install_extra
from .._files import Halt
from .._registry import plugin_source
from ._job import Job, Progress
from ._parts import Unit, Worker

if TYPE_CHECKING:
    from ._plan import Plan

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


Watch = Callable[[ClusterState], None]  # called about once a second


def run_on_ray(plan: Plan, manifest: dict[str, Any], jobs: Sequence[Job], progress: Progress, watch: Watch) -> None:
    """Compute the missing records of `jobs` on a Ray cluster; call it with the folder locked."""
    ray = import_ray()
    with (
        _connected(ray, plan.config.ray_address),
        contextlib.closing(_Driver(ray, plan, manifest, jobs, progress, watch)) as driver,
    ):
        driver.wait_for_room()
        driver.run(
            Unit(job=index, shards=group, records=records)
            for index, job in enumerate(jobs)
            for group, records in job.open_groups()
        )
        # Streams need the features of all shards.
        driver.run(
            Unit(job=index, stream=name, records=stream.count(stream.missing()))
            for index, job in enumerate(jobs)
            for name, stream in job.streams.items()
            if stream.missing()
        )


@dataclass(eq=False)
class _Worker:
    """The driver's view of a worker: starting (a call but no unit), busy (both) or idle (neither)."""

    actor: Any
    host: str = ""  # once it is ready
    call: Any = None
    unit: Unit | None = None

    def start(self, *settings: Any) -> None:
        self.host, self.call = "", self.actor.ready.remote(*settings)

    def work(self, unit: Unit) -> None:
        # If the worker is lost, another one may be ready before Ray has restarted it.
        self.unit, self.call = unit, self.actor.work.options(max_task_retries=0).remote(unit)


class _Driver:
    def __init__(
        self, ray: Any, plan: Plan, manifest: dict[str, Any], jobs: Sequence[Job], progress: Progress, watch: Watch
    ) -> None:
        self.ray, self.config, self.jobs, self.progress, self.watch = ray, plan.config, jobs, progress, watch
        self.cpus, self.gpus = plan.config.worker_resources
        self.failures = self.given_up = 0
        self._total = [len(job.methods) * len(job.indices) for job in jobs]
        self._done = [total - job.count(job.missing()) for job, total in zip(jobs, self._total, strict=True)]
        self._queue: deque[Unit] = deque()
        self._workers: list[_Worker] = []
        restarts = {"max_restarts": -1, "max_task_retries": TRIES - 1}
        self._actor = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, **restarts)(Worker)
        # Workers have other working folders.
        given = {name: where for name in ("out", "cache") if (where := getattr(plan.config, name)) is not None}
        places = {name: where if "://" in str(where) else os.path.abspath(where) for name, where in given.items()}
        # In the object store once, with the samples and any model that the caller has loaded.
        config = ray.put(replace(plan.config, datasets=plan.datasets, data=None, **places))
        settings = {
            "folder": os.getcwd(),
            "threads": torch.get_num_threads(),
            "cots": version("cots"),
            "created": manifest["created"],
            "device": plan.resolved["device"],
            "gpus": self.gpus,
            "plugins": {str(path): plugin_source(str(path)) for path in plan.config.plugins},
        }
        self._settings = config, settings

    def wait_for_room(self) -> None:
        """Start one worker; its process must exist within `wait` seconds."""
        process = self._start_worker().actor.__ray_ready__.remote()
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

    def run(self, units: Iterable[Unit]) -> None:
        """Process `units`, in any order, on as many workers as fit."""
        self._queue.extend(units)
        while self._queue or any(worker.unit for worker in self._workers):
            for _ in range(self._wanted() - len(self._workers)):
                self._start_worker()
            for worker in self._workers:
                if worker.call is None and self._queue:
                    worker.work(self._queue.popleft())
            calls = {worker.call: worker for worker in self._workers if worker.call is not None}
            for call in self.ray.wait(list(calls), timeout=_TICK)[0]:
                self._on_result(calls[call])
            self._report()

    def close(self) -> None:
        """Stop all workers, even in the middle of a shard."""
        for worker in self._workers:
            self.ray.kill(worker.actor)

    def _start_worker(self) -> _Worker:
        worker = _Worker(self._actor.remote())
        worker.start(*self._settings)
        self._workers.append(worker)
        return worker

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
                worker.start(*self._settings)  # when Ray has restarted its process
            elif self.gpus and not isinstance(cause, CotsError):  # the GPU may be in any state: use a new process
                self._workers.remove(worker)
                self.ray.kill(worker.actor)
            return
        if unit is None:
            worker.host = value
        else:
            self._advance(unit, unit.records)

    def _on_failure(self, unit: Unit, cause: BaseException, host: str) -> None:
        """Repeat a unit if records are missing; write error records after `TRIES` attempts without progress."""
        self.failures += 1
        part = unit.part(self.jobs)
        missing = part.missing()
        left = part.count(missing)
        self._advance(unit, unit.records - left)
        tries = 0 if left < unit.records else unit.tries + 1
        if not left:
            return
        if tries < TRIES:
            self._queue.append(replace(unit, records=left, tries=tries))
            return
        if isinstance(cause, Halt):
            raise Halt(f"{cause} (Tried {TRIES} times, the last time on {host}.)") from cause
        reason = f"{TRIES} times, the last time on {host}: {type(cause).__name__}: {cause}"
        shard = min(set().union(*missing.values()))
        part.give_up((f"The stream stopped at shard {shard}. " if unit.stream else "") + f"This shard failed {reason}")
        self._advance(unit, left)
        self.given_up += 1
        if self.given_up == 1:
            warnings.warn(
                f"Shard {shard} of {part.name}, seed {part.seed}, failed {reason.rstrip('.')}. The run continues, and "
                "the error is in the records; re-run the same command with --retry-failed to repeat failed shards.",
                stacklevel=2,
            )

    def _advance(self, unit: Unit, records: int) -> None:
        job, index = self.jobs[unit.job], unit.job
        self._done[index] += records
        self.progress("methods", job.name, job.seed, self._done[index], self._total[index])

    def _report(self) -> None:
        done, total, ready = sum(self._done), sum(self._total), sum(bool(worker.host) for worker in self._workers)
        counts = {"failures": self.failures, "given_up": self.given_up, "waiting": not ready}
        self.watch(ClusterState(done=done, total=total, workers=ready, **counts))


def import_ray() -> Any:
    # Under `uv run`, Ray would make every worker build an environment from a copy of the current folder. Ray reads this
    # variable when it is imported.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    try:
        import ray
    except ImportError:
        raise InputError(f"engine='ray' needs Ray: {install_extra('ray')}.") from None
    return ray


@contextlib.contextmanager
def _connected(ray: Any, address: str | None) -> Iterator[None]:
    """Connect to the cluster at `address`, at RAY_ADDRESS or on this machine, or start a local one."""
    if ray.is_initialized():  # the caller's own connection
        yield
        return
    where = address or os.environ.get("RAY_ADDRESS") or ""
    host, _, port = where.rpartition("://")[2].rpartition(":")
    try:
        if host and port.isdigit():  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        options: dict[str, Any] = {} if where else {"include_dashboard": False}
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ValueError, RuntimeError, OSError) as error:
        raise CotsError(
            f"No Ray cluster could be reached at {where or 'this machine'} ({error}). Check --ray-address or "
            "RAY_ADDRESS, and that `ray status` answers there."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()
