"""The work of a run in parts for several processes: ranks under torchrun or Slurm, and Ray workers."""

import contextlib
import os
import platform
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Self

import torch

from .._errors import CotsError, InputError
from .._files import Location, location
from .._kernels import take_share
from .._registry import load_plugin
from ._config import RunConfig
from ._job import Job, silent
from ._lock import rank_holder
from ._manifest import differences, read_manifest

_VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun, and most launchers
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
_SPECIAL_STEPS = 0xFFFFFF00  # step ids of batch scripts and interactive shells


@dataclass(frozen=True, kw_only=True)
class Rank:
    """Process `index` of `count`; `local`: its index on its machine; `source`: the variables it was read from."""

    index: int
    count: int
    local: int = 0
    source: str = ""

    @classmethod
    def of_this_process(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """From RANK and WORLD_SIZE, or else SLURM_PROCID and SLURM_NTASKS."""
        for index, count, local in _VARIABLES:
            if index in environment and count in environment:
                rank, size = _number(environment, index), _number(environment, count)
                if rank >= size:
                    raise InputError(f"{index}={rank} must be less than {count}={size}.")
                near = _number(environment, local) if local in environment else rank
                return cls(index=rank, count=size, local=near, source=f"{index}, {count}")
        raise InputError(
            "engine='rank' needs RANK and WORLD_SIZE, or SLURM_PROCID and SLURM_NTASKS, in the environment. Start the "
            "run with torchrun or srun, or omit the engine."
        )

    @classmethod
    def launched(cls, environment: Mapping[str, str] = os.environ) -> bool:
        """Whether a launcher started this process as one of several.

        A Slurm batch script has the variables too, but runs alone; only a step (srun) has tasks.
        """
        if "RANK" not in environment or "WORLD_SIZE" not in environment:
            step = environment.get("SLURM_STEP_ID", "")
            if not {"SLURM_PROCID", "SLURM_NTASKS"} <= environment.keys() or not step.isdigit():
                return False
            if int(step) >= _SPECIAL_STEPS:
                return False
        return cls.of_this_process(environment).count > 1

    def text(self) -> str:
        return f"rank {self.index} of {self.count}" + (f" ({self.source})" if self.source else "")


def rank_device(config: RunConfig) -> str | None:
    """The device of this process: ranks on one machine are distributed over its GPUs."""
    if config.engine != "rank" or config.device not in (None, "cuda") or not torch.cuda.is_available():
        return config.device
    return f"cuda:{Rank.of_this_process().local % torch.cuda.device_count()}"


def assignment(jobs: Sequence[Job], count: int) -> Iterator[tuple[int, Job, range | None]]:
    """All work as (rank, job, group of shards), round-robin; then (rank, stream, None).

    It depends only on the run, not on what is already done, so ranks agree without communicating.
    """
    groups = [(job, group) for job in jobs for group in job.groups()]
    yield from ((number % count, job, group) for number, (job, group) in enumerate(groups))
    streams = [stream for job in jobs for stream in job.streams.values()]
    yield from ((number % count, stream, None) for number, stream in enumerate(streams))


def own_parts(jobs: Sequence[Job], rank: Rank) -> Iterator[Job]:
    """The parts of jobs assigned to this rank; streams come last, when most of their features exist."""
    mine = [(job, group) for owner, job, group in assignment(jobs, rank.count) if owner == rank.index]
    for job in jobs:
        if shards := [shard for other, group in mine if other is job and group is not None for shard in group]:
            yield job.group(shards)
    yield from (stream for stream, group in mine if group is None)


def unfinished(folder: Location, jobs: Sequence[Job], rank: Rank) -> str:
    """A line for each rank with work left: what is missing, and whether the rank is running."""
    missing = {id(job): set().union(*job.episodic.missing().values()) for job in jobs}
    left: dict[int, Counter[str]] = {}
    for owner, job, group in assignment(jobs, rank.count):
        shards = set().union(*job.missing().values()) if group is None else missing[id(job)] & set(group)
        if shards:
            methods = ", ".join(map(str, job.methods if group is None else job.episodic.methods))
            left.setdefault(owner, Counter())[f"{methods} on {job.name} seed {job.seed}"] += len(shards)
    lines = []
    for owner, parts in sorted(left.items()):
        holder = rank_holder(folder, owner) if owner != rank.index else None
        texts = [f"{count} shards of {what}" for what, count in parts.items()]
        lines.append(f"missing from rank {owner} ({holder or 'not running'}): {', '.join(texts)}")
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Work for one worker: a group of shards of a job's episodic methods, or the stream of an online adapter."""

    job: int
    shards: range | None = None
    stream: str = ""
    records: int = 0  # missing
    tries: int = 0

    def part(self, jobs: Sequence[Job]) -> Job:
        """The part of the job that the unit computes."""
        job = jobs[self.job]
        return job.streams[self.stream] if self.shards is None else job.group(self.shards)


class Worker:
    """A Ray actor: a process with the model loaded that writes its results to the run folder."""

    jobs: Sequence[Job]

    def ready(self, config: RunConfig, settings: dict[str, Any]) -> str:
        """Load everything and return the name of this machine; refuses if results would differ from the driver's."""
        from ._plan import open_plan

        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver
        here = f"The worker on {platform.node()}"
        with contextlib.suppress(OSError):
            os.chdir(settings["folder"])  # so that relative paths mean the same as for the driver
        # The last bit of a sum can depend on the number of threads, which Ray changes.
        torch.set_num_threads(settings["threads"])
        if version("cots") != settings["cots"]:
            raise CotsError(
                f"{here} has cots {version('cots')}, the driver {settings['cots']}. Install the same version."
            )
        for path, source in settings["plugins"].items():
            load_plugin(path, source)
        manifest = read_manifest(location(config.out))
        if manifest is None or manifest["created"] != settings["created"]:
            raise CotsError(
                f"{here} does not see the run in {config.out}. Put the run folder on a shared file system, or "
                "use a URL such as s3://bucket/run."
            )
        if settings["device"] == "cuda" and not torch.cuda.is_available():
            raise CotsError(f"{here} was assigned a GPU but finds none. Check its GPU driver and torch.")
        if 0 < settings["gpus"] < 1:
            take_share(settings["gpus"])
        plan = open_plan(config, config.datasets, settings["device"])  # type: ignore[arg-type]
        if changed := differences(manifest, plan.resolved):
            raise CotsError(f"{here} would give different results than the driver: {'; '.join(changed)}.")
        self.jobs = list(plan.jobs())
        return platform.node()

    def work(self, unit: Unit) -> None:
        """Compute the missing records of `unit`."""
        unit.part(self.jobs).run_in_order(silent)


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not text.isdigit():
        raise InputError(f"{name} must be a whole number, not {text!r}.")
    return int(text)
