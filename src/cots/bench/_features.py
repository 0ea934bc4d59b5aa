"""View features of a run's samples, encoded once and stored in files."""

import hashlib
import itertools
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version

import torch
from torch import Tensor

from .._arrays import to_host
from .._checked import DamagedFile, read_tensors, write_tensors
from .._files import Location
from ..backbones import Backbone
from ..data import Dataset
from ..views import ViewSettings
from ._shards import REMAKE, file_name, present, put_aside
from ._views import Views, ViewSource

Block = tuple[Tensor, dict[int, str], list[float]]  # features, errors by position, milliseconds of encoding
# Positions and inputs of good samples, errors of the others, milliseconds that encoding took.
Chunk = tuple[list[int], Tensor | None, dict[int, str], list[float]]
WARM_UP = 3  # passes before single samples are timed
BLOCK = 64  # samples per file, so that runs with different batches and shards can share a cache
_KEPT = 2**30  # bytes of features kept in memory for random access


class FeatureCache:
    """View features `(n,V,D)` in half precision for one (model, dataset, seed), in files of 64 samples.

    Samples are encoded one by one, or on a GPU in passes of a fixed size, so features depend only on the sample itself.
    A damaged file is set aside and recomputed when it is read.
    """

    def __init__(
        self,
        folder: Location,
        source: ViewSource,
        backbone: Backbone,
        workers: int = 0,
        *,
        at_random: bool = False,
        alone: bool = False,
    ) -> None:
        """at_random: samples are read in random order, so keep more than one file in memory. alone: encode one sample
        per pass even on a GPU, after a warm-up, to time it."""
        self.folder, self.source, self.backbone, self.workers = folder, source, backbone, workers
        self.alone = alone
        self._memory = _KEPT if at_random else 0
        self._open: dict[int, Block] = {}  # latest last

    def missing(self, places: Iterable[int]) -> list[int]:
        """The blocks of `places` that do not exist yet."""
        return sorted({place // BLOCK for place in places} - present(self.folder))

    def places(self, blocks: Iterable[int]) -> list[int]:
        """The positions of the samples in `blocks`."""
        n = len(self.source.indices)
        return [place for block in blocks for place in range(block * BLOCK, min((block + 1) * BLOCK, n))]

    def fill(self, blocks: Sequence[int], advance: Callable[[int], object] = lambda count: None) -> None:
        """Encode and write `blocks`; `advance` is called with 1 after every sample."""
        backbone = self.backbone
        many = backbone.device.type == "cuda" and not self.alone
        at_once = backbone.samples_at_once(self.source.settings.n) if many else 1
        if self.alone:
            self._warm_up()
        encoded = _encoded(self.source.stream(self.places(blocks), self.workers, at_once), at_once, backbone)
        for block in blocks:
            rows: list[Tensor | None] = []
            errors: dict[int, str] = {}
            spent: list[float] = []
            for place in self.places([block]):
                features, error, milliseconds = next(encoded)
                rows.append(features)
                spent.append(milliseconds)
                if error is not None:
                    errors[place] = error
                advance(1)
            shape = next((row.shape for row in rows if row is not None), (self.source.settings.n, 0))
            blank = torch.zeros(shape, dtype=torch.float16)
            tensors = {"features": torch.stack([blank if row is None else row for row in rows])}
            tensors["encoding"] = torch.tensor(spent)
            metadata = {"ids": json.dumps(self._ids(block)), "errors": json.dumps(errors)}
            write_tensors(self.folder / file_name(block), tensors, metadata)

    def _warm_up(self) -> None:
        """Warm up, so that the time of the first sample is not that of a cold start."""
        height, width = self.backbone.image_size
        for _ in range(WARM_UP):
            self.backbone.encode_images(torch.zeros(self.source.settings.n, 3, height, width))

    def read(self, places: Iterable[int]) -> Chunk:
        """Positions and features of the samples at `places` that could be encoded, errors of the others, and the
        milliseconds of each encoding.

        The features are float32 in newly allocated memory, so that the layout of the files cannot affect results.
        """
        spent: list[float] = []
        rows: list[Tensor] = []
        good: list[int] = []
        errors: dict[int, str] = {}
        for place in places:
            features, failed, encoding = self._block(place // BLOCK)
            if place in failed:
                errors[place] = failed[place]
            else:
                good.append(place)
                rows.append(features[place % BLOCK])
                spent += encoding[place % BLOCK :][:1]
        return good, torch.stack(rows).float() if rows else None, errors, spent

    def _ids(self, block: int) -> list[str]:
        return [self.source.id(place) for place in self.places([block])]

    def _block(self, block: int) -> Block:
        found = self._open.pop(block, None)
        if found is None:
            try:
                found = self._load(block)
            except (DamagedFile, FileNotFoundError) as error:  # another process may have just set it aside
                if isinstance(error, DamagedFile):
                    put_aside(error)
                self.fill([block])
                found = self._load(block)
        while self._open and (len(self._open) + 1) * found[0].nbytes > self._memory:
            del self._open[next(iter(self._open))]
        self._open[block] = found
        return found

    def _load(self, block: int) -> Block:
        file, ids = self.folder / file_name(block), self._ids(block)
        tensors, metadata = read_tensors(file, None, "pt", remedy=REMAKE)
        try:
            if json.loads(metadata["ids"]) != ids or len(tensors["features"]) != len(ids):
                raise ValueError("it has other samples")
            errors = {int(place): str(t) for place, t in json.loads(metadata["errors"]).items()}
            spent = tensors.get("encoding")  # files of earlier versions do not have it
            return tensors["features"], errors, [] if spent is None else spent.tolist()
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedFile(file, str(error), REMAKE) from error


class GivenFeatures(FeatureCache):
    """The view features that a dataset comes with."""

    def missing(self, places: Iterable[int]) -> list[int]:
        return []

    def read(self, places: Iterable[int]) -> Chunk:
        good, given = list(places), self.source.dataset.features
        assert given is not None
        return good, given.values[[self.source.indices[place] for place in good]].float(), {}, []


def _encoded(
    stream: Iterator[Views], size: int, backbone: Backbone
) -> Iterator[tuple[Tensor | None, str | None, float]]:
    """Features or error of each sample, `size` per pass, and the host's milliseconds of encoding it.

    With several samples per pass, a GPU starts the next pass while the host reads the results of this one.
    """
    ahead = 1 if size > 1 else 0
    begun: deque[tuple[list[Views], Callable[[], tuple[Tensor, ...]], float]] = deque()
    while (some := list(itertools.islice(stream, size))) or begun:
        start = time.perf_counter()
        if some:
            fetch = _begin(some, size, backbone)
            begun.append((some, fetch, time.perf_counter() - start))
        if some and len(begun) <= ahead:
            continue
        start = time.perf_counter()
        samples, fetch, before = begun.popleft()
        features = iter(fetch())
        spent = 1000 * (before + time.perf_counter() - start) / len(samples)
        for views in samples:
            if views.pixels is None:
                yield None, views.error, spent
            elif bool(torch.isfinite(row := next(features)).all()):
                yield row.half(), None, spent
            else:
                error = f"its features are not finite in {backbone.precision}; use precision='float32'."
                yield None, error, spent


def _begin(some: Sequence[Views], size: int, backbone: Backbone) -> Callable[[], tuple[Tensor, ...]]:
    """Start encoding one pass; returns a function that fetches the features of its good samples."""
    pixels = [views.pixels for views in some if views.pixels is not None]
    if not pixels:
        return tuple
    # Always the same number, so that rounding does not depend on whether other samples could be read.
    pixels += pixels[-1:] * (size - len(pixels))
    whole = pixels[0] if size == 1 else torch.cat(pixels)
    at_once = None if size == 1 else len(whole)
    return to_host(*backbone.encode_images(whole, batch_size=at_once).split(len(pixels[0])))


def cache_key(
    dataset: Dataset,
    settings: ViewSettings,
    backbone: Backbone,
    limit: int | None,
    device: str,
    renderer: str,
    corrupt: str | None = None,
) -> str:
    """The cache key of a dataset's features: equal keys mean equal features, up to the machine's rounding."""
    parts = {
        "cots": version("cots"),
        "weights": backbone.weights_hash,
        "precision": backbone.precision,
        "device": device,
        "dataset": dataset.name,  # the seeds of the views depend on the name
        "split": dataset.split_hash,
        "limit": limit,
        "views": asdict(settings),
    }
    if renderer != "pil":
        parts["renderer"] = renderer
    if corrupt is not None:
        parts["corrupt"] = corrupt
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
