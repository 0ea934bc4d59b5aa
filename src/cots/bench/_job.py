"""One dataset under one seed: features first, then every method over them, shard by shard."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from .._checked import DamagedFile
from .._files import Location
from ..adapters import ADAPTERS
from ..data import Dataset, Sample
from ..methods import Method
from ..prompts import Task
from ..views import ViewSettings
from ._binding import BLOCK, Binding, Bindings
from ._features import WARM_UP, Chunk, FeatureCache, GivenFeatures, Views, ViewSource
from ._protocol import make_pipeline, toy_inputs
from ._schema import MethodSettings
from ._shards import (
    ShardWriter,
    damaged,
    file_name,
    load_state,
    present,
    read_shard,
    records_folder,
    save_state,
    state_folder,
)

MissingShards = dict[Method, set[int]]
# Called with (stage, dataset, seed, done, total); stage "views" counts samples, "methods" records (samples x methods).
Progress = Callable[[str, str, int, int, int], None]


def silent(*event: object) -> None:
    """Ignore progress."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """All methods on one dataset under one seed, or one process's part of that.

    Samples are numbered by their position in `indices`. Shards of episodic methods can be computed in any order and by
    any process. The methods of an online adapter form a stream, which one process computes: its samples, and so its
    records, are in the order `order`; None means the order of the list.
    """

    name: str
    dataset: Dataset
    indices: Sequence[int]
    seed: int
    settings: Mapping[Method, MethodSettings]
    task: Task
    view_settings: ViewSettings
    folder: Location  # of the run
    features: Location
    bindings: Bindings
    batch_size: int
    shard_size: int
    workers: int = 0
    renderer: str = "pil"
    order: Sequence[int] | None = None
    corrupt: str | None = None
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

    def missing(self, finished: Callable[[Location], set[int]] = present) -> MissingShards:
        """Shards that do not exist yet, by method, without finished methods."""
        found = {method: set(self.shards) - finished(self.records_of(method)) for method in self.methods}
        return {method: shards for method, shards in found.items() if shards}

    def count(self, missing: MissingShards) -> int:
        """Number of records in `missing`."""
        return sum(len(self.places(shard)) for shards in missing.values() for shard in shards)

    @property
    def episodic(self) -> "Job":
        """The job with only its episodic methods, which do not depend on the order of samples."""
        return self._with([method for method in self.methods if not is_online(method.adapter)])

    @property
    def streams(self) -> "list[Job]":
        """One job per online adapter, with its methods."""
        online = dict.fromkeys(method.adapter for method in self.methods if is_online(method.adapter))
        return [self._with([method for method in self.methods if method.adapter == name]) for name in online]

    @property
    def is_stream(self) -> bool:
        """Whether it has online methods, which one process must compute in order."""
        return any(is_online(method.adapter) for method in self.methods)

    def _with(self, methods: Iterable[Method]) -> "Job":
        return replace(self, settings={method: self.settings[method] for method in methods})

    def groups(self) -> list[range]:
        """The shards in groups that cover whole feature files, so that one process writes each file.

        With 64 samples per shard, the default, every shard is its own group.
        """
        size, count = BLOCK // math.gcd(self.shard_size, BLOCK), len(self.shards)
        return [range(first, min(first + size, count)) for first in range(0, count, size)]

    def run(self, progress: Progress) -> None:
        """Compute everything that is missing."""
        missing, size = self.missing(), len(self._places(self.shards))
        advance = self._counter(progress, "methods", self.count(missing), len(self.methods) * size)
        for online in (False, True):
            if part := _taking("features", online, missing):
                self.task.expect(len(self.indices), exactly=True)  # resumed runs must give the same results
                walk, cache = _Walk(self, part, online), self._cache(online)
                blocks = cache.missing(self._listed(self._places(walk.shards), online))
                left = len(cache.places(blocks))
                encoded = self._counter(progress, "views", left, max(size, left))
                encoded(0)
                if blocks:
                    cache.fill(blocks, encoded)
                walk.run(functools.partial(self._read, cache, online), advance)
            if part := _taking("pixels", online, missing):
                walk = _Walk(self, part, online)
                views = self._source().stream(self._listed(self._places(walk.shards), online), self.workers)
                walk.run(functools.partial(_one_by_one, views), advance)

    def run_in_order(self, progress: Progress) -> None:
        """Compute everything that is missing, first the shards with features, so that a failing block stops only the
        rest."""
        online = self.is_stream
        wanted = self._listed(self._places(set().union(*self.missing().values())), online)
        if blocks := set(self._cache().missing(wanted)):
            needs = {shard: {p // BLOCK for p in self._listed(self.places(shard), online)} for shard in self.shards}
            before = itertools.takewhile(lambda shard: not needs[shard] & blocks, self.shards)
            replace(self, only=frozenset(before)).run(progress)
        self.run(progress)

    def give_up(self, reason: str) -> None:
        """Write everything that is missing as error records."""
        for method, shards in self.missing().items():
            for shard in shards:
                writer = self._writer(method, shard)
                writer.give_up(reason)
                writer.write()

    def _places(self, shards: Iterable[int]) -> list[int]:
        return [place for shard in shards for place in self.places(shard)]

    def _listed(self, positions: Iterable[int], online: bool) -> list[int]:
        """The samples at `positions` of the list or, for online methods, of the stream."""
        return list(positions) if self.order is None or not online else [self.order[at] for at in positions]

    def _read(self, cache: FeatureCache, online: bool, batch: range) -> Iterator[Chunk]:
        places = self._listed(batch, online)
        position = dict(zip(places, batch, strict=True))
        good, features, errors, spent = cache.read(places)
        yield [position[place] for place in good], features, {position[at]: why for at, why in errors.items()}, spent

    def _source(self) -> ViewSource:
        device = self.task.backbone.device
        views = (self.view_settings, device, self.renderer, self.corrupt)
        return ViewSource(self.dataset, self.indices, self.seed, *views)

    def _cache(self, online: bool = False) -> FeatureCache:
        kind = FeatureCache if self.dataset.features is None else GivenFeatures
        return kind(
            folder=self.features,
            source=self._source(),
            backbone=self.task.backbone,
            binding=functools.partial(self.bindings.features, self.name, self.seed),
            workers=self.workers,
            at_random=online and self.order is not None,
            alone=self.batch_size == 1,
        )

    def _counter(self, progress: Progress, stage: str, left: int, total: int) -> Callable[[int], None]:
        done = total - left

        def advance(count: int) -> None:
            nonlocal done
            done += count
            progress(stage, self.name, self.seed, done, total)

        return advance

    def _writer(self, method: Method, shard: int) -> ShardWriter:
        file, binding = self.records_of(method) / file_name(shard), self._binding(method, shard)
        first = self.places(shard).start
        return ShardWriter(file, binding, self._samples(method, shard), len(self.dataset.classes), first)

    def _binding(self, method: Method, shard: int) -> Binding:
        return self.bindings.shard(self.name, str(method), self.seed, shard)

    def _samples(self, method: Method, shard: int) -> list[Sample]:
        """The samples of a shard, in the order of its records."""
        listed = self._listed(self.places(shard), is_online(method.adapter))
        return [self.dataset.samples[self.indices[place]] for place in listed]

    def damaged(self, method: Method) -> dict[int, DamagedFile]:
        """The shards of a method that are damaged or belong elsewhere, among those to do."""

        def check(file: Location, shard: int) -> None:
            if self.only is None or shard in self.only:
                ids = [sample.id for sample in self._samples(method, shard)]
                read_shard(file, self._binding(method, shard), ids=ids)

        return damaged(self.records_of(method), check)

    def records_of(self, method: Method) -> Location:
        return records_folder(self.folder, self.name, self.seed, str(method))


def parts(jobs: Sequence[Job]) -> tuple[list[Job], list[Job]]:
    """What processes can compute independently: groups of shards of the episodic methods, and streams.

    It depends only on the run, not on what is already done, so processes agree without communicating.
    """
    groups = [replace(job.episodic, only=frozenset(group)) for job in jobs for group in job.groups()]
    return groups, [stream for job in jobs for stream in job.streams]


def missing_parts(parts: Iterable[Job]) -> list[MissingShards]:
    """The missing shards of each part; lists every folder once, because an object store takes long."""
    finished = functools.cache(present)
    return [part.missing(finished) for part in parts]


class _Walk:
    """Runs the pipeline over the shards of a job, for methods that take the same inputs in the same order.

    An episodic adapter runs only on missing shards. An online adapter runs on every sample from the start, or from the
    last saved state; shards without a missing method are not rewritten.
    """

    def __init__(self, job: "Job", missing: MissingShards, online: bool) -> None:
        self.job, self.missing = job, missing
        self.takes = ADAPTERS.info(next(iter(missing)).adapter).takes
        self.pipeline = make_pipeline({method: job.settings[method] for method in missing}, job.seed, job.task)
        needed: dict[str, set[int]] = {}
        for method, shards in missing.items() if online else ():
            needed.setdefault(method.adapter, set()).update(shards)
        self.online: dict[str, range] = {}  # the shards that each online adapter must process
        for name, shards in needed.items():
            first, self.pipeline.states[name] = load_state(
                self._states(name), before=min(shards), binding=functools.partial(self._state_binding, name)
            )
            self.online[name] = range(first, max(shards) + 1)

    @property
    def shards(self) -> list[int]:
        return sorted(set().union(*self.missing.values(), *self.online.values()))

    def run(self, read: Callable[[range], Iterator[Chunk]], advance: Callable[[int], None]) -> None:
        """Write every missing shard; `read` returns the samples of a batch in one or several chunks."""
        if self.job.batch_size == 1:  # times of single samples must not include a cold start
            warm = make_pipeline({method: self.job.settings[method] for method in self.missing}, 0, self.job.task)
            for _ in range(WARM_UP):
                warm.run(toy_inputs(self.job.task, self.job.view_settings.n, self.takes))
        for shard in self.shards:
            methods = [method for method, shards in self.missing.items() if shard in shards]
            online = [name for name, shards in self.online.items() if shard in shards]
            writers = {method: self.job._writer(method, shard) for method in methods}
            places = self.job.places(shard)
            for start in range(places.start, places.stop, self.job.batch_size):
                batch = range(start, min(start + self.job.batch_size, places.stop))
                good: list[int] = []
                encoding: list[float] = []
                inputs = _good_inputs(read(batch), good, encoding, writers.values())
                for method, outcome in self.pipeline.run(inputs, methods, advance=online).items():
                    writers[method].add(good, outcome.calibrated, self.pipeline.milliseconds[method], encoding)
                advance(len(batch) * len(writers))
            for writer in writers.values():
                writer.write()
            for name in online:
                save_state(self._states(name), self._state_binding(name, shard), self.pipeline.states[name])

    def _state_binding(self, adapter: str, shard: int) -> Binding:
        return self.job.bindings.state(self.job.name, adapter, self.job.seed, shard)

    def _states(self, adapter: str) -> Location:
        return state_folder(self.job.folder, self.job.name, self.job.seed, adapter)


def is_online(adapter: str) -> bool:
    """Whether the adapter carries a state from sample to sample, so that their order matters."""
    return ADAPTERS.info(adapter).online


def _taking(kind: str, online: bool, missing: MissingShards) -> MissingShards:
    infos = {method: ADAPTERS.info(method.adapter) for method in missing}
    return {method: missing[method] for method, info in infos.items() if (info.takes, info.online) == (kind, online)}


def _good_inputs(
    chunks: Iterator[Chunk], good: list[int], encoding: list[float], writers: Iterable[ShardWriter]
) -> Iterator[Tensor]:
    """The inputs of the chunks; adds positions and times of good samples to `good` and `encoding`, and errors to
    `writers`."""
    for places, inputs, errors, spent in chunks:
        good += places
        encoding += spent
        for place, reason in errors.items():
            for writer in writers:
                writer.fail(place, reason)
        if inputs is not None:
            yield inputs


def _one_by_one(views: Iterator[Views], places: range) -> Iterator[Chunk]:
    """The pixels of one sample at a time, because a batch with 64 views each would take too much memory."""
    for place in places:
        one = next(views)
        yield ([], None, {place: one}, []) if isinstance(one, str) else ([place], one[None], {}, [])
