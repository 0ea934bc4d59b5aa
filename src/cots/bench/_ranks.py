"""Ranks: processes that torchrun or Slurm starts, each of which does its part of the run in the same folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .._errors import InputError
from ._job import Job, Progress
from ._lock import holder_of
from ._parts import do_shards, groups, streams
from ._paths import Location

_VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun, and most launchers
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


@dataclass(frozen=True, kw_only=True)
class Rank:
    """Process `index` of `count`; `local` among those of its machine; `source`: the variables that say so."""

    index: int
    count: int
    local: int = 0
    source: str = ""

    @classmethod
    def of_this_process(cls, environment: Mapping[str, str] = os.environ) -> Rank:
        """From RANK and WORLD_SIZE, or else SLURM_PROCID and SLURM_NTASKS.

        >>> Rank.of_this_process({"RANK": "1", "WORLD_SIZE": "4"}).text()
        'rank 1 of 4 (RANK, WORLD_SIZE)'
        """
        for index, count, local in _VARIABLES:
            if index in environment and count in environment:
                rank = _number(environment, index)
                if rank >= (size := _number(environment, count)):
                    raise InputError(f"{index}={rank} is no rank of {count}={size}: they run from 0 to {size - 1}.")
                near = _number(environment, local) if local in environment else rank
                return cls(index=rank, count=size, local=near, source=f"{index}, {count}")
        raise InputError(
            "engine='rank' needs RANK and WORLD_SIZE, or SLURM_PROCID and SLURM_NTASKS, in the environment: start it "
            "with torchrun or srun, or leave the engine out."
        )

    @classmethod
    def launched(cls, environment: Mapping[str, str] = os.environ) -> bool:
        """Whether a launcher started this process as one of several.

        A batch script of Slurm has the variables too, but is alone: only a step (srun) has tasks.
        """
        if "RANK" in environment and "WORLD_SIZE" in environment:
            return cls.of_this_process(environment).count > 1
        if not {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID"} <= environment.keys():
            return False
        in_step = environment["SLURM_STEP_ID"].isdigit() and int(environment["SLURM_STEP_ID"]) < _SPECIAL_STEPS
        return in_step and cls.of_this_process(environment).count > 1

    def text(self) -> str:
        return f"rank {self.index} of {self.count}" + (f" ({self.source})" if self.source else "")


_SPECIAL_STEPS = 0xFFFFFF00  # Slurm numbers batch scripts and interactive shells from the top


def owners(jobs: Sequence[Job], count: int) -> Iterator[tuple[Job, dict[int, list[int]]]]:
    """Each job with its shards by rank, dealt out group by group through all jobs, so that each has its share.

    It follows from the run alone, not from what is there already, so ranks agree without speaking to each other.
    """
    dealt = 0
    for job in jobs:
        shares: dict[int, list[int]] = {}
        for group in groups(job):
            shares.setdefault(dealt % count, []).extend(group)
            dealt += 1
        yield job, shares


def stream_owners(jobs: Sequence[Job], count: int) -> Iterator[tuple[Job, int]]:
    """The online streams, each with its one rank."""
    found = [stream for job in jobs for stream in streams(job).values()]
    return ((stream, number % count) for number, stream in enumerate(found))


def do_part(jobs: Sequence[Job], rank: Rank, progress: Progress) -> None:
    """What is this rank's and not there yet.

    Streams come last: by then the other ranks have made most of the features that they need, and whatever is still
    missing the stream's rank makes itself rather than wait for a rank that may be gone.
    """
    for job, shares in owners(jobs, rank.count):
        if shards := shares.get(rank.index):
            do_shards(job, shards, progress)
    for stream, owner in stream_owners(jobs, rank.count):
        if owner == rank.index:
            stream.run(progress)


def others_missing(folder: Location, jobs: Sequence[Job], rank: Rank) -> str:
    """A line for each rank with work left: how much, and whether that rank lives."""
    left: dict[int, list[str]] = {}
    for job, shares in owners(jobs, rank.count):
        missing = {shard for method, rest in job.missing().items() if method not in _online(job) for shard in rest}
        for owner, shards in shares.items():
            if here := [shard for shard in shards if shard in missing]:
                left.setdefault(owner, []).append(f"{job.name} seed {job.seed}: shards {_listed(here)}")
    for stream, owner in stream_owners(jobs, rank.count):
        if missing := stream.missing():
            first = min(shard for rest in missing.values() for shard in rest)
            left.setdefault(owner, []).append(f"{stream.name} seed {stream.seed}: {_methods(missing)} from {first} on")
    lines = []
    for owner, parts in sorted(left.items()):
        holder = holder_of(folder / f"lock.rank{owner}") if owner != rank.index else None
        state = f"at work, process {holder.get('pid')} on {holder.get('host')}" if holder else "not at work"
        lines.append(f"missing of rank {owner} ({state}): {'; '.join(parts)}")
    return "\n".join(lines)


def _online(job: Job) -> set[str]:
    return {method for stream in streams(job).values() for method in stream.methods}


def _listed(shards: Sequence[int]) -> str:
    shown = ", ".join(str(shard) for shard in shards[:8])
    return shown + (f" and {len(shards) - 8} more" if len(shards) > 8 else "")


def _methods(missing: Mapping[str, object]) -> str:
    return ", ".join(missing)


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not text.isdigit():
        raise InputError(f"{name} must be a whole number, not {text!r}.")
    return int(text)
