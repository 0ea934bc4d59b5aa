"""Sample and Dataset: an ordered list of labelled images, wherever their bytes lie."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from .._errors import InputError
from ._protocols import Protocol


class TarSlice(NamedTuple):
    """Where the bytes of one file lie inside a tar file."""

    file: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One labelled image: an id that stays the same on every machine, the class's index, and where its bytes are.

    >>> Sample("cats/1.jpg", 3, "/data/cats/1.jpg").id
    'cats/1.jpg'
    """

    id: str
    label: int
    source: str | TarSlice = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Labelled images in a fixed order, with the names of their classes.

    The order of `samples` is part of the data: online methods see them in this order. A Dataset holds no open file and
    can be pickled, so workers can read from it. `where` is the folder, list or pattern it was opened from; `names_from`
    says where the class names come from.

    >>> data = Dataset(name="mine", title="mine", classes=("cat", "dog"), samples=(Sample("a.jpg", 1, "/x/a.jpg"),))
    >>> len(data), data.split_hash[:12]
    (1, 'c367bb6473d0')
    """

    name: str
    title: str
    classes: tuple[str, ...] = field(repr=False)
    samples: Sequence[Sample] = field(repr=False)
    protocol: Protocol | None = field(default=None, repr=False)
    where: str = ""
    names_from: str = field(default="", repr=False)

    def __len__(self) -> int:
        return len(self.samples)

    @cached_property
    def split_hash(self) -> str:
        """SHA-256 of the class names and of every (id, label) in order: equal hashes mean the same test."""
        digest = hashlib.sha256(json.dumps(self.classes).encode())
        for sample in self.samples:
            digest.update(json.dumps((sample.id, sample.label)).encode())
        return digest.hexdigest()

    @cached_property
    def class_counts(self) -> tuple[int, ...]:
        """Number of samples of each class."""
        counts = Counter(sample.label for sample in self.samples)
        return tuple(counts[label] for label in range(len(self.classes)))

    def read(self, index: int) -> Path | bytes:
        """What `cots.read_image` takes for sample `index`: the path of its file, or its bytes out of a tar file."""
        source = self.samples[index].source
        return Path(source) if isinstance(source, str) else read_slice(source)

    def spread(self, count: int) -> tuple[int, ...]:
        """Indices of `count` samples at even distances, for a quick look: lists are often sorted by class.

        >>> data = Dataset(name="x", title="x", classes=("a",), samples=[Sample(str(i), 0, "") for i in range(10)])
        >>> data.spread(4)
        (0, 2, 5, 7)
        """
        if count < 1:
            raise InputError(f"count must be at least 1, not {count}.")
        return tuple(Spread(len(self.samples), min(count, len(self.samples))))


class Spread(Sequence[int]):
    """Indices of `count` of `samples` samples at even distances, computed when they are asked for.

    >>> list(Spread(10, 4))
    [0, 2, 5, 7]
    """

    def __init__(self, samples: int, count: int) -> None:
        self.samples, self.chosen = samples, count

    def __len__(self) -> int:
        return self.chosen

    def __getitem__(self, place: int) -> int:  # type: ignore[override]
        if not 0 <= place < self.chosen:
            raise IndexError(place)
        return place * self.samples // self.chosen


def read_slice(place: TarSlice) -> bytes:
    """The bytes of one file inside a tar file."""
    try:
        with open(place.file, "rb") as file:
            file.seek(place.offset)
            data = file.read(place.size)
    except OSError as error:
        raise InputError(f"tar file {place.file!r} cannot be read ({error.strerror or error}).") from error
    if len(data) < place.size:
        raise InputError(f"tar file {place.file!r} has become shorter since it was opened: open the dataset again.")
    return data
