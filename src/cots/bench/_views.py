"""Views of a run's samples, made in this process or by worker processes, with the same pixels."""

import contextlib
import itertools
import signal
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from .._errors import CotsError
from ..data import Dataset
from ..views import Prepared, ViewMaker, ViewSettings, corrupt, in_threads, read_image, sample_seed

_AHEAD = 2  # samples prepared ahead per worker
_PROBES = 64  # samples tried before the dataset counts as unreadable


class Views(NamedTuple):
    """The views `(V,3,H,W)` of one sample, or its error."""

    pixels: Tensor | None
    error: str | None


@dataclass(eq=False)
class ViewSource(TorchDataset):
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
            about = (self.seed, self.dataset.name, self.id(place))
            image = self._image(place)
            if self.corrupt is not None:
                image = corrupt(image, self.corrupt, sample_seed(*about, "corruption"))
            return place, self.maker.prepare(image, sample_seed(*about)), None
        except (CotsError, OSError) as error:
            return place, None, str(error)

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


def _packed(item: Any) -> tuple[int, Any, str | None]:
    """Arrays instead of tensors, which would use shared memory: containers often have only 64 MB of it."""
    place, prepared, error = item
    if isinstance(prepared, Prepared):
        prepared = replace(prepared, buffer=prepared.buffer.numpy())  # type: ignore[arg-type]
    return place, prepared.numpy() if isinstance(prepared, Tensor) else prepared, error


def _unpacked(prepared: Any) -> Prepared | Tensor:
    """Back to tensors in torch's own memory: the alignment of an array can change the last bit of a product."""
    if isinstance(prepared, Prepared) and isinstance(prepared.buffer, np.ndarray):
        return replace(prepared, buffer=torch.from_numpy(prepared.buffer).clone())
    return torch.from_numpy(prepared).clone() if isinstance(prepared, np.ndarray) else prepared


def _ignore_interrupts(worker: int) -> None:
    """Ctrl-C is handled by the main process, which stops its workers; their tracebacks would hide its message."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
