"""What a cluster has still to do: units in order, second tries, and what becomes of a shard that keeps failing."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from ._files import Halt
from ._job import Job, Progress
from ._parts import Unit, episodic, missing_records, open_groups, streams

TRIES = 3
_LEASE_SECONDS = 20.0  # a unit takes about that long at most, so that bars move and little is lost with a worker
_LEASE_GROUPS = 8
_SUSPICIOUS = 3  # shards that failed for good before any has succeeded: then the cluster is at fault, as a rule


@dataclass
class _Count:
    total: int
    done: int
    open_units: int = 0
    dealt: bool = False  # no more shards to hand out: online streams may begin once the open ones are done


class Queue:
    """Hands out units and hears how they went; holds shard numbers of one job and of what is being done, no results."""

    def __init__(self, jobs: Sequence[Job], progress: Progress) -> None:
        self.jobs, self.progress = jobs, progress
        self.failures = self.given_up = 0
        self._counts = [_Count(len(j.methods) * len(j.indices), 0) for j in jobs]
        for job, count in zip(jobs, self._counts, strict=True):
            count.done = count.total - missing_records(job)
        self._groups_left = sum(1 for job in jobs for _ in open_groups(job))
        self._streams_left = sum(bool(stream.missing()) for job in jobs for stream in streams(job).values())
        self._all_dealt = False
        self._again: deque[Unit] = deque()
        self._fresh = self._deal()
        self._succeeded = False
        self._seconds = 0.0  # a group's, lately
        self._workers = self._others = 1

    @property
    def done(self) -> int:
        return sum(count.done for count in self._counts)

    @property
    def total(self) -> int:
        return sum(count.total for count in self._counts)

    @property
    def parallel(self) -> int:
        """How many more workers could find something to do, about."""
        return max(self._groups_left, 0) + max(self._streams_left, 0) + len(self._again)

    @property
    def finished(self) -> bool:
        return self._all_dealt and not any(count.open_units for count in self._counts)

    def next(self, worker: Hashable, workers: int, others: int | None = None) -> Unit | None:
        """A unit for `worker`; None where there is none for now.

        others: how many may try what failed elsewhere, itself included, where not each of `workers` counts as one.
        """
        self._workers = max(1, workers)
        self._others = self._workers if others is None else others
        return self._second_try(worker) or next(self._fresh, None) or self._second_try(worker)

    def _second_try(self, worker: Hashable) -> Unit | None:
        for unit in self._again:
            # Another worker may succeed where this one failed; if there are no others, it has to try again itself.
            if worker not in unit.avoid or len(unit.avoid) >= self._others:
                self._again.remove(unit)
                return unit
        return None

    def succeeded(self, unit: Unit, seconds: float) -> None:
        self._succeeded = True
        if unit.stream is None:
            self._seconds = seconds / max(1, len(unit.shards))
        self._settle(unit, unit.records)

    def failed(self, unit: Unit, worker: Hashable, host: str, error: BaseException) -> None:
        """Hand what is left of `unit` out again, shard by shard; the one that failed for the third time is given up."""
        self.failures += 1
        missing = self._missing(unit)
        if not missing:  # it came to its end all the same, or only features are missing and a stream will make them
            self._settle(unit, unit.records)
            return
        tries, avoid = unit.tries + 1, unit.avoid | {worker}
        first = min(missing)
        left = 0
        if unit.stream is not None:
            left = sum(missing.values())
            # Its state moves on from shard to shard: only tries on the same one count.
            tries = tries if unit.shards == (first,) else 1
            again = [replace(unit, shards=(first,), records=left, tries=tries, avoid=avoid)]
        else:
            again = []
            for shard, records in sorted(missing.items()):
                # Shards are done in order, so those after the first missing one have not been tried.
                one = replace(unit, shards=(shard,), records=records, tries=0, avoid=frozenset())
                again.append(replace(one, tries=tries, avoid=avoid) if shard == first else one)
                left += records
        if tries >= TRIES:
            if isinstance(error, Halt):
                raise Halt(f"{error} (Tried {TRIES} times, the last time on {host}.)") from error
            bad, again = again[0], again[1:]
            self._give_up(bad, f"on {host}: {type(error).__name__}: {error}")
        self._again.extend(again)
        self._settle(unit, unit.records - left, more=len(again))

    def _give_up(self, unit: Unit, reason: str) -> None:
        """Its missing records are written with the error."""
        self.given_up += 1
        job, shard = self.jobs[unit.job], unit.shards[0]
        text = f"This shard failed {TRIES} times, the last time {reason}"
        if unit.stream is None:
            episodic(job).give_up(unit.shards, text)
        else:
            # What comes after it in the stream cannot be known without it.
            streams(job)[unit.stream].give_up(range(job.shards), f"The stream stopped at {shard}. {text}")
        self._count_done(unit.job, unit.records)
        reason = reason.rstrip(".")
        if self.given_up == 1:
            self._warn(f"Shard {shard} of {job.name}, seed {job.seed}, failed {TRIES} times, the last time {reason}.")
        elif self.given_up == _SUSPICIOUS and not self._succeeded:
            self._warn(
                f"Nothing has succeeded yet, and {_SUSPICIOUS} shards failed {TRIES} times each, the last one "
                f"{reason}. The cause is hardly in the data: better stop now (Ctrl-C) and remove it."
            )

    def _warn(self, what: str) -> None:
        warnings.warn(
            f"{what} The records hold the error and the run goes on; the same command with --retry-failed "
            "(retry_failed=True) does them again.",
            stacklevel=2,
        )

    def _missing(self, unit: Unit) -> dict[int, int]:
        """Records that are missing of the unit, by shard."""
        job = self.jobs[unit.job]
        part = streams(job)[unit.stream] if unit.stream else replace(episodic(job), only=frozenset(unit.shards))
        found: dict[int, int] = {}
        for shards in part.missing().values():
            for shard in shards:
                found[shard] = found.get(shard, 0) + len(job.places(shard))
        return found

    def _settle(self, unit: Unit, records: int, more: int = 0) -> None:
        count = self._counts[unit.job]
        count.open_units += more - 1
        self._count_done(unit.job, records)
        self._release(unit.job)

    def _count_done(self, index: int, records: int) -> None:
        count, job = self._counts[index], self.jobs[index]
        count.done += records
        self.progress("methods", job.name, job.seed, count.done, count.total)

    def _release(self, index: int) -> None:
        """Let the job's online streams begin, once its shards are done and with them the features."""
        count = self._counts[index]
        if not count.dealt or count.open_units:
            return
        count.dealt = False
        for adapter, stream in streams(self.jobs[index]).items():
            if records := missing_records(stream):
                self._streams_left -= 1
                count.open_units += 1
                self._again.append(Unit(job=index, shards=(), stream=adapter, records=records))

    def _deal(self) -> Iterator[Unit]:
        for index, job in enumerate(self.jobs):
            lease: list[range] = []
            records = 0
            for group, missing in open_groups(job):
                if lease and (group.start != lease[-1].stop or len(lease) >= self._lease(len(group))):
                    yield self._unit(index, lease, records)
                    lease, records = [], 0
                lease.append(group)
                records += missing
            if lease:
                yield self._unit(index, lease, records)
            self._counts[index].dealt = True
            self._release(index)
        self._all_dealt = True

    def _unit(self, index: int, lease: list[range], records: int) -> Unit:
        self._groups_left -= len(lease)
        self._counts[index].open_units += 1
        return Unit(job=index, shards=tuple(shard for group in lease for shard in group), records=records)

    def _lease(self, group: int) -> int:
        """Groups in a unit: one at first, several where they are quick and many are left."""
        quick = int(_LEASE_SECONDS / self._seconds / group) if self._seconds else 1
        fair = self._groups_left // (4 * self._workers)
        return max(1, min(_LEASE_GROUPS, quick, fair))
