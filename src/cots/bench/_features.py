"""View features of a run's samples, encoded once and stored in files."""

import itertools
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .._arrays import to_host
from .._checked import DamagedFile, write_tensors
from .._files import Location
from ..backbones import Backbone
from ..photos import batches
from ._binding import BLOCK, Binding
from ._shards import REMAKE, file_name, present, read_bound, set_damaged_aside
from ._views import SampleInput, ViewSource

WARM_UP = 3  # passes before single samples are timed
_KEPT = 2**30  # bytes of features kept in memory for random access


@dataclass(kw_only=True, eq=False)
class FeatureCache:
    """View features `(n,V,D)` in half precision for one (model, dataset, seed), in files of 64 samples.

    Samples are encoded one by one, or on a GPU in passes of a fixed size, so features depend only on the sample itself.
    A damaged file is set aside and recomputed when it is read. at_random: samples are read in random order, so keep
    more than one file in memory. alone: encode one sample per pass even on a GPU, after a warm-up, to time it.
    """

    folder: Location
    source: ViewSource
    backbone: Backbone
    binding: Callable[[int], Binding]  # of a block
    at_random: bool = False
    alone: bool = False
    _open: dict[int, list[SampleInput]] = field(default_factory=dict)  # latest last

    def missing(self, positions: Iterable[int]) -> list[int]:
        """The blocks of `positions` that do not exist yet."""
        return sorted({position // BLOCK for position in positions} - present(self.folder))

    def positions(self, blocks: Iterable[int]) -> list[int]:
        """The positions of the samples in `blocks`."""
        n = len(self.source.indices)
        return [position for block in blocks for position in range(block * BLOCK, min((block + 1) * BLOCK, n))]

    def fill(self, blocks: Sequence[int], advance: Callable[[int], object] = lambda count: None) -> None:
        """Encode and write `blocks`; `advance` is called with 1 after every sample."""
        backbone = self.backbone
        at_once = 1
        if self.alone:  # the time of the first sample must not include a cold start
            for _ in range(WARM_UP):
                backbone.encode_images(torch.zeros(self.source.settings.n, 3, *backbone.image_size))
        elif backbone.device.type == "cuda":
            at_once = backbone.samples_at_once(self.source.settings.n)
        encoded = _encoded(self.source.stream(self.positions(blocks), at_once), at_once, backbone)
        for block in blocks:
            samples = []
            for sample in itertools.islice(encoded, len(self.positions([block]))):
                samples.append(sample)
                advance(1)
            self._write(block, samples)

    def read(self, positions: Iterable[int]) -> Iterator[SampleInput]:
        """The samples at `positions`."""
        for position in positions:
            yield self._block(position // BLOCK)[position % BLOCK]

    def _write(self, block: int, samples: Sequence[SampleInput]) -> None:
        errors, shape = {}, (self.source.settings.n, 0)
        for position, sample in zip(self.positions([block]), samples, strict=True):
            if sample.values is None:
                errors[position] = sample.error
            else:
                shape = sample.values.shape
        blank = torch.zeros(shape, dtype=torch.float16)
        features = torch.stack([blank if sample.values is None else sample.values for sample in samples])
        metadata = {"ids": json.dumps(self._ids(block)), "errors": json.dumps(errors)}
        metadata |= self.binding(block).metadata()
        tensors = {"features": features, "encoding": torch.tensor([sample.milliseconds for sample in samples])}
        write_tensors(self.folder / file_name(block), tensors, metadata)

    def _ids(self, block: int) -> list[str]:
        return [self.source.id(position) for position in self.positions([block])]

    def _block(self, block: int) -> list[SampleInput]:
        try:
            samples = self._open.pop(block, None) or self._load(block)
        except (DamagedFile, FileNotFoundError) as error:  # another process may have just set it aside
            if isinstance(error, DamagedFile):
                set_damaged_aside(error)
            self.fill([block])
            samples = self._load(block)
        size = sum(sample.values.nbytes for sample in samples if sample.values is not None)
        while self._open and (len(self._open) + 1) * size > (_KEPT if self.at_random else 0):
            del self._open[next(iter(self._open))]
        self._open[block] = samples
        return samples

    def _load(self, block: int) -> list[SampleInput]:
        file, ids = self.folder / file_name(block), self._ids(block)
        tensors, metadata = read_bound(file, self.binding(block), framework="pt")
        try:
            features, errors = tensors["features"], json.loads(metadata["errors"])
            if json.loads(metadata["ids"]) != ids or features.shape[:2] != (len(ids), self.source.settings.n):
                raise ValueError("it has other samples or views")
            # Files of earlier versions do not have the times.
            times = tensors.get("encoding", torch.full((len(ids),), torch.nan)).tolist()
            samples = []
            for position, row, milliseconds in zip(self.positions([block]), features, times, strict=True):
                error = errors.get(str(position))
                samples.append(SampleInput(row, "", milliseconds) if error is None else SampleInput(error=str(error)))
            return samples
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedFile(file, str(error), REMAKE) from error


class GivenFeatures(FeatureCache):
    """The view features that a dataset comes with."""

    def missing(self, positions: Iterable[int]) -> list[int]:
        return []

    def read(self, positions: Iterable[int]) -> Iterator[SampleInput]:
        given = self.source.dataset.features
        assert given is not None
        for position in positions:
            yield SampleInput(given.values[self.source.indices[position]])


def _encoded(stream: Iterator[SampleInput], size: int, backbone: Backbone) -> Iterator[SampleInput]:
    """Features or error of each sample, `size` per pass, with the host's milliseconds of encoding it.

    With several samples per pass, a GPU starts the next pass while the host reads the results of this one.
    """
    begun: deque[_Pass] = deque()
    for group in batches(stream, size):
        begun.append(_Pass(group, size, backbone))
        if size == 1 or len(begun) > 1:
            yield from begun.popleft().results()
    for last in begun:
        yield from last.results()


class _Pass:
    """One pass of the image encoder, begun on creation."""

    def __init__(self, group: Sequence[SampleInput], size: int, backbone: Backbone) -> None:
        self._group, self._backbone = group, backbone
        self._fetch: Callable[[], tuple[Tensor, ...]] = tuple
        began = time.perf_counter()
        views = [sample.values for sample in group if sample.values is not None]
        if views:
            # Always the same number, so that rounding does not depend on whether other samples could be read.
            views += views[-1:] * (size - len(views))
            whole = views[0] if size == 1 else torch.cat(views)
            at_once = None if size == 1 else len(whole)
            self._fetch = to_host(*backbone.encode_images(whole, batch_size=at_once).split(len(views[0])))
        self._seconds = time.perf_counter() - began

    def results(self) -> Iterator[SampleInput]:
        began = time.perf_counter()
        features = iter(self._fetch())
        milliseconds = 1000 * (self._seconds + time.perf_counter() - began) / len(self._group)
        for sample in self._group:
            row = None if sample.values is None else next(features)
            if row is None:
                yield replace(sample, milliseconds=milliseconds)
            elif bool(torch.isfinite(row).all()):
                yield SampleInput(row.to(torch.float16), "", milliseconds)
            else:
                error = f"its features are not finite in {self._backbone.precision}; use precision='float32'."
                yield SampleInput(error=error, milliseconds=milliseconds)
