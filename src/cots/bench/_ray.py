"""The Ray engine: workers that live as long as the run and take one unit of work after the other."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch

from .._errors import CotsError
from ..data import Dataset
from ._connect import connected, import_ray
from ._engines import ClusterState, Watch, demand, patience, resources
from ._files import remove_tree
from ._job import Job, Progress
from ._parts import Unit
from ._paths import UrlPath, location
from ._protocol import folder_name
from ._queue import TRIES, Queue
from ._samples import FOLDER, publish

if TYPE_CHECKING:
    from ._plan import Plan

_TICK = 1.0  # seconds between two looks at the cluster


@dataclass
class _Hand:
    """A worker as the driver sees it: placing, preparing, idle or at a unit."""

    number: int
    actor: Any
    machine: str = ""
    host: str = ""
    ready: bool = False
    unit: Unit | None = None
    since: float = 0.0


def run_on_ray(plan: Plan, manifest: dict[str, Any], jobs: Sequence[Job], progress: Progress, watch: Watch) -> None:
    """Do what is missing of `jobs` on a Ray cluster; called with the folder's lock held."""
    ray = import_ray()
    samples = location(_absolute(plan.config)["out"]) / FOLDER
    with connected(ray, plan.config.ray_address):
        try:
            published = [publish(dataset, samples / folder_name(dataset)) for dataset in plan.datasets]
            driver = _Driver(ray, plan, published, manifest, Queue(jobs, progress), watch)
            try:
                driver.run()
            finally:
                driver.dismiss()
        finally:
            remove_tree(samples)


class _Driver:
    def __init__(
        self,
        ray: Any,
        plan: Plan,
        datasets: Sequence[Dataset],
        manifest: dict[str, Any],
        queue: Queue,
        watch: Watch,
    ) -> None:
        self.ray, self.config, self.queue, self.watch = ray, plan.config, queue, watch
        self.device = plan.resolved["device"]
        self.cpus, self.gpus = resources(plan.config, self.device)
        self._hands: dict[Any, _Hand] = {}  # by the answer that is awaited
        self._idle: list[_Hand] = []
        self._hired = self._bad_starts = 0
        self._refused: dict[str, BaseException] = {}  # by machine, until a user has been told
        self._told: set[str] = set()
        self._known: set[str] = set()  # machines of the cluster, at the last look
        self._looked = self._seen = time.monotonic()
        self._room = 1
        self._actor = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_restarts=0, max_task_retries=0)(_seat())
        # Into the object store once: a model that the caller has loaded goes with it.
        self._config = ray.put(replace(plan.config, datasets=datasets, data=None, **_absolute(plan.config)))
        self._settings = {
            "folder": os.getcwd(),
            "threads": torch.get_num_threads(),
            "cots": version("cots"),
            "created": manifest["created"],
            "device": self.device,
            "gpus": self.gpus,
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

    @property
    def _machines(self) -> set[str]:
        return {hand.machine for hand in self._all if hand.ready}

    def _name(self, hand: _Hand) -> Hashable:
        """By what a second try avoids it: where there are several machines by its own, which may lack the data."""
        return hand.machine if len(self._machines | {hand.machine}) > 1 else hand.number

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
        nodes = self._nodes()
        self._room = max(1, sum(self._fits(node["Resources"]) for node in nodes))
        names = {node["NodeID"] for node in nodes}
        if names - self._known:
            self._bad_starts = 0  # where others could not start, a machine that joined may
        self._known = names

    def _fits(self, has: dict[str, float]) -> int:
        asked = {"CPU": self.cpus, "GPU": self.gpus}
        each = [int(has.get(name, 0.0) / amount + 1e-6) for name, amount in asked.items() if amount]
        return min(each, default=1)

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self.ray.nodes() if node["Alive"]]

    def _hand_out(self) -> None:
        workers, machines = sum(hand.ready for hand in self._all), len(self._machines)
        for hand in list(self._idle):
            unit = self.queue.next(self._name(hand), workers, machines if machines > 1 else workers)
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
            hand.machine, hand.host = value[0], f"{value[0]} (process {value[1]})"
            self._hands[hand.actor.prepare.remote(self._config, self._settings)] = hand
            return
        if unit is None:
            hand.ready = True
            self._bad_starts = 0
            self._tell_refused()
        else:
            self.queue.succeeded(unit, time.monotonic() - hand.since)
        self._idle.append(hand)

    def _failed(self, hand: _Hand, unit: Unit | None, error: BaseException) -> None:
        host = hand.host or "a machine"
        if unit is None:
            self._bad_starts += 1
            if self._bad_starts >= TRIES and not any(other.ready for other in self._all):
                raise CotsError(f"No worker could start. The last one, on {host}: {error}") from error
            if hand.host and not isinstance(error, _Gone):
                self._refused.setdefault(hand.machine, error)
            self._tell_refused()
        else:
            self.queue.failed(unit, self._name(hand), host, error)
        if unit is not None and not isinstance(error, _Gone) and (not self.gpus or isinstance(error, CotsError)):
            self._idle.append(hand)
            return
        # Its process is gone, or nobody knows in what state the error left its GPU.
        with contextlib.suppress(Exception):
            self.ray.kill(hand.actor, no_restart=True)

    def _tell_refused(self) -> None:
        """Once others are at work nothing else would say that a machine takes no part."""
        if any(hand.ready for hand in self._all):
            for machine, error in self._refused.items():
                if machine not in self._told:
                    self._told.add(machine)
                    warnings.warn(f"No worker on {machine} takes part for now: {error}", stacklevel=2)
            self._refused.clear()

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
    if isinstance(error, ray.exceptions.RayTaskError):
        inside = getattr(error, "cause", None)
        return inside if isinstance(inside, BaseException) else error
    lost = "the worker's process or its machine was lost"
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        lost += " (Ray ended it because the machine's memory was nearly full)"
    # Whatever else Ray says, no worker has answered: one that is gone must not be given more.
    return _Gone(lost)


class _Gone(RuntimeError):
    """A worker that does not answer any more."""
