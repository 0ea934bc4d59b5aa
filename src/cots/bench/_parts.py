"""A job in parts that several processes can do: groups of shards in any order, online streams in theirs."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from ._features import BLOCK
from ._job import Job, Progress
from ._numbers import Numbers
from ._protocol import split
from ._stream import is_online


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Work for one process: shards of a job's episodic methods, or (with `stream`) an online adapter's whole stream."""

    job: int
    shards: tuple[int, ...]
    stream: str | None = None
    records: int = 0
    tries: int = 0
    avoid: frozenset[Hashable] = frozenset()  # workers, or machines, that have failed on it


def group_size(job: Job) -> int:
    """Shards that fill whole files of features together: done by one process, each file is made once."""
    return BLOCK // math.gcd(job.shard_size, BLOCK)


def groups(job: Job) -> Iterator[range]:
    """The job's shards in groups.

    With 64 samples a shard, as is usual, each shard is a group.
    """
    size = group_size(job)
    return (range(first, min(first + size, job.shards)) for first in range(0, job.shards, size))


def episodic(job: Job) -> Job:
    """The job with those methods to which the order of samples does not matter."""
    return replace(job, methods=[method for method in job.methods if not is_online(method)])


def streams(job: Job) -> dict[str, Job]:
    """The job with the methods of each online adapter alone."""
    found: dict[str, list[str]] = {}
    for method in job.methods:
        if is_online(method):
            found.setdefault(split(method)[0], []).append(method)
    return {adapter: replace(job, methods=methods) for adapter, methods in found.items()}


def do_shards(job: Job, shards: Sequence[int], progress: Progress) -> None:
    """The episodic methods on `shards`, and their view features as far as online methods will want them."""
    part = replace(job, only=frozenset(shards))
    wanted = stream_shards(job)
    if ahead := [shard for shard in part.mine if shard in wanted]:
        part.encode(ahead, progress)
    episodic(part).run(progress)


def do_stream(stream: Job, progress: Progress) -> None:
    """An online stream in its order; first as far as there are features, lest one that cannot be made holds all up."""
    missing = Numbers(itertools.chain(*stream.missing().values()))
    if lacking := stream.without_features(missing):
        replace(stream, only=frozenset(range(min(lacking)))).run(progress)
    stream.run(progress)


def stream_shards(job: Job) -> Numbers:
    """Shards whose features the job's online methods still want; those before are needed only if a state is lost."""
    wanted = Numbers()
    for stream in streams(job).values():
        if missing := Numbers(itertools.chain(*stream.missing().values())):
            wanted = Numbers(itertools.chain(wanted, range(min(missing), max(missing) + 1)))
    return wanted


def open_groups(job: Job) -> Iterator[tuple[range, int]]:
    """The groups in which something is missing, and how many records that is."""
    by_shard = array("L", [0]) * job.shards
    for shards in episodic(job).missing().values():
        for shard in shards:
            by_shard[shard] += len(job.places(shard))
    unencoded = job.without_features(stream_shards(job))
    for group in groups(job):
        records = sum(by_shard[shard] for shard in group)
        if records or not unencoded.isdisjoint(group):
            yield group, records


def missing_records(job: Job) -> int:
    return sum(len(job.places(shard)) for shards in job.missing().values() for shard in shards)
