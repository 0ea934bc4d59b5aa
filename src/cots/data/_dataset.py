"""Sample, Protocol and Dataset: an ordered list of labelled images, in files or inside tar files."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from torch import Tensor

from .._errors import InputError, whole_number
from ..adapters import ADAPTERS
from ..prompts import DEFAULT_TEMPLATE


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One of the paper's test sets: its layout on disk, the size of a complete copy, and its fixed settings.

    aliases: other names, the short id in published code first. folder: below the data folder. images: folders that may
    contain the images, relative to `folder`; the first that exists is used. split: CoOp's split_zhou_*.json. synsets:
    the list of synsets that name the class folders. (Aircraft has neither, but its own lists.) average: the group of
    datasets that the paper averages over. column: selects the regulariser weights; ImageNet belongs to the fine-grained
    average but to the imagenet column. published_swap: two labels whose names published code swaps.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    folder: str
    images: tuple[str, ...]
    split: str | None = None
    synsets: str | None = None
    classes: int
    test_size: int
    average: Literal["fine-grained", "variants"]
    column: Literal["fine-grained", "imagenet"]
    augmix: bool
    views: int = 64
    template: str = DEFAULT_TEMPLATE
    published_swap: tuple[int, int] | None = None

    def settings(self, adapter: str) -> dict[str, Any]:
        """The settings of `adapter` that this protocol fixes, if any."""
        info = ADAPTERS.info(adapter)
        return {**info.datasets.get(self.name, {})} | ({"weight": info.weights[self.column]} if info.weights else {})


class TarSlice(NamedTuple):
    """The position of one file inside a tar file."""

    file: str
    offset: int
    size: int

    def read(self) -> bytes:
        try:
            with open(self.file, "rb") as file:
                file.seek(self.offset)
                data = file.read(self.size)
        except OSError as error:
            raise InputError(f"tar file {self.file!r} cannot be read ({error.strerror or error}).") from error
        if len(data) < self.size:
            raise InputError(f"tar file {self.file!r} has become shorter; open the dataset again.")
        return data


@dataclass(frozen=True, slots=True)
class Sample:
    """One labelled image: an id that is the same on every machine, the index of its class, and its source."""

    id: str
    label: int
    source: str | TarSlice = field(repr=False)


@dataclass(frozen=True, eq=False)
class ViewFeatures:
    """View features (N,V,D) of all samples; text (K,D) and logit_scale, both or neither, replace a model.

    sha256: of the file.
    """

    values: Tensor = field(repr=False)
    text: Tensor | None = field(repr=False)
    logit_scale: float | None
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Labelled images in a fixed order, with the names of their classes.

    The order of `samples` is part of the data, because online methods depend on it. A Dataset has no open files and can
    be pickled for workers. where: the folder, list or pattern it was opened from. names_from: the source of the class
    names. features: view features in place of images.
    """

    name: str
    title: str
    classes: tuple[str, ...] = field(repr=False)
    samples: Sequence[Sample] = field(repr=False)
    protocol: Protocol | None = field(default=None, repr=False)
    where: str = ""
    names_from: str = field(default="", repr=False)
    features: ViewFeatures | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.samples)

    @cached_property
    def split_hash(self) -> str:
        """SHA-256 of the class names and of every (id, label) in order; equal hashes mean the same test set."""
        digest = hashlib.sha256(json.dumps(self.classes).encode())
        for sample in self.samples:
            digest.update(json.dumps((sample.id, sample.label)).encode())
        return digest.hexdigest()

    @cached_property
    def class_counts(self) -> tuple[int, ...]:
        """Number of samples per class."""
        counts = Counter(sample.label for sample in self.samples)
        return tuple(counts[label] for label in range(len(self.classes)))

    def with_published_names(self) -> Self:
        """The dataset with the class names of published code, which swaps two names of Food101."""
        if self.protocol is None or self.protocol.published_swap is None:
            return self
        first, second = self.protocol.published_swap
        names = list(self.classes)
        names[first], names[second] = names[second], names[first]
        return replace(self, classes=tuple(names))

    def read(self, index: int) -> Path | bytes:
        """The source of sample `index` for `cots.read_image`: the path of its file, or its bytes from a tar file."""
        if self.features is not None:
            raise InputError(f"{self.where} has view features instead of images; only cots run can use it.")
        source = self.samples[index].source
        return Path(source) if isinstance(source, str) else source.read()

    def spread(self, count: int) -> tuple[int, ...]:
        """Indices of `count` evenly spaced samples; lists are often sorted by class."""
        count = min(whole_number("count", count, 1), len(self))
        return tuple(place * len(self) // count for place in range(count))
