"""The Ray engine: workers that live as long as the run and take one unit of work after the other."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch

from .._errors import CotsError, InputError
from ._engines import ClusterState, Watch, demand, patience, resources
from ._job import Job, Progress
from ._parts import Unit
from ._paths import UrlPath, location
from ._queue import TRIES, Queue

if TYPE_CHECKING:
    from ._plan import Plan

_TICK = 1.0  # seconds between two looks at the cluster


@dataclass
class _Hand:
    """A worker as the driver sees it: placing, preparing, idle or at a unit."""

    number: int
    actor: Any
    host: str = ""
    ready: bool = False
    unit: Unit | None = None
    since: float = 0.0


def run_on_ray(plan: Plan, manifest: dict[str, Any], jobs: Sequence[Job], progress: Progress, watch: Watch) -> None:
    """Do what is missing of `jobs` on a Ray cluster; called with the folder's lock held."""
    ray = _import_ray()
    with _connected(ray, plan.config.ray_address):
        driver = _Driver(ray, plan, manifest, Queue(jobs, progress), watch)
        try:
            driver.run()
        finally:
            driver.dismiss()


class _Driver:
    def __init__(self, ray: Any, plan: Plan, manifest: dict[str, Any], queue: Queue, watch: Watch) -> None:
        self.ray, self.config, self.queue, self.watch = ray, plan.config, queue, watch
        self.device = plan.resolved["device"]
        self.cpus, self.gpus = resources(plan.config, self.device)
        self._hands: dict[Any, _Hand] = {}  # by the answer that is awaited
        self._idle: list[_Hand] = []
        self._hired = self._bad_starts = 0
        self._looked = self._seen = time.monotonic()
        self._room = 1
        self._actor = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_restarts=0, max_task_retries=0)(_seat())
        everywhere = replace(plan.config, datasets=plan.datasets, data=None, **_absolute(plan.config))
        # Into the object store once: every machine fetches it, the lists of samples included, once.
        self._config = ray.put(everywhere)
        self._settings = {
            "folder": os.getcwd(),
            "threads": torch.get_num_threads(),
            "cots": version("cots"),
            "created": manifest["created"],
            "device": self.device,
        }

    def run(self) -> None:
        self._look_around()
        while not self.queue.finished:
            self._hire()
            self._hand_out()
            if self.queue.finished:
                break
            for answer in self.ray.wait(list(self._hands), num_returns=1, timeout=_TICK)[0]:
                self._hear(answer)
            self._tell()
            self._check_starvation()
        self.queue.finish()
        self._tell()

    def dismiss(self) -> None:
        """End every worker; also after Ctrl-C or an error, when some are in the middle of a shard."""
        for hand in [*self._hands.values(), *self._idle]:
            with contextlib.suppress(Exception):
                self.ray.kill(hand.actor, no_restart=True)
        self._hands.clear()
        self._idle.clear()

    @property
    def _all(self) -> list[_Hand]:
        return [*self._hands.values(), *self._idle]

    def _hire(self) -> None:
        if time.monotonic() - self._looked > 5 * _TICK:
            self._look_around()
        busy = sum(hand.unit is not None for hand in self._hands.values())
        target = min(self._room, self.config.max_workers or self._room, busy + max(1, self.queue.parallel))
        if self._bad_starts >= TRIES and self._all:
            return  # those that could start go on alone
        for _ in range(target - len(self._all)):
            hand = _Hand(number=self._hired, actor=self._actor.remote())
            self._hired += 1
            self._hands[hand.actor.place.remote()] = hand

    def _look_around(self) -> None:
        """How many workers the cluster has room for; machines may come and go. One is always tried for."""
        self._looked = time.monotonic()
        self._room = max(1, sum(self._fits(node["Resources"]) for node in self._nodes()))

    def _fits(self, has: dict[str, float]) -> int:
        asked = {"CPU": self.cpus, "GPU": self.gpus}
        each = [int(has.get(name, 0.0) / amount + 1e-6) for name, amount in asked.items() if amount]
        return min(each, default=1)

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self.ray.nodes() if node["Alive"]]

    def _hand_out(self) -> None:
        workers = sum(hand.ready for hand in self._all)
        for hand in list(self._idle):
            unit = self.queue.next(hand.number, workers)
            if unit is not None:
                self._idle.remove(hand)
                hand.unit, hand.since = unit, time.monotonic()
                self._hands[hand.actor.work.remote(unit)] = hand

    def _hear(self, answer: Any) -> None:
        hand = self._hands.pop(answer)
        unit, hand.unit = hand.unit, None
        try:
            value = self.ray.get(answer)
        except self.ray.exceptions.RayError as error:
            self._failed(hand, unit, _cause(self.ray, error))
            return
        self._seen = time.monotonic()
        if not hand.host:
            hand.host = f"{value[0]} (process {value[1]})"
            self._hands[hand.actor.prepare.remote(self._config, self._settings)] = hand
            return
        if unit is None:
            hand.ready = True
            self._bad_starts = 0
        else:
            self.queue.succeeded(unit, time.monotonic() - hand.since)
        self._idle.append(hand)

    def _failed(self, hand: _Hand, unit: Unit | None, error: BaseException) -> None:
        host = hand.host or "a machine"
        if unit is None:
            self._bad_starts += 1
            if self._bad_starts >= TRIES and not any(other.ready for other in self._all):
                raise CotsError(f"No worker could start. The last one, on {host}: {error}") from error
        else:
            self.queue.failed(unit, hand.number, host, error)
        if unit is not None and not isinstance(error, _Gone) and (not self.gpus or isinstance(error, CotsError)):
            self._idle.append(hand)
            return
        # Its process is gone, or nobody knows in what state the error left its GPU.
        with contextlib.suppress(Exception):
            self.ray.kill(hand.actor, no_restart=True)

    def _check_starvation(self) -> None:
        if any(hand.host for hand in self._all):
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > patience(self.config):
            raise CotsError(f"{self._starving()} The same command goes on where it stopped.")

    def _starving(self) -> str:
        nodes, free = self._nodes(), self.ray.available_resources()
        has = {name: sum(node["Resources"].get(name, 0.0) for node in nodes) for name in ("CPU", "GPU")}
        return (
            f"No room for a worker within {patience(self.config):g} s: it needs {demand(self.config, self.device)} on "
            f"one machine; the cluster has {len(nodes)} with {has['CPU']:g} CPU and {has['GPU']:g} GPU in all, "
            f"of which {free.get('CPU', 0.0):g} CPU and {free.get('GPU', 0.0):g} GPU are free. Ask for less "
            "(--cpus-per-worker, --gpus-per-worker), free some, or wait longer (--wait)."
        )

    def _tell(self) -> None:
        workers = sum(hand.ready for hand in self._all)
        self.watch(
            ClusterState(
                done=self.queue.done,
                total=self.queue.total,
                workers=workers,
                failures=self.queue.failures,
                given_up=self.queue.given_up,
                waiting=not any(hand.host for hand in self._all),
            )
        )


def _seat() -> type:
    """The class of Ray's actors. Sent by value, so that room is found before a process begins to import torch."""

    class Seat:
        def place(self) -> tuple[str, int]:
            import os
            import platform
            import signal

            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's business
            return platform.node(), os.getpid()

        def prepare(self, config: Any, settings: dict[str, Any]) -> None:
            from cots.bench._worker import Worker

            self.worker = Worker(config, settings)

        def work(self, unit: Any) -> None:
            self.worker.work(unit)

    return Seat


def _absolute(config: Any) -> dict[str, Any]:
    """Where results go must not depend on the folder that a worker happens to run in."""
    found = {}
    for name in ("out", "cache"):
        where = getattr(config, name)
        if where is not None:
            place = location(where)
            found[name] = place.url if isinstance(place, UrlPath) else place.absolute()
    return found


def _cause(ray: Any, error: BaseException) -> BaseException:
    """What went wrong in the worker, without Ray's wrapping and without the worker's traceback."""
    inside = getattr(error, "cause", None)
    if isinstance(error, ray.exceptions.RayTaskError) and isinstance(inside, BaseException):
        return inside
    if isinstance(error, (ray.exceptions.RayActorError, ray.exceptions.NodeDiedError)):
        return _Gone("the worker's process or its machine was lost")
    return error


class _Gone(RuntimeError):
    """A worker that does not answer any more."""


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise InputError("engine='ray' needs Ray: pip install 'cots[ray]'.") from None
    return ray


def _knock(address: str) -> None:
    """Find out now that nobody is there; Ray would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


@contextlib.contextmanager
def _connected(ray: Any, address: str | None) -> Iterator[None]:
    """Join the cluster at `address` (or RAY_ADDRESS, or one that runs here, or a new one of this machine alone)."""
    if ray.is_initialized():  # the caller's own connection
        yield
        return
    where = address or os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {} if where else {"include_dashboard": False}
    try:
        _knock(where or "")
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise CotsError(
            f"No Ray cluster could be reached at {where or 'this machine'} ({error}). Check --ray-address or "
            "RAY_ADDRESS, and that `ray status` answers there."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()
