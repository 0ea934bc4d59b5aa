"""One dataset under one seed: features first, then every method over them, shard by shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor

from ..calibrators import calibrate
from ..data import Dataset
from ..prompts import Task
from ..views import ViewSettings
from ._features import BLOCK, FeatureCache
from ._loader import ViewSource
from ._numbers import Numbers
from ._paths import Location
from ._protocol import adapter_arguments, calibrator_arguments, split
from ._shards import ShardWriter, file_name, present
from ._stream import Stream, clock

Chunk = tuple[list[int], Tensor | None, dict[int, str]]


class Progress(Protocol):
    """Told how far a run is: stage "views" counts samples, stage "methods" records (samples x methods)."""

    def __call__(self, stage: str, dataset: str, seed: int, done: int, total: int) -> None: ...


def silent(stage: str, dataset: str, seed: int, done: int, total: int) -> None:
    """No progress shown."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """All methods on one dataset under one seed; `run` does what is not there yet."""

    name: str
    dataset: Dataset
    indices: Sequence[int]
    seed: int
    methods: Sequence[str]
    settings: dict[str, Any]  # method -> {"adapter": ..., "calibrator": ...}
    task: Task
    view_settings: ViewSettings
    folder: Location  # of the run
    features: Location
    batch_size: int
    shard_size: int
    workers: int = 0
    renderer: str = "pil"
    only: frozenset[int] | None = None  # the shards that are done here, where several processes share the job

    @property
    def shards(self) -> int:
        return -(-len(self.indices) // self.shard_size)

    @property
    def mine(self) -> Sequence[int]:
        return range(self.shards) if self.only is None else sorted(self.only)

    def missing(self) -> dict[str, Numbers]:
        """Shards that are not there yet, by method; methods without any are left out."""
        found = {}
        for method in self.methods:
            there = present(self._records(method))
            if rest := Numbers(shard for shard in self.mine if shard not in there):
                found[method] = rest
        return found

    def places(self, shard: int) -> range:
        return range(shard * self.shard_size, min((shard + 1) * self.shard_size, len(self.indices)))

    def run(self, progress: Progress) -> None:
        missing = self.missing()
        if not missing:
            return
        streams = self._streams(missing)
        counter = _Counter(self, progress, len(self.methods) * self._count(self.mine))
        counter.start(missing)
        if by_features := [stream for stream in streams if not stream.takes_pixels]:
            self.task.linearise(len(self.indices))
            cache = self._cache()
            self._encode(cache, _wanted(by_features), progress)
            self._pass(by_features, lambda places: iter([cache.read(places.start, places.stop)]), counter)
        if by_pixels := [stream for stream in streams if stream.takes_pixels]:
            stream = self._source().stream(self._places(_wanted(by_pixels)), self.workers)
            self._pass(by_pixels, lambda places: _one_by_one(stream, places), counter)

    def encode(self, shards: Sequence[int], progress: Progress) -> None:
        """Make the view features of `shards` that are not there yet."""
        self._encode(self._cache(), shards, progress)

    def without_features(self, shards: Iterable[int]) -> Numbers:
        """Those of `shards` whose view features are not all there."""
        there = present(self.features)
        return Numbers(shard for shard in shards if any(block not in there for block in self._blocks(shard)))

    def give_up(self, shards: Sequence[int], reason: str) -> None:
        """Write what is missing of `shards` as records with an error."""
        for method, rest in replace(self, only=frozenset(shards)).missing().items():
            for shard in rest:
                writer = self._writer(method, shard)
                writer.give_up(reason)
                writer.write()

    def unencoded(self) -> int:
        """Samples that are still to be encoded for the missing shards."""
        streams = [stream for stream in self._streams(self.missing()) if not stream.takes_pixels]
        there = present(self.features)
        wanted = Numbers(b for stream in streams for shard in stream.wanted for b in self._blocks(shard))
        return self._cache().samples(block for block in wanted if block not in there)

    def _blocks(self, shard: int) -> range:
        """The files of features that hold the shard's samples."""
        places = self.places(shard)
        return range(places.start // BLOCK, (places.stop - 1) // BLOCK + 1)

    def _places(self, shards: Sequence[int]) -> list[int]:
        return [place for shard in shards for place in self.places(shard)]

    def _count(self, shards: Sequence[int]) -> int:
        return sum(len(self.places(shard)) for shard in shards)

    def _source(self) -> ViewSource:
        device = self.task.backbone.device if self.renderer == "gpu" else None
        return ViewSource(self.dataset, self.indices, self.view_settings, self.seed, device)

    def _cache(self) -> FeatureCache:
        return FeatureCache(self.features, self._source(), _Ids(self.dataset, self.indices))

    def _encode(self, cache: FeatureCache, shards: Sequence[int], progress: Progress) -> None:
        blocks = cache.missing(self._places(shards))
        total = max(self._count(self.mine), cache.samples(blocks))
        done = total - cache.samples(blocks)

        def advance(count: int) -> None:
            nonlocal done
            done += count
            progress("views", self.name, self.seed, done, total)

        advance(0)
        if blocks:
            cache.fill(blocks, self.task.backbone, self.workers, advance)

    def _pass(self, streams: Sequence[Stream], feed: Callable[[range], Iterator[Chunk]], counter: _Counter) -> None:
        """Every stream over the shards that it wants; `feed` gives the samples of a batch, in one piece or several."""
        for shard in _wanted(streams):
            active = [stream for stream in streams if shard in stream.wanted]
            writers = {method: self._writer(method, shard) for stream in active for method in stream.methods(shard)}
            places = self.places(shard)
            for start in range(places.start, places.stop, self.batch_size):
                batch = range(start, min(start + self.batch_size, places.stop))
                self._batch(active, shard, writers, feed(batch))
                counter.advance(len(batch) * len(writers))
            for writer in writers.values():
                writer.write()
            for stream in active:
                if stream.online:
                    stream.keep(shard)

    def _batch(
        self, streams: Sequence[Stream], shard: int, writers: dict[str, ShardWriter], chunks: Iterator[Chunk]
    ) -> None:
        good: list[int] = []
        for places, inputs, errors in chunks:
            good += places
            for place, reason in errors.items():
                for writer in writers.values():
                    writer.fail(place, reason)
            if inputs is not None:
                for stream in streams:
                    stream.feed(inputs)
        if not good:
            return
        for stream in streams:
            logits, zero_shot, adapting = stream.collect()
            for method in stream.methods(shard):
                arguments = calibrator_arguments(self.settings[method]["calibrator"], self.task)
                start = clock(self.task)
                result = calibrate(logits, zero_shot, method=split(method)[1], **arguments)
                seconds = adapting + clock(self.task) - start
                writers[method].add(good, result, 1000 * seconds / len(good))

    def _streams(self, missing: dict[str, Numbers]) -> list[Stream]:
        by_adapter: dict[str, dict[str, Numbers]] = {}
        for method, shards in missing.items():
            by_adapter.setdefault(split(method)[0], {})[method] = shards
        streams = []
        for adapter, methods in by_adapter.items():
            settings = self.settings[next(iter(methods))]["adapter"]
            state = self.folder / "state" / self.name / f"seed{self.seed}" / adapter
            streams.append(Stream(adapter, self.task, adapter_arguments(settings, self.seed), methods, state))
        return streams

    def _writer(self, method: str, shard: int) -> ShardWriter:
        places = self.places(shard)
        return ShardWriter(
            file=self._records(method) / file_name(shard),
            ids=[self.dataset.samples[self.indices[place]].id for place in places],
            labels=[self.dataset.samples[self.indices[place]].label for place in places],
            classes=len(self.dataset.classes),
            first=places.start,
        )

    def _records(self, method: str) -> Location:
        return records_folder(self.folder, self.name, self.seed, method)


class _Ids(Sequence[str]):
    """The ids of a job's samples, looked up when they are asked for."""

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, place: int) -> str:  # type: ignore[override]
        return self.dataset.samples[self.indices[place]].id


class _Counter:
    """Counts records for the progress callback."""

    def __init__(self, job: Job, progress: Progress, total: int) -> None:
        self.job, self.progress, self.total, self.done = job, progress, total, 0

    def start(self, missing: dict[str, Numbers]) -> None:
        self.done = self.total - sum(len(self.job.places(s)) for shards in missing.values() for s in shards)

    def advance(self, count: int) -> None:
        self.done += count
        self.progress("methods", self.job.name, self.job.seed, self.done, self.total)


def records_folder(folder: Location, dataset: str, seed: int, method: str) -> Location:
    return folder / "shards" / dataset / f"seed{seed}" / method


def _wanted(streams: Sequence[Stream]) -> list[int]:
    return list(Numbers(shard for stream in streams for shard in stream.wanted))


def _one_by_one(stream: Iterator[Any], places: range) -> Iterator[Chunk]:
    """Pixels of 64 views are large: a batch of them is never held, each sample is adapted to as it comes."""
    for place in places:
        views = next(stream)
        if views.pixels is None:
            yield [], None, {place: views.error}
        else:
            yield [place], views.pixels[None], {}
