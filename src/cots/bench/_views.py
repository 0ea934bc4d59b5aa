"""Views of a run's samples, made in this process or by worker processes."""

import contextlib
import itertools
import signal
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from .._errors import CotsError
from ..data import Dataset
from ..photos import batches, in_threads
from ..views import ViewMaker, ViewSettings, corrupt, read_image, sample_seed

_PROBES = 64  # samples tried before the dataset counts as unreadable


@dataclass(frozen=True)
class SampleInput:
    """The views (V,3,H,W) or features (V,D) of a sample, or its error; milliseconds of encoding, if known."""

    values: Tensor | None = None
    error: str = ""
    milliseconds: float = float("nan")


@dataclass(eq=False, kw_only=True)
class ViewSource:
    """Views by position among a run's samples; they depend only on (run seed, dataset, sample id)."""

    dataset: Dataset
    indices: Sequence[int]
    seed: int
    settings: ViewSettings
    device: torch.device
    renderer: str
    corrupt: str | None = None
    workers: int = 0
    _readable: list[int] = field(default_factory=list)  # a position that could be read

    @cached_property
    def maker(self) -> ViewMaker:
        """Created on first use, because the driver of a GPU cluster may have no GPU."""
        return ViewMaker(self.settings, self.device, self.renderer)

    def id(self, position: int) -> str:
        return self.dataset.samples[self.indices[position]].id

    def stream(self, positions: Sequence[int], at_once: int = 1) -> Iterator[SampleInput]:
        """The views of `positions`, in that order, rendered `at_once` samples at a time."""
        for group in batches(self._read_all(positions), at_once):
            prepared = [_to_tensor(item) for _, item in group if not isinstance(item, str)]
            rendered = iter(self.maker.render(prepared) if prepared else ())
            for position, item in group:
                if isinstance(item, str):
                    self._check_data(item)
                    yield SampleInput(error=item)
                else:
                    self._readable = [position]
                    yield SampleInput(next(rendered))

    def _read_all(self, positions: Sequence[int]) -> Iterable[tuple[int, Any]]:
        if self.workers:
            return self._from_workers(positions)
        if self.maker.renderer == "pil":
            return map(self.__getitem__, positions)
        # Threads read ahead while a GPU renders; on a CPU they would compete with the encoder.
        return in_threads(self.__getitem__, positions)

    def __getitem__(self, position: int) -> tuple[int, Any]:
        """The position and what the renderer needs, or an error as text."""
        try:
            source = (self.seed, self.dataset.name, self.id(position))
            image = self._image(position)
            if self.corrupt is not None:
                image = corrupt(image, self.corrupt, sample_seed(*source, "corruption"))
            return position, self.maker.prepare(image, sample_seed(*source))
        except (CotsError, OSError) as error:
            return position, str(error)

    def _image(self, position: int) -> Any:
        # Published figures were made from pixels as stored: not rotated by EXIF, not flattened onto white.
        return read_image(self.dataset.read(self.indices[position]), orient=False, flatten=False)

    def _check_data(self, error: str) -> None:
        """Stop if no other sample can be read either: a lost disk must not become thousands of error records."""
        first = range(min(_PROBES, len(self.indices)))
        for position in itertools.chain(self._readable, first):
            with contextlib.suppress(CotsError, OSError):
                self._image(position)
                self._readable = [position]
                return
        raise CotsError(
            f"{error} The first {len(first)} images of {self.dataset.title} cannot be read either. Check that the data "
            "is still in place, then re-run the same command to resume."
        )

    def _from_workers(self, positions: Sequence[int]) -> Iterator[Any]:
        loader: DataLoader[Any] = DataLoader(
            self,  # type: ignore[arg-type]
            batch_size=None,
            sampler=positions,
            num_workers=min(self.workers, len(positions)),
            collate_fn=_to_array,  # type: ignore[arg-type]
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


def _to_array(item: tuple[int, Any]) -> tuple[int, Any]:
    """Arrays instead of tensors, which would use shared memory: containers often have only 64 MB of it."""
    position, prepared = item
    return position, prepared.numpy() if isinstance(prepared, Tensor) else prepared


def _to_tensor(prepared: Any) -> Any:
    """Back to tensors in torch's own memory: the alignment of an array can change the last bit of a product."""
    return torch.from_numpy(prepared).clone() if isinstance(prepared, np.ndarray) else prepared


def _ignore_interrupts(worker: int) -> None:
    """Ctrl-C is handled by the main process, which stops its workers; their tracebacks would hide its message."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
