"""Compute what is missing of a job: features first, then every method over them, shard by shard."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from .._arrays import check_finite
from .._files import Location
from ..adapters import ADAPTERS
from ..methods import Method
from ._binding import BLOCK, Binding
from ._features import WARM_UP
from ._job import Job, MissingShards, Progress
from ._protocol import make_pipeline, toy_inputs
from ._shards import ShardWriter, load_state, save_state, state_folder
from ._views import SampleInput

Read = Callable[[Sequence[int]], Iterable[SampleInput]]


def run_job(job: Job, progress: Progress) -> None:
    """Compute everything that is missing."""
    missing, size = job.missing(), len(job.positions(*job.shards))
    counter = _Counter(job, progress, "methods", job.count(missing), len(job.methods) * size)
    for online, takes in itertools.product((False, True), ("features", "pixels")):
        chosen = {}
        for method, shards in missing.items():
            info = ADAPTERS.info(method.adapter)
            if (info.online, info.takes) == (online, takes):
                chosen[method] = shards
        if not chosen:
            continue
        if takes == "features":
            job.task.expect(len(job.indices), exactly=True)  # resumed runs must give the same results
        walk = _Walk(job, chosen, online, takes)
        walk.run(walk.open_features(progress) if takes == "features" else walk.open_views(), counter)


def run_unit(job: Job, progress: Progress) -> None:
    """Compute everything that is missing, first the shards with features, so that a failing block stops only the
    rest."""
    online = job.is_stream
    missing = set().union(*job.missing().values())
    blocks = set(job.cache().missing(job.samples_at(job.positions(*missing), online)))
    ready = []
    for shard in job.shards:
        if blocks.intersection(position // BLOCK for position in job.samples_at(job.positions(shard), online)):
            break
        ready.append(shard)
    if blocks:
        run_job(replace(job, only=frozenset(ready)), progress)
    run_job(job, progress)


class _Counter:
    """Reports progress in one stage."""

    def __init__(self, job: Job, progress: Progress, stage: str, left: int, total: int) -> None:
        self._report = partial(progress, stage, job.name, job.seed)
        self._done, self._total = total - left, total

    def __call__(self, count: int) -> None:
        self._done += count
        self._report(self._done, self._total)


class _Walk:
    """Runs the pipeline over the shards of a job, for methods that take the same inputs in the same order.

    An episodic adapter runs only on missing shards. An online adapter runs on every sample from the start, or from the
    last saved state; shards without a missing method are not rewritten.
    """

    def __init__(self, job: Job, missing: MissingShards, online: bool, takes: str) -> None:
        self.job, self.missing, self.online, self.takes = job, missing, online, takes
        self.pipeline = make_pipeline({method: job.settings[method] for method in missing}, job.seed, job.task)
        self.streams: dict[str, range] = {}  # the shards that each online adapter, as written, must process
        for method, shards in missing.items() if online else ():
            begun = self.streams.get(method.base, range(min(shards), 0))
            self.streams[method.base] = range(min(begun.start, *shards), max(begun.stop, max(shards) + 1))
        for adapter, shards in self.streams.items():
            first, state = load_state(self._states(adapter), shards.start, partial(self._state_binding, adapter))
            self.pipeline.states[adapter], self.streams[adapter] = state, range(first, shards.stop)
        self.shards = sorted(set().union(*missing.values(), *self.streams.values()))

    def open_features(self, progress: Progress) -> Read:
        """Encode what is missing, then read from the cache."""
        cache = self.job.cache(self.online)
        blocks = cache.missing(self._listed(self.job.positions(*self.shards)))
        left, total = len(cache.positions(blocks)), len(self.job.positions(*self.job.shards))
        counter = _Counter(self.job, progress, "views", left, max(total, left))
        counter(0)
        if blocks:
            cache.fill(blocks, counter)
        return cache.read

    def open_views(self) -> Read:
        """Views are made as they are read."""
        views = self.job.source().stream(self._listed(self.job.positions(*self.shards)))
        return lambda positions: itertools.islice(views, len(positions))

    def run(self, read: Read, advance: Callable[[int], None]) -> None:
        """Write every missing shard; `read` returns the samples of a batch."""
        if self.job.batch_size == 1:  # times of single samples must not include a cold start
            warm = make_pipeline({method: self.job.settings[method] for method in self.missing}, 0, self.job.task)
            for _ in range(WARM_UP):
                warm.run(toy_inputs(self.job.task, self.job.view_settings.n, self.takes))
        for shard in self.shards:
            methods = [method for method, shards in self.missing.items() if shard in shards]
            adapters = [adapter for adapter, shards in self.streams.items() if shard in shards]
            writers = {method: self.job.writer(method, shard) for method in methods}
            for positions in self.job.batches(shard):
                self._run_batch(positions, read(self._listed(positions)), writers, adapters)
                advance(len(positions) * len(writers))
            for writer in writers.values():
                writer.write()
            for adapter in adapters:
                save_state(self._states(adapter), self._state_binding(adapter, shard), self.pipeline.states[adapter])

    def _run_batch(
        self,
        positions: Sequence[int],
        samples: Iterable[SampleInput],
        writers: dict[Method, ShardWriter],
        adapters: Sequence[str],
    ) -> None:
        good: dict[int, float] = {}  # milliseconds of encoding by position

        def good_values() -> Iterator[Tensor]:
            for position, sample in zip(positions, samples, strict=True):
                if sample.values is None:
                    for writer in writers.values():
                        writer.fail(position, sample.error)
                else:
                    good[position] = sample.milliseconds
                    yield sample.values

        if self.takes == "features":
            rows = list(good_values())
            # In newly allocated memory: the layout of the files must not affect results.
            inputs: Iterable[Tensor] = [torch.stack(rows).float()] if rows else []
        else:  # one sample at a time, because a batch with 64 views each would take too much memory
            inputs = (views[None] for views in good_values())
        for method, outcome in self.pipeline.run(inputs, writers, advance=adapters).items():
            check_finite(outcome.agreement, f"the agreement of views under {method}")
            writers[method].add(good, outcome.calibrated, self.pipeline.milliseconds[method])

    def _listed(self, positions: Iterable[int]) -> list[int]:
        return self.job.samples_at(positions, self.online)

    def _state_binding(self, adapter: str, shard: int) -> Binding:
        return self.job.bindings.state(self.job.name, adapter, self.job.seed, shard)

    def _states(self, adapter: str) -> Location:
        return state_folder(self.job.folder, self.job.name, self.job.seed, adapter)
