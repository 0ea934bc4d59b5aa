"""One dataset under one seed: its samples, shards and files, and the units that processes can compute."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .._checked import DamagedFile
from .._files import Location
from ..adapters import ADAPTERS
from ..data import Dataset, Sample
from ..methods import Method
from ..prompts import Task
from ..views import ViewSettings
from ._binding import BLOCK, Binding, Bindings
from ._features import FeatureCache, GivenFeatures
from ._schema import MethodSettings
from ._shards import ShardWriter, damaged, file_name, present, read_shard, records_folder
from ._views import ViewSource

MissingShards = dict[Method, set[int]]
# Called with (stage, dataset, seed, done, total); stage "views" counts samples, "methods" records (samples x methods).
Progress = Callable[[str, str, int, int, int], None]


def silent(*event: object) -> None:
    """Ignore progress."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """All methods on one dataset under one seed, or a unit of that which one process computes.

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

    def positions(self, *shards: int) -> list[int]:
        """The positions of the records in `shards`."""
        positions: list[int] = []
        for shard in shards:
            positions += range(shard * self.shard_size, min((shard + 1) * self.shard_size, len(self.indices)))
        return positions

    def batches(self, shard: int) -> list[list[int]]:
        positions = self.positions(shard)
        return [positions[start : start + self.batch_size] for start in range(0, len(positions), self.batch_size)]

    def samples_at(self, positions: Iterable[int], online: bool) -> list[int]:
        """The samples at `positions` of the list or, for online methods, of the stream."""
        if self.order is None or not online:
            return list(positions)
        return [self.order[position] for position in positions]

    def samples(self, method: Method, shard: int) -> list[Sample]:
        """The samples of a shard, in the order of its records."""
        listed = self.samples_at(self.positions(shard), is_online(method.adapter))
        return [self.dataset.samples[self.indices[position]] for position in listed]

    def missing(self, finished: Callable[[Location], set[int]] = present) -> MissingShards:
        """Shards that do not exist yet, by method, without finished methods."""
        missing = {}
        for method in self.methods:
            shards = set(self.shards) - finished(self.records_of(method))
            if shards:
                missing[method] = shards
        return missing

    def count(self, missing: MissingShards) -> int:
        """Number of records in `missing`."""
        return sum(len(self.positions(*shards)) for shards in missing.values())

    @property
    def is_stream(self) -> bool:
        """Whether it has online methods, which one process must compute in order."""
        return any(is_online(method.adapter) for method in self.methods)

    def with_methods(self, methods: Iterable[Method]) -> "Job":
        return replace(self, settings={method: self.settings[method] for method in methods})

    def records_of(self, method: Method) -> Location:
        return records_folder(self.folder, self.name, self.seed, str(method))

    def writer(self, method: Method, shard: int) -> ShardWriter:
        file = self.records_of(method) / file_name(shard)
        classes, first = len(self.dataset.classes), self.positions(shard)[0]
        return ShardWriter(file, self._binding(method, shard), self.samples(method, shard), classes, first)

    def damaged(self, method: Method) -> list[DamagedFile]:
        """The shards of a method that are damaged or belong elsewhere, among those to do."""

        def check(file: Location, shard: int) -> None:
            if self.only is None or shard in self.only:
                ids = [sample.id for sample in self.samples(method, shard)]
                read_shard(file, self._binding(method, shard), ids=ids)

        return damaged(self.records_of(method), check)

    def _binding(self, method: Method, shard: int) -> Binding:
        return self.bindings.shard(self.name, str(method), self.seed, shard)

    def give_up(self, reason: str) -> None:
        """Write everything that is missing as error records."""
        for method, shards in self.missing().items():
            for shard in shards:
                writer = self.writer(method, shard)
                writer.give_up(reason)
                writer.write()

    def source(self) -> ViewSource:
        return ViewSource(
            dataset=self.dataset,
            indices=self.indices,
            seed=self.seed,
            settings=self.view_settings,
            device=self.task.backbone.device,
            renderer=self.renderer,
            corrupt=self.corrupt,
            workers=self.workers,
        )

    def cache(self, online: bool = False) -> FeatureCache:
        kind = FeatureCache if self.dataset.features is None else GivenFeatures
        return kind(
            folder=self.features,
            source=self.source(),
            backbone=self.task.backbone,
            binding=functools.partial(self.bindings.features, self.name, self.seed),
            at_random=online and self.order is not None,
            alone=self.batch_size == 1,
        )


def units(jobs: Sequence[Job]) -> tuple[list[Job], list[Job]]:
    """What processes can compute independently: groups of shards of the episodic methods, and streams.

    Groups cover whole feature files, so that one process writes each file. Units depend only on the run, not on what is
    already done, so processes agree without communicating.
    """
    groups, streams = [], []
    for job in jobs:
        online = dict.fromkeys(method.base for method in job.methods if is_online(method.adapter))
        episodic = job.with_methods([method for method in job.methods if method.base not in online])
        size, count = BLOCK // math.gcd(job.shard_size, BLOCK), len(job.shards)
        for first in range(0, count, size):
            groups.append(replace(episodic, only=frozenset(range(first, min(first + size, count)))))
        for adapter in online:
            streams.append(job.with_methods([method for method in job.methods if method.base == adapter]))
    return groups, streams


def missing_in(units: Iterable[Job]) -> list[MissingShards]:
    """The missing shards of each unit; lists every folder once, because an object store takes long."""
    finished = functools.cache(present)
    return [unit.missing(finished) for unit in units]


def is_online(adapter: str) -> bool:
    """Whether the adapter carries a state from sample to sample, so that their order matters."""
    return ADAPTERS.info(adapter).online
