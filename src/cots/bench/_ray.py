"""The Ray engine: workers load the model once and then process one unit of work after another.

Ray places workers and detects lost ones. The driver assigns units, replaces lost workers, retries units that failed or
were lost, and writes error records for units that keep failing.

Ray's ActorPool, max_restarts and max_task_retries do not cover the last two. The pool raises the error of a failed call
without its unit, whose records need the error. Ray counts every retry, so on preemptible machines it would abandon a
unit that loses its worker three times even if each attempt adds records; here only attempts without progress count. And
Ray restarts a worker that cannot start on the same machine; this pool leaves it out and uses the others.
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
    with _connected(ray, plan.config.ray_address):
        pool = _Pool(ray, plan, manifest, jobs, progress, watch)
        try:
            pool.wait_for_room()
            pool.run(
                Unit(job=index, shards=group, records=records)
                for index, job in enumerate(jobs)
                for group, records in job.open_groups()
            )
            # Streams need the features of all shards.
            pool.run(
                Unit(job=index, stream=name, records=stream.count(stream.missing()))
                for index, job in enumerate(jobs)
                for name, stream in job.streams.items()
                if stream.missing()
            )
        finally:
            pool.close()


@dataclass(eq=False)
class _Worker:
    """The driver's view of a worker: starting (no host yet), idle (no unit) or busy."""

    actor: Any
    host: str = ""
    unit: Unit | None = None


class _Pool:
    def __init__(
        self, ray: Any, plan: Plan, manifest: dict[str, Any], jobs: Sequence[Job], progress: Progress, watch: Watch
    ) -> None:
        self.ray, self.config, self.jobs, self.progress, self.watch = ray, plan.config, jobs, progress, watch
        self.cpus, self.gpus = plan.config.worker_resources
        self.failures = self.given_up = self.refused = 0
        self._total = [len(job.methods) * len(job.indices) for job in jobs]
        self._done = [total - job.count(job.missing()) for job, total in zip(jobs, self._total, strict=True)]
        self._pending: dict[Any, _Worker] = {}  # starting and busy workers, by the call that is awaited
        self._idle: list[_Worker] = []
        self._actor = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus)(Worker)
        # Workers have other working folders.
        given = {name: where for name in ("out", "cache") if (where := getattr(plan.config, name)) is not None}
        places = {name: where if "://" in str(where) else os.path.abspath(where) for name, where in given.items()}
        # In the object store once, with the samples and any model that the caller has loaded.
        self._config = ray.put(replace(plan.config, datasets=plan.datasets, data=None, **places))
        self._settings = {
            "folder": os.getcwd(),
            "threads": torch.get_num_threads(),
            "cots": version("cots"),
            "created": manifest["created"],
            "device": plan.resolved["device"],
            "gpus": self.gpus,
            "plugins": {str(path): plugin_source(str(path)) for path in plan.config.plugins},
        }

    def wait_for_room(self) -> None:
        """Wait until a task with a worker's resources can run, for at most `wait` seconds."""
        probe = self.ray.remote(num_cpus=self.cpus, num_gpus=self.gpus)(lambda: None).remote()
        deadline = time.monotonic() + self.config.patience
        while not self.ray.wait([probe], timeout=min(_TICK, self.config.patience))[0]:
            self._report()
            if time.monotonic() > deadline:
                self.ray.cancel(probe, force=True)
                has, free = self.ray.cluster_resources(), self.ray.available_resources()
                amounts = [f"{of.get('CPU', 0):g} CPU and {of.get('GPU', 0):g} GPU" for of in (has, free)]
                raise CotsError(
                    f"No resources for a worker within {self.config.patience:g} s: it needs "
                    f"{self.config.worker_demand} on one machine; the cluster has {amounts[0]} in total and "
                    f"{amounts[1]} free. Request less (--cpus-per-worker, --gpus-per-worker) or wait longer (--wait)."
                )

    def run(self, units: Iterable[Unit]) -> None:
        """Process `units`, in any order, on as many workers as fit."""
        queue = deque(units)
        while queue or any(worker.unit for worker in self._pending.values()):
            self._start_workers(len(queue))
            while queue and self._idle:
                worker = self._idle.pop()
                worker.unit = queue.popleft()
                self._pending[worker.actor.work.remote(worker.unit)] = worker
            for call in self.ray.wait(list(self._pending), num_returns=1, timeout=_TICK)[0]:
                if (again := self._on_result(call)) is not None:
                    queue.append(again)
            self._report()

    def close(self) -> None:
        """Stop all workers, even in the middle of a shard."""
        for worker in self._workers:
            self._end(worker)

    @property
    def _workers(self) -> list[_Worker]:
        return [*self._pending.values(), *self._idle]

    def _start_workers(self, waiting: int) -> None:
        """Start as many workers as fit and have work; machines may join and leave."""
        room = self._room()
        busy = sum(worker.unit is not None for worker in self._workers)
        wanted = min(max(1, room - self.refused), self.config.max_workers or room, busy + waiting)
        for _ in range(wanted - len(self._workers)):
            worker = _Worker(self._actor.remote(self._config, self._settings))
            self._pending[worker.actor.ready.remote()] = worker

    def _room(self) -> int:
        """Number of workers that fit into the cluster, at least 1."""
        asked = {"CPU": self.cpus, "GPU": self.gpus}
        machines = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        fits = [[int(has.get(name, 0.0) / need + 1e-6) for name, need in asked.items() if need] for has in machines]
        return max(1, sum(min(each, default=1) for each in fits))

    def _on_result(self, call: Any) -> Unit | None:
        """Handle a call that returned or failed; returns the unit if it must be retried."""
        worker = self._pending.pop(call)
        unit, worker.unit = worker.unit, None
        try:
            value = self.ray.get(call)
        except self.ray.exceptions.RayError as error:
            return self._on_error(worker, unit, error)
        self._idle.append(worker)
        if unit is None:
            worker.host = value
        else:
            self._advance(unit, unit.records)
        return None

    def _on_error(self, worker: _Worker, unit: Unit | None, error: Exception) -> Unit | None:
        """Handle a worker that could not start, or a failed unit; returns the unit if it must be retried."""
        raised = isinstance(error, self.ray.exceptions.RayTaskError)
        cause = getattr(error, "cause", None) if raised else None
        cause = cause or RuntimeError(f"its process or machine was lost ({type(error).__name__})")
        # After an unexpected error the state of the GPU is unknown, so another process takes over.
        if unit is not None and raised and (not self.gpus or isinstance(cause, CotsError)):
            self._idle.append(worker)
        else:
            self._end(worker)
        if unit is not None:
            return self._on_failure(unit, cause, worker.host)
        self.refused += 1
        if not self._workers and (raised or self.refused >= TRIES):
            raise CotsError(f"No worker could start: {cause}") from cause
        warnings.warn(f"A worker could not start and is left out: {cause}", stacklevel=2)
        return None

    def _on_failure(self, unit: Unit, cause: BaseException, host: str) -> Unit | None:
        self.failures += 1
        part = unit.part(self.jobs)
        missing = part.missing()
        left = part.count(missing)
        self._advance(unit, unit.records - left)
        tries = 0 if left < unit.records else unit.tries + 1  # a unit that makes progress is not abandoned
        if left and tries < TRIES:
            return replace(unit, records=left, tries=tries)
        if not left:
            return None
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
        return None

    def _end(self, worker: _Worker) -> None:
        with contextlib.suppress(Exception):
            self.ray.kill(worker.actor)

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
