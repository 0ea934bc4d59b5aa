"""The views of samples in order, read here, in threads or by worker processes: the same pixels whichever."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data import Dataset as TorchDataset

from .._errors import CotsError
from ..data import Dataset
from ..views import (
    MAX_SENT_PIXELS,
    Prepared,
    Renderer,
    ViewSettings,
    draw_plan,
    in_threads,
    prepare,
    read_image,
    render_views,
    sample_seed,
)

_AHEAD = 2  # samples that each worker prepares in advance
_PROBES = 64  # samples that are tried before the data as a whole counts as gone


@dataclass(frozen=True, kw_only=True)
class Views:
    """The views `(V,3,H,W)` of one sample, or the reason why it has none; milliseconds to read and make them."""

    place: int
    pixels: Tensor | None
    error: str | None
    milliseconds: float


class ViewSource(TorchDataset):
    """Views by place among the samples of a run; each depends on (run seed, dataset, sample id) and nothing else.

    device: where torch renders them; without one PIL does, and workers share in it.
    """

    def __init__(
        self,
        dataset: Dataset,
        indices: Sequence[int],
        settings: ViewSettings,
        seed: int,
        device: torch.device | None = None,
    ) -> None:
        self.dataset, self.indices, self.settings, self.seed = dataset, indices, settings, seed
        self.device = device
        self.as_array = False
        self._good: int | None = None  # a sample that could be read

    def __getitem__(self, place: int) -> tuple[int, Any, str | None, float]:
        start = time.perf_counter()
        pixels, error = None, None
        index = self.indices[place]
        try:
            # Published figures were made from pixels as stored: neither turned by EXIF nor put on white.
            image = read_image(self.dataset.read(index), orient=False, flatten=False)
            seed = sample_seed(self.seed, self.dataset.name, self.dataset.samples[index].id)
            plan = draw_plan((image.height, image.width), self.settings, seed)
            if self.device is None:
                pixels = render_views(image, plan, self.settings)
            else:
                # A worker process must not touch the GPU, not even for memory that a GPU copies from.
                pin = self.device.type == "cuda" and get_worker_info() is None
                pixels = prepare(image, plan, self.settings, pin=pin)
        except (CotsError, OSError) as problem:
            error = str(problem)
        if pixels is not None and self.as_array:
            pixels = pixels.numpy() if isinstance(pixels, Tensor) else replace(pixels, buffer=pixels.buffer.numpy())
        return place, pixels, error, 1000 * (time.perf_counter() - start)

    def stream(self, places: Sequence[int], workers: int, at_once: int = 1) -> Iterator[Views]:
        """The views of `places`, in that order; torch renders those of `at_once` samples together."""
        render = None if self.device is None else Renderer(self.settings, self.device)
        items = self._items(places, workers)
        while some := list(itertools.islice(items, at_once)):
            for views in _views(some, render):
                if views.error is None:
                    self._good = views.place
                else:
                    self._check_data(views.error)
                yield views

    def _check_data(self, error: str) -> None:
        """Stop if no other sample can be read either: a disk that went away must not become a list of broken images."""
        first = range(min(_PROBES, len(self.indices)))
        for place in first if self._good is None else (self._good, *first):
            try:
                read_image(self.dataset.read(self.indices[place]), orient=False, flatten=False)
            except (CotsError, OSError):
                continue
            self._good = place
            return
        raise CotsError(
            f"{error} Nor can the first {len(first)} images of {self.dataset.title} be read. Check that the data is "
            "still where it was, then give the same command again: it goes on where it stopped."
        )

    def _items(self, places: Sequence[int], workers: int) -> Iterator[Any]:
        if not workers:
            # While the GPU renders and encodes, threads read ahead; a CPU has no hands free.
            yield from (
                (self[place] for place in places) if self.device is None else in_threads(self.__getitem__, places)
            )
            return
        self.as_array = not self._fits_shared_memory(workers)
        loader: DataLoader[Any] = DataLoader(
            self,
            batch_size=None,
            sampler=places,
            num_workers=min(workers, len(places)),
            collate_fn=_as_it_is,
            prefetch_factor=_AHEAD,
            worker_init_fn=_ignore_interrupts,
            generator=torch.Generator(),  # else it would draw from the caller's random numbers
        )
        try:
            with no_fork_warning():
                items = iter(loader)
            yield from items
        except (RuntimeError, ConnectionError, EOFError) as error:
            if (death := worker_died(error)) is None:
                raise
            raise death from error

    def _fits_shared_memory(self, workers: int) -> bool:
        """Containers often have 64 MB of it, and a worker that finds it full dies of a bus error."""
        height, width = self.settings.shape
        item = 4 * 3 * height * width * self.settings.n
        if self.device is not None:
            item = max(item, 3 * MAX_SENT_PIXELS)
        need = item * workers * (_AHEAD + 1)
        try:
            found = os.statvfs("/dev/shm")
        except (OSError, AttributeError):
            return True
        return found.f_bavail * found.f_frsize > 1.5 * need


def _views(items: Sequence[tuple[int, Any, str | None, float]], render: Renderer | None) -> Iterator[Views]:
    """What __getitem__ gave for some samples, rendered where that is still to be done."""
    made = [_tensor(pixels) for _, pixels, _, _ in items]
    if render is not None:
        rendered = iter(render.many([one for one in made if isinstance(one, Prepared)]))
        made = [next(rendered) if isinstance(one, Prepared) else one for one in made]
    for (place, _, error, milliseconds), pixels in zip(items, made, strict=True):
        yield Views(place=place, pixels=pixels, error=error, milliseconds=milliseconds)


def _tensor(pixels: Any) -> Any:
    """From shared memory or an array to torch's own: how an array is aligned can change the last bit of a product."""
    if isinstance(pixels, Prepared) and not isinstance(pixels.buffer, Tensor):
        return replace(pixels, buffer=torch.from_numpy(pixels.buffer).clone())
    if pixels is None or isinstance(pixels, Tensor | Prepared):
        return pixels
    return torch.from_numpy(pixels).clone()


def worker_died(error: Exception) -> CotsError | None:
    """What to tell the user if `error` came from the death of a worker, which is noticed in several ways."""
    if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
        return None
    return CotsError(
        f"A process that makes views died ({error}). Lower workers or free some memory, then give the same command "
        "again: it goes on where it stopped."
    )


def _as_it_is(item: Any) -> Any:
    return item


def _ignore_interrupts(worker: int) -> None:
    """Ctrl-C reaches the main process, which ends its workers; their own tracebacks would hide its message."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def no_fork_warning() -> Iterator[None]:
    """Python 3.12 warns of every fork of a process with threads; workers only decode and draw."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
        yield
