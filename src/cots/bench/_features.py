"""Views of a run's samples, made in this process or by worker processes, and their features, stored in files."""

import contextlib
import itertools
import json
import signal
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from .._arrays import to_host
from .._checked import DamagedFile, write_tensors
from .._errors import CotsError
from .._files import Location
from ..backbones import Backbone
from ..data import Dataset
from ..photos import in_threads
from ..views import ViewMaker, ViewSettings, corrupt, read_image, sample_seed
from ._binding import BLOCK, Binding
from ._shards import REMAKE, file_name, present, put_aside, read_bound

Block = tuple[Tensor, dict[int, str], list[float]]  # features, errors by position, milliseconds of encoding
Views = Tensor | str  # the views (V,3,H,W) of one sample, or its error
# Positions and inputs of good samples, errors of the others, milliseconds that encoding took.
Chunk = tuple[list[int], Tensor | None, dict[int, str], list[float]]
WARM_UP = 3  # passes before single samples are timed
_KEPT = 2**30  # bytes of features kept in memory for random access
_PROBES = 64  # samples tried before the dataset counts as unreadable


@dataclass(eq=False)
class ViewSource:
    """Views by position among a run's samples; they depend only on (run seed, dataset, sample id)."""

    dataset: Dataset
    indices: Sequence[int]
    seed: int
    settings: ViewSettings
    device: torch.device
    renderer: str
    corrupt: str | None = None
    _readable: int | None = None  # a position that could be read

    @cached_property
    def maker(self) -> ViewMaker:
        """Created on first use, because the driver of a GPU cluster may have no GPU."""
        return ViewMaker(self.settings, self.device, self.renderer)

    def id(self, place: int) -> str:
        return self.dataset.samples[self.indices[place]].id

    def stream(self, places: Sequence[int], workers: int, at_once: int = 1) -> Iterator[Views]:
        """The views of `places`, in that order, rendered `at_once` samples at a time."""
        if workers:
            items = self._from_workers(places, workers)
        elif self.maker.renderer == "pil":
            items = map(self.__getitem__, places)
        else:  # threads read ahead while a GPU renders; on a CPU they would compete with the encoder
            items = in_threads(self.__getitem__, places)
        while some := list(itertools.islice(items, at_once)):
            prepared = [_unpacked(item) for _, item in some if not isinstance(item, str)]
            rendered = iter(self.maker.render(prepared)) if prepared else iter(())
            for place, item in some:
                if isinstance(item, str):
                    self._check_data(item)
                    yield item
                else:
                    self._readable = place
                    yield next(rendered)

    def __getitem__(self, place: int) -> tuple[int, Any]:
        try:
            about = (self.seed, self.dataset.name, self.id(place))
            image = self._image(place)
            if self.corrupt is not None:
                image = corrupt(image, self.corrupt, sample_seed(*about, "corruption"))
            return place, self.maker.prepare(image, sample_seed(*about))
        except (CotsError, OSError) as error:
            return place, str(error)

    def _image(self, place: int) -> Any:
        # Published figures were made from pixels as stored: not rotated by EXIF, not flattened onto white.
        return read_image(self.dataset.read(self.indices[place]), orient=False, flatten=False)

    def _check_data(self, error: str) -> None:
        """Stop if no other sample can be read either: a lost disk must not become thousands of error records."""
        first = range(min(_PROBES, len(self.indices)))
        for place in first if self._readable is None else (self._readable, *first):
            with contextlib.suppress(CotsError, OSError):
                self._image(place)
                self._readable = place
                return
        raise CotsError(
            f"{error} The first {len(first)} images of {self.dataset.title} cannot be read either. Check that the data "
            "is still in place, then re-run the same command to resume."
        )

    def _from_workers(self, places: Sequence[int], workers: int) -> Iterator[Any]:
        loader: DataLoader[Any] = DataLoader(
            self,  # type: ignore[arg-type]
            batch_size=None,
            sampler=places,
            num_workers=min(workers, len(places)),
            collate_fn=_packed,
            prefetch_factor=2,  # samples prepared ahead per worker
            worker_init_fn=_ignore_interrupts,
            generator=torch.Generator(),  # leaves the caller's random numbers alone
        )
        with warnings.catch_warnings():
            # Python 3.12 warns when a process with threads forks; these workers only decode and draw.
            warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
            items = iter(loader)
        with naming_worker_deaths(RuntimeError, ConnectionError, EOFError):
            yield from items


@contextlib.contextmanager
def naming_worker_deaths(*kinds: type[Exception]) -> Iterator[None]:
    """Explain the death of a worker process, which torch raises as one of `kinds`.

    The RuntimeError comes from a signal handler, so it can appear anywhere in the main process.
    """
    try:
        yield
    except kinds as error:
        if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
            raise
        raise CotsError(
            f"A worker process that makes views died ({error}). Lower workers or free some memory, then re-run the "
            "same command to resume."
        ) from error


def _packed(item: Any) -> tuple[int, Any]:
    """Arrays instead of tensors, which would use shared memory: containers often have only 64 MB of it."""
    place, prepared = item
    return place, prepared.numpy() if isinstance(prepared, Tensor) else prepared


def _unpacked(prepared: Any) -> Any:
    """Back to tensors in torch's own memory: the alignment of an array can change the last bit of a product."""
    return torch.from_numpy(prepared).clone() if isinstance(prepared, np.ndarray) else prepared


def _ignore_interrupts(worker: int) -> None:
    """Ctrl-C is handled by the main process, which stops its workers; their tracebacks would hide its message."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


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
    workers: int = 0
    at_random: bool = False
    alone: bool = False
    _open: dict[int, Block] = field(default_factory=dict)  # latest last

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
        for _ in range(WARM_UP if self.alone else 0):  # the time of the first sample must not include a cold start
            backbone.encode_images(torch.zeros(self.source.settings.n, 3, *backbone.image_size))
        encoded = _encoded(self.source.stream(self.places(blocks), self.workers, at_once), at_once, backbone)
        for block in blocks:
            places = self.places([block])
            rows, spent = [], []
            for row, milliseconds in itertools.islice(encoded, len(places)):
                rows.append(row)
                spent.append(milliseconds)
                advance(1)
            errors = {place: row for place, row in zip(places, rows, strict=True) if isinstance(row, str)}
            shape = next((row.shape for row in rows if isinstance(row, Tensor)), (self.source.settings.n, 0))
            blank = torch.zeros(shape, dtype=torch.float16)
            features = torch.stack([blank if isinstance(row, str) else row for row in rows])
            metadata = {"ids": json.dumps(self._ids(block)), "errors": json.dumps(errors)}
            metadata |= self.binding(block).metadata()
            tensors = {"features": features, "encoding": torch.tensor(spent)}
            write_tensors(self.folder / file_name(block), tensors, metadata)

    def read(self, places: Iterable[int]) -> Chunk:
        """The samples at `places`, in newly allocated memory: the layout of the files must not affect results."""
        good, rows, errors, spent = [], [], {}, []
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
        try:
            found = self._open.pop(block, None) or self._load(block)
        except (DamagedFile, FileNotFoundError) as error:  # another process may have just set it aside
            if isinstance(error, DamagedFile):
                put_aside(error)
            self.fill([block])
            found = self._load(block)
        while self._open and (len(self._open) + 1) * found[0].nbytes > (_KEPT if self.at_random else 0):
            del self._open[next(iter(self._open))]
        self._open[block] = found
        return found

    def _load(self, block: int) -> Block:
        file, ids = self.folder / file_name(block), self._ids(block)
        tensors, metadata = read_bound(file, self.binding(block), framework="pt")
        try:
            shape = (len(ids), self.source.settings.n)
            if json.loads(metadata["ids"]) != ids or tensors["features"].shape[:2] != shape:
                raise ValueError("it has other samples or views")
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


def _encoded(stream: Iterator[Views], size: int, backbone: Backbone) -> Iterator[tuple[Tensor | str, float]]:
    """Features or error of each sample, `size` per pass, and the host's milliseconds of encoding it.

    With several samples per pass, a GPU starts the next pass while the host reads the results of this one.
    """
    begun: deque[tuple[list[Views], Callable[[], tuple[Tensor, ...]], float]] = deque()
    while (some := list(itertools.islice(stream, size))) or begun:
        start = time.perf_counter()
        if some:
            fetch = _begin(some, size, backbone)
            begun.append((some, fetch, time.perf_counter() - start))
        if some and size > 1 and len(begun) == 1:
            continue
        start = time.perf_counter()
        samples, fetch, before = begun.popleft()
        features = iter(fetch())
        spent = 1000 * (before + time.perf_counter() - start) / len(samples)
        for views in samples:
            if isinstance(views, str):
                yield views, spent
            elif bool(torch.isfinite(row := next(features)).all()):
                yield row.half(), spent
            else:
                yield f"its features are not finite in {backbone.precision}; use precision='float32'.", spent


def _begin(some: Sequence[Views], size: int, backbone: Backbone) -> Callable[[], tuple[Tensor, ...]]:
    """Start encoding one pass; returns a function that fetches the features of its good samples."""
    pixels = [views for views in some if not isinstance(views, str)]
    if not pixels:
        return tuple
    # Always the same number, so that rounding does not depend on whether other samples could be read.
    pixels += pixels[-1:] * (size - len(pixels))
    whole = pixels[0] if size == 1 else torch.cat(pixels)
    at_once = None if size == 1 else len(whole)
    return to_host(*backbone.encode_images(whole, batch_size=at_once).split(len(pixels[0])))
