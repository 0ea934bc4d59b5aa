"""One dataset under one seed: features first, then every method over them, shard by shard."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from .._files import Location
from ..adapters import ADAPTERS
from ..data import Dataset
from ..methods import Method
from ..prompts import Task
from ..views import ViewSettings
from ._features import BLOCK, FeatureCache, Views, ViewSource
from ._protocol import make_pipeline
from ._shards import ShardWriter, file_name, load_state, present, records_folder, save_state

MissingShards = dict[Method, set[int]]
Chunk = tuple[list[int], Tensor | None, dict[int, str]]  # positions and inputs of good samples, errors of the others
# Called with (stage, dataset, seed, done, total); stage "views" counts samples, "methods" records (samples x methods).
Progress = Callable[[str, str, int, int, int], None]


def silent(*event: object) -> None:
    """Ignore progress."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """All methods on one dataset under one seed, or the part of that one process does.

    Samples are numbered by their place among `indices`. Shards of episodic methods can be done in any order and by any
    process. An online adapter must see the samples in order: its methods form a stream, done by one process.
    """

    name: str
    dataset: Dataset
    indices: Sequence[int]
    seed: int
    settings: Mapping[Method, Any]  # {"adapter": ..., "calibrator": ...} of each method
    task: Task
    view_settings: ViewSettings
    folder: Location  # of the run
    features: Location
    batch_size: int
    shard_size: int
    workers: int = 0
    renderer: str = "pil"
    only: frozenset[int] | None = None  # the shards to do; None: all

    @property
    def methods(self) -> list[Method]:
        return list(self.settings)

    @property
    def shards(self) -> Sequence[int]:
        count = -(-len(self.indices) // self.shard_size)
        return range(count) if self.only is None else sorted(self.only)

    def places(self, shard: int) -> range:
        return range(shard * self.shard_size, min((shard + 1) * self.shard_size, len(self.indices)))

    def missing(self) -> MissingShards:
        """Shards that do not exist yet, by method; finished methods are left out."""
        found = {method: set(self.shards) - present(self.records_of(method)) for method in self.methods}
        return {method: shards for method, shards in found.items() if shards}

    def count(self, missing: MissingShards) -> int:
        """Number of records in `missing`."""
        return sum(len(self.places(shard)) for shards in missing.values() for shard in shards)

    @property
    def episodic(self) -> "Job":
        """The methods that may see the samples in any order."""
        return self._with([method for method in self.methods if not is_online(method.adapter)])

    @property
    def streams(self) -> "dict[str, Job]":
        """The methods of each online adapter."""
        online = dict.fromkeys(method.adapter for method in self.methods if is_online(method.adapter))
        return {name: self._with([method for method in self.methods if method.adapter == name]) for name in online}

    def _with(self, methods: Iterable[Method]) -> "Job":
        return replace(self, settings={method: self.settings[method] for method in methods})

    def groups(self) -> list[range]:
        """The shards in groups that fill whole feature files, so that one process makes each file.

        With 64 samples per shard, the default, every shard is a group.
        """
        size, count = BLOCK // math.gcd(self.shard_size, BLOCK), len(self.shards)
        return [range(first, min(first + size, count)) for first in range(0, count, size)]

    def open_groups(self) -> Iterator[tuple[range, int]]:
        """The groups in which episodic methods have work left, and the number of records each is missing."""
        missing = self.episodic.missing()
        for group in self.groups():
            if records := self.count({method: shards & set(group) for method, shards in missing.items()}):
                yield group, records

    def group(self, shards: Iterable[int]) -> "Job":
        """The episodic methods on `shards`."""
        return replace(self.episodic, only=frozenset(shards))

    def run(self, progress: Progress) -> None:
        """Do everything that is missing."""
        missing, size = self.missing(), len(self._places(self.shards))
        advance = self._counter(progress, "methods", self.count(missing), len(self.methods) * size)
        if part := _taking("features", missing):
            self.task.linearise(len(self.indices))
            self.task.earns_jacobian = False  # whether the run is resumed must not matter
            walk, cache = _Walk(self, part), self._cache()
            blocks = cache.missing(self._places(walk.shards))
            left = len(cache.places(blocks))
            encoded = self._counter(progress, "views", left, max(size, left))
            encoded(0)
            if blocks:
                cache.fill(blocks, encoded)
            walk.run(lambda batch: iter([cache.read(batch)]), advance)
        if part := _taking("pixels", missing):
            walk = _Walk(self, part)
            views = self._source().stream(self._places(walk.shards), self.workers)
            walk.run(lambda batch: _one_by_one(views, batch), advance)

    def run_in_order(self, progress: Progress) -> None:
        """Do everything that is missing, first as far as there are features: a block that fails stops only the rest."""
        if blocks := self._cache().missing(self._places(set().union(*self.missing().values()))):
            before = [shard for shard in self.shards if self.places(shard).stop <= blocks[0] * BLOCK]
            replace(self, only=frozenset(before)).run(progress)
        self.run(progress)

    def give_up(self, reason: str) -> None:
        """Write what is missing as error records."""
        for method, shards in self.missing().items():
            for shard in shards:
                writer = self._writer(method, shard)
                writer.give_up(reason)
                writer.write()

    def _places(self, shards: Iterable[int]) -> list[int]:
        return [place for shard in shards for place in self.places(shard)]

    def _source(self) -> ViewSource:
        device = self.task.backbone.device
        return ViewSource(self.dataset, self.indices, self.seed, self.view_settings, device, self.renderer)

    def _cache(self) -> FeatureCache:
        return FeatureCache(self.features, self._source(), self.task.backbone, self.workers)

    def _counter(self, progress: Progress, stage: str, left: int, total: int) -> Callable[[int], None]:
        done = total - left

        def advance(count: int) -> None:
            nonlocal done
            done += count
            progress(stage, self.name, self.seed, done, total)

        return advance

    def _writer(self, method: Method, shard: int) -> ShardWriter:
        places = self.places(shard)
        samples = [self.dataset.samples[self.indices[place]] for place in places]
        file = self.records_of(method) / file_name(shard)
        return ShardWriter(file, samples, len(self.dataset.classes), places.start)

    def records_of(self, method: Method) -> Location:
        return records_folder(self.folder, self.name, self.seed, str(method))


class _Walk:
    """The pipeline's way through the shards of a job, for methods that take the same inputs.

    An episodic adapter sees the missing shards alone. An online one must see every sample from the start, or from the
    last saved state; shards that it passes without a missing method are not rewritten.
    """

    def __init__(self, job: "Job", missing: MissingShards) -> None:
        self.job, self.missing = job, missing
        self.pipeline = make_pipeline({method: job.settings[method] for method in missing}, job.seed, job.task)
        self.online: dict[str, range] = {}  # the shards that each online adapter must see
        for name in job.streams:
            shards = set().union(*(shards for method, shards in missing.items() if method.adapter == name))
            if not shards:
                continue
            first, state = load_state(self._states(name), before=min(shards))
            self.pipeline.states[name] = state
            self.online[name] = range(first, max(shards) + 1)

    @property
    def shards(self) -> list[int]:
        return sorted(set().union(*self.missing.values(), *self.online.values()))

    def run(self, read: Callable[[range], Iterator[Chunk]], advance: Callable[[int], None]) -> None:
        """Write every missing shard; `read` gives the samples of a batch, in one chunk or several."""
        for shard in self.shards:
            methods = [method for method, shards in self.missing.items() if shard in shards]
            online = [name for name, shards in self.online.items() if shard in shards]
            writers = {method: self.job._writer(method, shard) for method in methods}
            places = self.job.places(shard)
            for start in range(places.start, places.stop, self.job.batch_size):
                batch = range(start, min(start + self.job.batch_size, places.stop))
                good: list[int] = []
                inputs = _good_inputs(read(batch), good, writers.values())
                for method, outcome in self.pipeline.run(inputs, methods, advance=online).items():
                    writers[method].add(good, outcome.calibrated, outcome.milliseconds)
                advance(len(batch) * len(writers))
            for writer in writers.values():
                writer.write()
            for name in online:
                save_state(self._states(name), shard, self.pipeline.states[name])

    def _states(self, adapter: str) -> Location:
        return self.job.folder / "state" / self.job.name / f"seed{self.job.seed}" / adapter


def is_online(adapter: str) -> bool:
    """Whether the adapter carries a state from sample to sample, so that their order counts."""
    return ADAPTERS.info(adapter).online


def _taking(kind: str, missing: MissingShards) -> MissingShards:
    return {method: shards for method, shards in missing.items() if ADAPTERS.info(method.adapter).takes == kind}


def _good_inputs(chunks: Iterator[Chunk], good: list[int], writers: Iterable[ShardWriter]) -> Iterator[Tensor]:
    """The inputs of the chunks; positions of good samples go into `good`, the other samples fail in `writers`."""
    for places, inputs, errors in chunks:
        good += places
        for place, reason in errors.items():
            for writer in writers:
                writer.fail(place, reason)
        if inputs is not None:
            yield inputs


def _one_by_one(views: Iterator[Views], places: range) -> Iterator[Chunk]:
    """Each sample's pixels as they come: a batch of 64 views each would take too much memory."""
    for place in places:
        one = next(views)
        yield ([], None, {place: one.error or ""}) if one.pixels is None else ([place], one.pixels[None], {})
