"""Views of samples, made here or by worker processes with the same pixels, and their features, encoded once."""

import contextlib
import hashlib
import itertools
import json
import signal
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from .._arrays import to_host
from .._checked import DamagedFile, read_tensors, write_tensors
from .._errors import CotsError
from .._files import Location
from ..backbones import Backbone
from ..data import Dataset
from ..views import Prepared, ViewMaker, ViewSettings, in_threads, read_image, sample_seed
from ._shards import REMAKE, file_name, present, put_aside

BLOCK = 64  # samples per file, whatever the run's batches and shards: runs that differ in them share a cache
_AHEAD = 2  # samples that each worker prepares in advance
_PROBES = 64  # samples tried before the whole dataset counts as unreadable


class Views(NamedTuple):
    """The views `(V,3,H,W)` of one sample, or the reason why it has none."""

    pixels: Tensor | None
    error: str | None


@dataclass(eq=False)
class ViewSource(TorchDataset):
    """Views by position among a run's samples; they depend on (run seed, dataset, sample id) and nothing else."""

    dataset: Dataset
    indices: Sequence[int]
    seed: int
    settings: ViewSettings
    device: torch.device
    renderer: str
    _readable: int | None = None  # a position that could be read

    @cached_property
    def maker(self) -> ViewMaker:
        """Made on first use: the driver of a GPU cluster counts samples but may have no GPU."""
        return ViewMaker(self.settings, self.device, self.renderer)

    def id(self, place: int) -> str:
        return self.dataset.samples[self.indices[place]].id

    def stream(self, places: Sequence[int], workers: int, at_once: int = 1) -> Iterator[Views]:
        """The views of `places`, in that order, rendered `at_once` samples at a time."""
        if workers:
            items = self._from_workers(places, workers)
        elif self.maker.renderer == "pil":
            items = map(self.__getitem__, places)
        else:  # threads read ahead while a GPU renders; on a CPU they would only compete with the encoder
            items = in_threads(self.__getitem__, places)
        while some := list(itertools.islice(items, at_once)):
            prepared = [_unpacked(item) for _, item, _ in some if item is not None]
            rendered = iter(self.maker.render(prepared)) if prepared else iter(())
            for place, _, error in some:
                if error is None:
                    self._readable = place
                    yield Views(next(rendered), None)
                else:
                    self._check_data(error)
                    yield Views(None, error)

    def __getitem__(self, place: int) -> tuple[int, Prepared | Tensor | None, str | None]:
        try:
            seed = sample_seed(self.seed, self.dataset.name, self.id(place))
            return place, self.maker.prepare(self._image(place), seed), None
        except (CotsError, OSError) as error:
            return place, None, str(error)

    def _image(self, place: int) -> Any:
        # Published figures were made from pixels as stored: not rotated by EXIF, not flattened onto white.
        return read_image(self.dataset.read(self.indices[place]), orient=False, flatten=False)

    def _check_data(self, error: str) -> None:
        """Stop if no other sample can be read either: a lost disk must not become a list of broken images."""
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
            self,
            batch_size=None,
            sampler=places,
            num_workers=min(workers, len(places)),
            collate_fn=_packed,
            prefetch_factor=_AHEAD,
            worker_init_fn=_ignore_interrupts,
            generator=torch.Generator(),  # leaves the caller's random numbers alone
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of every fork of a process with threads; workers only decode and draw.
            warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
            items = iter(loader)
        with naming_worker_deaths(RuntimeError, ConnectionError, EOFError):
            yield from items


@contextlib.contextmanager
def naming_worker_deaths(*kinds: type[Exception]) -> Iterator[None]:
    """Explain the death of a worker process, which torch raises as one of `kinds`.

    A RuntimeError comes from a signal handler: wherever the main process happens to be.
    """
    try:
        yield
    except kinds as error:
        if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
            raise
        raise CotsError(
            f"A process that makes views died ({error}). Lower workers or free some memory, then re-run the same "
            "command to resume."
        ) from error


def _packed(item: Any) -> tuple[int, Any, str | None]:
    """Arrays instead of tensors, which would travel through shared memory: containers often have 64 MB of it."""
    place, prepared, error = item
    if isinstance(prepared, Prepared):
        prepared = replace(prepared, buffer=prepared.buffer.numpy())  # type: ignore[arg-type]
    return place, prepared.numpy() if isinstance(prepared, Tensor) else prepared, error


def _unpacked(prepared: Any) -> Prepared | Tensor:
    """Back to tensors, in torch's own memory: the alignment of an array can change the last bit of a product."""
    if isinstance(prepared, Prepared) and isinstance(prepared.buffer, np.ndarray):
        return replace(prepared, buffer=torch.from_numpy(prepared.buffer).clone())
    return torch.from_numpy(prepared).clone() if isinstance(prepared, np.ndarray) else prepared


def _ignore_interrupts(worker: int) -> None:
    """Ctrl-C reaches the main process, which ends its workers; their own tracebacks would hide its message."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class FeatureCache:
    """View features `(n,V,D)` in half precision of the samples of one (model, dataset, seed), in files of 64 samples.

    Samples are encoded alone, or on a GPU in passes of a fixed size: features depend on nothing but the sample itself.
    A damaged file is set aside and made again when it is read.
    """

    def __init__(self, folder: Location, source: ViewSource, backbone: Backbone, workers: int = 0) -> None:
        self.folder, self.source, self.backbone, self.workers = folder, source, backbone, workers
        self._open: tuple[int, Tensor, dict[int, str]] | None = None

    def missing(self, places: Iterable[int]) -> list[int]:
        """The blocks that contain `places` and do not exist yet."""
        return sorted({place // BLOCK for place in places} - present(self.folder))

    def places(self, blocks: Iterable[int]) -> list[int]:
        """The positions of the samples in `blocks`."""
        n = len(self.source.indices)
        return [place for block in blocks for place in range(block * BLOCK, min((block + 1) * BLOCK, n))]

    def fill(self, blocks: Sequence[int], advance: Callable[[int], object] = lambda count: None) -> None:
        """Encode and write `blocks`; `advance` is called with 1 after every sample."""
        backbone = self.backbone
        at_once = backbone.samples_at_once(self.source.settings.n) if backbone.device.type == "cuda" else 1
        encoded = _encoded(self.source.stream(self.places(blocks), self.workers, at_once), at_once, backbone)
        for block in blocks:
            rows: list[Tensor | None] = []
            errors: dict[int, str] = {}
            milliseconds: list[float] = []
            for place in self.places([block]):
                start = time.perf_counter()
                features, error = next(encoded)
                rows.append(features)
                if error is not None:
                    errors[place] = error
                milliseconds.append(1000 * (time.perf_counter() - start))
                advance(1)
            shape = next((row.shape for row in rows if row is not None), (self.source.settings.n, 0))
            blank = torch.zeros(shape, dtype=torch.float16)
            tensors = {"features": torch.stack([blank if row is None else row for row in rows])}
            tensors["milliseconds"] = torch.tensor(milliseconds)
            metadata = {"ids": json.dumps(self._ids(block)), "errors": json.dumps(errors)}
            write_tensors(self.folder / file_name(block), tensors, metadata)

    def read(self, places: Iterable[int]) -> tuple[list[int], Tensor | None, dict[int, str]]:
        """Positions and features of those of `places` that could be encoded, and the reason for each of the others.

        The features are float32 in memory of their own, so that nothing about the files reaches the results.
        """
        rows: list[Tensor] = []
        good: list[int] = []
        errors: dict[int, str] = {}
        for place in places:
            features, failed = self._block(place // BLOCK)
            if place in failed:
                errors[place] = failed[place]
            else:
                good.append(place)
                rows.append(features[place % BLOCK])
        return good, torch.stack(rows).float() if rows else None, errors

    def _ids(self, block: int) -> list[str]:
        return [self.source.id(place) for place in self.places([block])]

    def _block(self, block: int) -> tuple[Tensor, dict[int, str]]:
        if self._open is None or self._open[0] != block:
            try:
                self._open = block, *self._load(block)
            except (DamagedFile, FileNotFoundError) as error:  # or another process has just set it aside
                if isinstance(error, DamagedFile):
                    put_aside(error)
                self.fill([block])
                self._open = block, *self._load(block)
        return self._open[1:]

    def _load(self, block: int) -> tuple[Tensor, dict[int, str]]:
        file, ids = self.folder / file_name(block), self._ids(block)
        tensors, metadata = read_tensors(file, ["features"], "pt", remedy=REMAKE)
        try:
            if json.loads(metadata["ids"]) != ids or len(tensors["features"]) != len(ids):
                raise ValueError("it has other samples")
            return tensors["features"], {int(place): str(t) for place, t in json.loads(metadata["errors"]).items()}
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedFile(file, str(error), REMAKE) from error


def _encoded(stream: Iterator[Views], size: int, backbone: Backbone) -> Iterator[tuple[Tensor | None, str | None]]:
    """Features or error of each sample, `size` per pass; a GPU starts the next pass while the host takes this one."""
    ahead = 1 if backbone.device.type == "cuda" else 0
    begun: deque[tuple[list[Views], Callable[[], tuple[Tensor, ...]]]] = deque()
    while (some := list(itertools.islice(stream, size))) or begun:
        if some:
            begun.append((some, _begin(some, size, backbone)))
        if some and len(begun) <= ahead:
            continue
        samples, fetch = begun.popleft()
        features = iter(fetch())
        for views in samples:
            if views.pixels is None:
                yield None, views.error
            elif bool(torch.isfinite(row := next(features)).all()):
                yield row.half(), None
            else:
                yield None, f"its features are not finite in {backbone.precision}; use precision='float32'."


def _begin(some: Sequence[Views], size: int, backbone: Backbone) -> Callable[[], tuple[Tensor, ...]]:
    """Start to encode one pass; a function that fetches the features of its good samples."""
    pixels = [views.pixels for views in some if views.pixels is not None]
    if not pixels:
        return tuple
    # Always the same number, so that no sample's rounding depends on whether its neighbours could be read.
    pixels += pixels[-1:] * (size - len(pixels))
    whole = pixels[0] if size == 1 else torch.cat(pixels)
    at_once = None if size == 1 else len(whole)
    return to_host(*backbone.encode_images(whole, batch_size=at_once).split(len(pixels[0])))


def cache_key(
    dataset: Dataset, settings: ViewSettings, backbone: Backbone, limit: int | None, device: str, renderer: str
) -> str:
    """The name of a dataset's features under a model: equal keys mean equal features, up to the machine's rounding."""
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
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
