"""Dataset: an ordered list of labelled images, in files or inside tar files; validate: what to fix in one."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from torch import Tensor

from .._errors import CotsError, InputError, whole_number
from .._folders import shorten
from ..prompts import DEFAULT_TEMPLATE
from ..views import read_image
from ._cells import TableCell
from ._files import BY_SYNSET

_REFRESH = 256  # samples between two calls of `progress`


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One of the paper's test sets: its layout on disk, the size of a complete copy, and its fixed settings.

    aliases: other names, the short id in published code first. folder: below the data folder. images: folders that may
    contain the images, relative to `folder`; the first that exists is used. split: CoOp's split_zhou_*.json. synsets:
    the list of synsets that name the class folders. (Aircraft has neither, but its own lists.) average: the group of
    datasets that the paper averages over. column: selects the regulariser weights; ImageNet belongs to the fine-grained
    average but to the imagenet column. published_swap: two labels whose names published code swaps. by_method: settings
    that methods have only here (settings.toml).
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
    by_method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False, hash=False)

    def settings(self, adapter: str) -> dict[str, Any]:
        """The settings of `adapter` that this protocol fixes, if any; `tda(ctpt)` has those of both."""
        settings: dict[str, Any] = {}
        for name in adapter.removesuffix(")").split("("):
            settings |= self.by_method.get(name, {})
        return settings


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
    source: str | TarSlice | TableCell = field(repr=False)


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
        return tuple(map(counts.__getitem__, range(len(self.classes))))

    def with_published_names(self) -> Self:
        """The dataset with the class names of published code, which swaps two names of Food101."""
        if self.protocol is None or self.protocol.published_swap is None:
            return self
        first, second = self.protocol.published_swap
        names = list(self.classes)
        if len(names) != self.protocol.classes:
            raise InputError(
                f"Published names swap two of the {self.protocol.classes} classes of {self.protocol.title}, but "
                f"{self.where} has {len(names)}. Omit --published-names, or use the published split."
            )
        names[first], names[second] = names[second], names[first]
        return replace(self, classes=tuple(names))

    def read(self, index: int) -> Path | bytes:
        """The source of sample `index` for `cots.read_image`: the path of its file, or its bytes from another file."""
        if self.features is not None:
            raise InputError(f"{self.where} has view features instead of images; only cots run can use it.")
        source = self.samples[index].source
        return Path(source) if isinstance(source, str) else source.read()

    def spread(self, count: int) -> tuple[int, ...]:
        """Indices of `count` evenly spaced samples; lists are often sorted by class."""
        count = min(whole_number("count", count, 1), len(self))
        return tuple(i * len(self) // count for i in range(count))


@dataclass(frozen=True)
class Problem:
    """Something to fix: an "error" makes results wrong or incomplete, a "warning" makes them not comparable."""

    severity: Literal["error", "warning"]
    text: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class ValidationReport:
    """The result of `validate`. `ok` means no errors; `problems` also has warnings, such as an incomplete test set.

    decoded: number of images decoded without an error. missing, broken: ids of samples whose file is missing or cannot
    be decoded.
    """

    dataset: Dataset
    decoded: int
    missing: tuple[str, ...]
    broken: tuple[str, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the dataset is ready to run."""
        return not any(problem.severity == "error" for problem in self.problems)

    def text(self) -> str:
        """The report as text, with every remedy."""
        data, expected = self.dataset, self.dataset.protocol
        low, high = min(data.class_counts), max(data.class_counts)
        images = _count(len(data), expected.test_size if expected else None)
        classes = _count(len(data.classes), expected.classes if expected else None)
        kinds = Counter(problem.severity for problem in self.problems)
        verdict = ", ".join(f"{n} {kind}{'s' if n > 1 else ''}" for kind, n in sorted(kinds.items()))
        if not kinds:
            verdict = "as expected" if expected else "no problems found"
        lines = [
            f"{data.title} ({data.name}): {verdict}",
            f"  from     {data.where}",
            f"  images   {images}, {low if low == high else f'{low} to {high}'} per class",
            f"  classes  {classes}, names from {data.names_from or 'the caller'}",
            f"  decoded  {self.decoded} without an error",
            f"  split    sha256 {data.split_hash}",
        ]
        lines += [f"  note     {note}" for note in self.notes]
        lines += [f"  {p.severity:<8} {p.text}\n{'':11}{p.remedy}" for p in self.problems]
        return "\n".join(lines)


def _count(count: int, expected: int | None) -> str:
    return f"{count}" if expected in (None, count) else f"{count} (expected {expected})"


def validate(
    dataset: Dataset, *, per_class: int | None = 1, progress: Callable[[int, int], None] | None = None
) -> ValidationReport:
    """Check counts, classes, files and names of `dataset`; decode `per_class` images of each class (None: all).

    `progress(done, total)` is called every few hundred samples. A bad file becomes a line of the report, never an
    exception.
    """
    if per_class is not None:
        whole_number("per_class", per_class)
    most = len(dataset) if per_class is None else per_class
    left = Counter(dict.fromkeys(range(len(dataset.classes)), most))
    missing: list[str] = []
    broken: dict[str, str] = {}
    decoded = 0
    for index, sample in enumerate(dataset.samples if dataset.features is None else ()):  # checked when opened
        if progress is not None and index % _REFRESH == 0:
            progress(index, len(dataset))
        source = sample.source
        if isinstance(source, str) and not os.path.exists(source):
            missing.append(sample.id)
        elif isinstance(source, str) and os.path.isfile(source) and os.path.getsize(source) == 0:
            broken[sample.id] = "the file is empty (0 bytes). Download it again."
        elif left[sample.label] > 0:
            left[sample.label] -= 1
            try:
                read_image(dataset.read(index), orient=False, flatten=False)
                decoded += 1
            except CotsError as error:
                broken[sample.id] = str(error)
    if progress is not None:
        progress(len(dataset), len(dataset))
    return ValidationReport(
        dataset=dataset,
        decoded=decoded,
        missing=tuple(missing),
        broken=tuple(broken),
        problems=(*_count_problems(dataset), *_sample_problems(dataset, missing, broken)),
        notes=tuple(_name_notes(dataset)),
    )


def _count_problems(dataset: Dataset) -> Iterator[Problem]:
    protocol = dataset.protocol
    if protocol is not None and len(dataset.classes) != protocol.classes:
        text = f"{len(dataset.classes)} classes where the protocol has {protocol.classes}."
        remedy = f"Download {protocol.split or 'the class lists'} again; another class list is another task."
        yield Problem("error", text, remedy)
    empty = [name for name, size in zip(dataset.classes, dataset.class_counts, strict=True) if not size]
    if empty:
        text = f"{len(empty)} of {len(dataset.classes)} classes have no images: {shorten(empty)}."
        remedy = "They are still possible predictions. Add images, or remove them from the class list."
        yield Problem("warning" if protocol is None else "error", text, remedy)
    if protocol is not None and len(dataset) != protocol.test_size:
        text = f"{len(dataset)} test images where the protocol has {protocol.test_size}."
        verb = "Complete" if len(dataset) < protocol.test_size else "Clean up"
        remedy = f"{verb} {dataset.where} and {protocol.split or 'its lists'} for figures comparable with the paper's."
        yield Problem("warning", text, remedy)


def _sample_problems(dataset: Dataset, missing: list[str], broken: dict[str, str]) -> Iterator[Problem]:
    first = next(iter(broken.items()), ("", ""))
    outside = [f"{s.id} (label {s.label})" for s in dataset.samples if not 0 <= s.label < len(dataset.classes)]
    repeated = _repeated(sample.id for sample in dataset.samples)
    for ids, what, remedy in (
        (missing, "files are missing", "Unpack the images again; until then, each becomes an error record."),
        (list(broken), "images cannot be decoded", ": ".join(first)),
        (outside, "labels are out of range", "Correct the labels, or pass a class file with all names."),
        (repeated, "ids occur more than once", "List every image once, or it is counted twice."),
    ):
        if ids:
            yield Problem("error", f"{len(ids)} {what}: {shorten(ids, 3)}.", remedy)


def _name_notes(dataset: Dataset) -> Iterator[str]:
    repeated = _repeated(dataset.classes)
    if repeated:
        published = dataset.names_from == BY_SYNSET
        advice = "as in the published list" if published else "make them distinct: their probability is split"
        yield f"{len(repeated)} class names are used twice: {shorten(repeated, 3)} ({advice})."


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
