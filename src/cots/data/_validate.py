"""validate: does what lies on disk agree with what the protocol expects, and what is there to fix."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .._errors import CotsError, InputError
from ..views import read_image
from ._dataset import Dataset
from ._files import shorten

_REFRESH = 256


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something to fix: an "error" makes results wrong or incomplete, a "warning" makes them another test."""

    severity: Literal["error", "warning"]
    text: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class ValidationReport:
    """What `validate` found. `ok` means no error; warnings (a cut test set, say) are in `problems` too.

    decoded: images that were decoded without an error; missing, broken: ids of samples without a file, or with one
    that cannot be decoded.
    """

    name: str
    title: str
    where: str
    names_from: str
    samples: int
    expected_samples: int | None
    classes: int
    expected_classes: int | None
    class_sizes: tuple[int, int]
    decoded: int
    missing: tuple[str, ...]
    broken: tuple[str, ...]
    split_hash: str
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing stands in the way of a run."""
        return not any(problem.severity == "error" for problem in self.problems)

    def text(self) -> str:
        """The report for people, with every remedy."""
        low, high = self.class_sizes
        size = f"{low}" if low == high else f"{low} to {high}"
        lines = [
            f"{self.title} ({self.name}): {self._verdict()}",
            f"  from     {self.where}",
            f"  images   {_count(self.samples, self.expected_samples)}, {size} a class",
            f"  classes  {_count(self.classes, self.expected_classes)}, names from {self.names_from or 'the caller'}",
            f"  decoded  {self.decoded} without an error",
            f"  split    sha256 {self.split_hash}",
        ]
        lines += [f"  note     {note}" for note in self.notes]
        lines += [f"  {p.severity:<8} {p.text}\n{'':11}{p.remedy}" for p in self.problems]
        return "\n".join(lines)

    def _verdict(self) -> str:
        kinds = Counter(problem.severity for problem in self.problems)
        if not kinds:
            return "as expected" if self.expected_samples is not None else "no problem found"
        said = [f"{n} {kind}{'s' if n > 1 else ''}" for kind, n in sorted(kinds.items())]
        return ", ".join(said)


def validate(
    dataset: Dataset, *, per_class: int | None = 1, progress: Callable[[int, int], None] | None = None
) -> ValidationReport:
    """Check counts, classes, files and names of `dataset`; decode `per_class` images of each class (None: all).

    One pass over the samples; `progress(done, total)` is called every few hundred. Nothing here raises for a bad file:
    each becomes a line of the report.
    """
    if per_class is not None and per_class < 0:
        raise InputError(f"per_class must be at least 0, or None for all images, not {per_class}.")
    left = Counter({label: len(dataset) if per_class is None else per_class for label in range(len(dataset.classes))})
    missing: list[str] = []
    broken: list[tuple[str, str]] = []
    outside: list[str] = []
    decoded = 0
    for index, sample in enumerate(dataset.samples):
        if progress is not None and index % _REFRESH == 0:
            progress(index, len(dataset))
        if not 0 <= sample.label < len(dataset.classes):
            outside.append(f"{sample.id} (label {sample.label})")
        if isinstance(sample.source, str):
            size = _size(sample.source)
            if size is None:
                missing.append(sample.id)
                continue
            if size == 0:
                broken.append((sample.id, "the file is empty (0 bytes). Fetch it again."))
                continue
        if left[sample.label] > 0:
            left[sample.label] -= 1
            try:
                read_image(dataset.read(index), orient=False, flatten=False)
                decoded += 1
            except CotsError as error:
                broken.append((sample.id, str(error)))
    if progress is not None:
        progress(len(dataset), len(dataset))
    expected = dataset.protocol
    sizes = dataset.class_counts
    return ValidationReport(
        name=dataset.name,
        title=dataset.title,
        where=dataset.where,
        names_from=dataset.names_from,
        samples=len(dataset),
        expected_samples=expected.test_size if expected else None,
        classes=len(dataset.classes),
        expected_classes=expected.classes if expected else None,
        class_sizes=(min(sizes), max(sizes)),
        decoded=decoded,
        missing=tuple(missing),
        broken=tuple(identity for identity, _ in broken),
        split_hash=dataset.split_hash,
        problems=(*_count_problems(dataset), *_file_problems(missing, broken, outside), *_double_ids(dataset)),
        notes=tuple(_name_notes(dataset)),
    )


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def _count(found: int, expected: int | None) -> str:
    return f"{found}" if expected in (None, found) else f"{found} (expected {expected})"


def _count_problems(dataset: Dataset) -> list[Problem]:
    protocol, problems = dataset.protocol, []
    empty = [name for name, size in zip(dataset.classes, dataset.class_counts, strict=True) if not size]
    if protocol is not None and len(dataset.classes) != protocol.classes:
        problems.append(
            Problem(
                severity="error",
                text=f"{len(dataset.classes)} classes where the protocol has {protocol.classes}.",
                remedy=f"Fetch {protocol.split or 'the class lists'} again; another class list is another task.",
            )
        )
    if empty:
        problems.append(
            Problem(
                severity="warning" if protocol is None else "error",
                text=f"{len(empty)} of {len(dataset.classes)} classes have no image: {shorten(empty)}.",
                remedy="They still compete as answers. Add their images, or leave them out of the class list.",
            )
        )
    if protocol is not None and len(dataset) != protocol.test_size:
        less = len(dataset) < protocol.test_size
        problems.append(
            Problem(
                severity="warning",
                text=f"{len(dataset)} test images where the protocol has {protocol.test_size}.",
                remedy=f"A run works, but its figures are not the paper's test: "
                f"{'complete' if less else 'clean up'} {dataset.where} and {protocol.split or 'its lists'}.",
            )
        )
    return problems


def _file_problems(missing: list[str], broken: list[tuple[str, str]], outside: list[str]) -> list[Problem]:
    problems = []
    if missing:
        problems.append(
            Problem(
                severity="error",
                text=f"{len(missing)} files are missing: {shorten(missing, 3)}.",
                remedy="Unpack the images again; until then each is a record with an error.",
            )
        )
    if broken:
        first, reason = broken[0]
        problems.append(
            Problem(
                severity="error",
                text=f"{len(broken)} images cannot be decoded: {shorten([b for b, _ in broken], 3)}.",
                remedy=f"{first}: {reason}",
            )
        )
    if outside:
        problems.append(
            Problem(
                severity="error",
                text=f"{len(outside)} labels are out of range: {shorten(outside, 3)}.",
                remedy="Correct the labels, or give a class file with all names.",
            )
        )
    return problems


def _double_ids(dataset: Dataset) -> list[Problem]:
    double = [identity for identity, n in Counter(s.id for s in dataset.samples).items() if n > 1]
    if not double:
        return []
    return [
        Problem(
            severity="error",
            text=f"{len(double)} ids come more than once: {shorten(double, 3)}.",
            remedy="List every image once: it would be counted twice.",
        )
    ]


def _name_notes(dataset: Dataset) -> list[str]:
    double = [name for name, n in Counter(dataset.classes).items() if n > 1]
    if not double:
        return []
    published = dataset.names_from.startswith("open_clip")
    advice = "as in the published list" if published else "make them distinct: their probability is split"
    return [f"{len(double)} class names are used twice: {shorten(double, 3)} ({advice})."]
