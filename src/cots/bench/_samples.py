"""Lists of samples in files: the driver of a cluster holds none of them, and its workers read those that they need."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from .._errors import CotsError
from ..data import Dataset, Sample, open_dataset
from ..data._dataset import TarSlice
from ._files import copy_whole, read_part
from ._loader import no_fork_warning
from ._paths import Location

FOLDER = "samples"  # in the run folder, as long as workers read from it
PIECE = 64  # samples that are read together: those of a shard, as a rule
_AT_ONCE = 16  # pieces that are read together by who wants them all
_HEAD = 16


class SampleFile(Sequence[Sample]):
    """Samples in a file: how many there are and where the table begins, one a line in JSON, the table of lines.

    The table says where every 64th line begins. Of the samples only the piece that was read last is held.
    """

    def __init__(self, place: Location) -> None:
        self.place = place
        self._piece: tuple[int, list[Sample]] = -1, []

    def __reduce__(self) -> tuple[Any, ...]:
        return SampleFile, (self.place,)

    @cached_property
    def _head(self) -> tuple[int, int]:
        count, table = array("Q", read_part(self.place, 0, _HEAD))
        return count, table

    @cached_property
    def _starts(self) -> array[int]:
        count, table = self._head
        return array("Q", read_part(self.place, table, table + 8 * -(-count // PIECE)) + table.to_bytes(8, "little"))

    def __len__(self) -> int:
        return self._head[0]

    def __getitem__(self, index: int) -> Sample:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        number, piece = self._piece
        if number != index // PIECE:
            number = index // PIECE
            piece = list(self._read(number, number + 1))
            self._piece = number, piece
        return piece[index % PIECE]

    def __iter__(self) -> Iterator[Sample]:
        last = len(self._starts) - 1
        for number in range(0, last, _AT_ONCE):
            yield from self._read(number, min(number + _AT_ONCE, last))

    def _read(self, first: int, last: int) -> Iterator[Sample]:
        for line in read_part(self.place, self._starts[first], self._starts[last]).splitlines():
            name, label, source = json.loads(line)
            yield Sample(name, label, source if isinstance(source, str) else TarSlice(*source))


def write_samples(samples: Iterable[Sample], file: str) -> None:
    """Write what `SampleFile` reads; TypeError for samples of another kind."""
    starts, count, place = array("Q"), 0, _HEAD
    with open(file, "wb") as target:
        target.write(bytes(_HEAD))
        for sample in samples:
            if type(sample) is not Sample or not isinstance(sample.source, (str, TarSlice)):
                raise TypeError(f"{sample!r} has no form in a file")
            if count % PIECE == 0:
                starts.append(place)
            place += target.write(json.dumps([sample.id, sample.label, sample.source]).encode() + b"\n")
            count += 1
        target.write(starts.tobytes())
        target.seek(0)
        target.write(array("Q", [count, place]).tobytes())


def list_dataset(spec: str | Path, root: str | Path | None, classes_file: str | Path | None) -> Dataset:
    """`open_dataset` by a process that lives just so long, and leaves the samples in a file of this machine."""
    samples = _temporary()
    if "fork" not in multiprocessing.get_all_start_methods():
        rest = _list(str(samples.place), spec, root, classes_file)
    else:
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
            with no_fork_warning():
                answer = pool.submit(_list, str(samples.place), spec, root, classes_file)
            try:
                rest = answer.result()
            except BrokenProcessPool as error:
                raise CotsError(f"The process that lists {spec} died; free some memory and try again.") from error
    return replace(rest, samples=samples)


def publish(dataset: Dataset, place: Location) -> Dataset:
    """`dataset` with its samples in the file `place`, so that it can be sent to any machine that sees it."""
    samples = dataset.samples
    if not isinstance(samples, SampleFile):
        samples = _temporary()
        try:
            write_samples(dataset.samples, str(samples.place))
        except TypeError:
            return dataset  # a caller's own kind of sample, which is sent as it is
    copy_whole(str(samples.place), place)
    return replace(dataset, samples=SampleFile(place))


def _list(file: str, spec: Any, root: Any, classes_file: Any) -> Dataset:
    dataset = open_dataset(spec, root=root, classes_file=classes_file)
    write_samples(dataset.samples, file)
    return replace(dataset, samples=())


def _temporary() -> SampleFile:
    """A file that goes with the object, or with this process."""
    descriptor, name = tempfile.mkstemp(prefix="cots-samples-")
    os.close(descriptor)
    made = SampleFile(Path(name))
    weakref.finalize(made, _remove, name, os.getpid())
    return made


def _remove(name: str, process: int) -> None:
    if os.getpid() == process:  # not the copy in a fork
        with contextlib.suppress(OSError):
            os.unlink(name)
