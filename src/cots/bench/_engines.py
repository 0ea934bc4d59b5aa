"""Who does a run's work: this process, its part of a job of ranks, or the workers of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from .._errors import InputError
from ._config import RunConfig
from ._ranks import Rank

_WAIT = {"ray": 60.0, "rank": 600.0}  # seconds


@dataclass(frozen=True, kw_only=True)
class ClusterState:
    """How far a cluster is: records done and in all, workers at work, failed attempts, shards given up."""

    done: int
    total: int
    workers: int
    failures: int
    given_up: int
    waiting: bool  # for resources


class Watch(Protocol):
    """Told how a cluster as a whole is doing, about once a second."""

    def __call__(self, state: ClusterState) -> None: ...


def unwatched(state: ClusterState) -> None:
    """Nobody looks."""


def patience(config: RunConfig) -> float:
    """Seconds until waiting for others becomes an error."""
    return _WAIT[config.engine] if config.wait is None else config.wait


def worker_device(config: RunConfig) -> str:
    """Kind of device that the workers of a cluster use: as asked for, else the driver's kind."""
    kind = config.device_kind
    if config.gpus_per_worker is not None and (kind == "cuda") != (config.gpus_per_worker > 0):
        raise InputError(f"gpus_per_worker={config.gpus_per_worker:g} does not go with device {kind!r}; leave one out.")
    return kind


def resources(config: RunConfig, device: str) -> tuple[float, float]:
    """CPUs and GPUs of a worker: a GPU each, and the CPUs that its torch threads and image readers keep busy."""
    gpus = config.gpus_per_worker if config.gpus_per_worker is not None else float(device == "cuda")
    busy = max(1, config.workers) if gpus else torch.get_num_threads() + config.workers
    return float(busy if config.cpus_per_worker is None else config.cpus_per_worker), float(gpus)


def demand(config: RunConfig, device: str) -> str:
    """In words.

    >>> demand(RunConfig(datasets="pets", methods="tpt", out="x", engine="ray", gpus_per_worker=0.5), "cuda")
    '1 CPU and 0.5 GPU'
    """
    cpus, gpus = resources(config, device)
    return f"{cpus:g} CPU" + (f" and {gpus:g} GPU" if gpus else "")


def rank_device(config: RunConfig) -> str | None:
    """The device of this process: ranks of one machine share its GPUs out."""
    if config.engine != "rank" or config.device not in (None, "cuda") or not torch.cuda.is_available():
        return config.device
    return f"cuda:{Rank.of_this_process().local % torch.cuda.device_count()}"
