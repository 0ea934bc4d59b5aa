"""Files of a dataset: shards by pattern, and class names from files or labels."""

import glob
import itertools
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from .._errors import InputError, unknown_name
from ..classes import CLASS_FILES, ClassFile, clean_name, imagenet_names

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
BY_SYNSET = "open_clip, by synset"


def sample_photos() -> Path:
    """The folder of the photos that ship with cots."""
    folder = Path(__file__).parents[1] / "embedded" / "photos"
    # A clone has them only in examples/.
    return folder if folder.is_dir() else Path(__file__).parents[3] / "examples" / "photos"


def expand(pattern: str) -> list[str]:
    """The shards that match a pattern with {0000..0003}, {a,b}, * or ?; braces in order, globs sorted."""
    choices = []
    for i, part in enumerate(_BRACES.split(pattern)):
        inside_braces = i % 2 == 1
        choices.append(_choices(part, pattern) if inside_braces else [part])
    files: list[str] = []
    for name in map("".join, itertools.product(*choices)):
        if glob.has_magic(name) and not os.path.exists(name):
            files += sorted(glob.glob(name))
        else:
            files.append(name)
    return list(dict.fromkeys(files))


def _choices(inner: str, pattern: str) -> list[str]:
    span = _RANGE.fullmatch(inner)
    if not span:
        return inner.split(",")
    low, high = span.groups()
    if int(high) < int(low):
        raise InputError(f"shard pattern {pattern!r}: {{{inner}}} counts down; put the lower number first.")
    width = len(low) if low.startswith("0") else 0
    return [str(number).zfill(width) for number in range(int(low), int(high) + 1)]


def name_folders(folders: Sequence[str], file: ClassFile | None) -> tuple[tuple[str, ...], str]:
    """Class names of class folders, and their source."""
    if file is not None:
        return file.names_for(folders, "class folders"), file.origin
    if imagenet_names().keys() >= set(folders):
        return tuple(map(imagenet_names().__getitem__, folders)), BY_SYNSET
    return tuple(map(clean_name, folders)), "folder names"


def index_labels(
    labels: Sequence[str], file: ClassFile | None, what: str, rows: Iterable[str]
) -> tuple[list[int], tuple[str, ...], str]:
    """Labels as written -> (class indices, class names, source of the names); `rows` locate bad labels in errors."""
    numeric = _are_numbers(labels)
    if file is None and numeric:
        raise InputError(
            f"{what}: the labels are numbers, so the classes have no names. Pass a class file with one name per line "
            f"(classes=, or --classes), or save it next to the data as {CLASS_FILES[0]}."
        )
    if file is None:
        table, names, origin = _index_by_spelling(set(labels))
    else:
        table, names, origin = _index_by_file(set(labels), file)
    for label, row in zip(labels, rows, strict=True):
        if label in table:
            continue
        if file is None or not clean_name(label):
            raise InputError(f"{what}, {row}: the label is empty.")
        if numeric:
            raise InputError(
                f"{what}, {row}: label {label} is out of range: {file} has {len(names)} names, so labels go from 0 "
                f"to {len(names) - 1}."
            )
        raise unknown_name(f"label in {what}, {row}:", label, {*names, *(file.keys or ())}, f"Add it to {file}.")
    return [table[label] for label in labels], names, origin


def _index_by_spelling(labels: set[str]) -> tuple[dict[str, int], tuple[str, ...], str]:
    if labels <= imagenet_names().keys():
        # By synset, never by name: ImageNet has two classes called "missile" and two called "sunglasses".
        synsets = sorted(labels)
        names = tuple(map(imagenet_names().__getitem__, synsets))
        return dict(zip(synsets, range(len(synsets)), strict=True)), names, BY_SYNSET
    names = tuple(sorted(set(map(clean_name, labels)) - {""}))
    index = dict(zip(names, range(len(names)), strict=True))
    return {label: index[clean_name(label)] for label in labels if clean_name(label)}, names, "labels"


def _index_by_file(labels: set[str], file: ClassFile) -> tuple[dict[str, int], tuple[str, ...], str]:
    index: dict[str, int] = {}
    for i, name in enumerate(file.names):
        index.setdefault(name, i)  # the first of equal names wins
    for i, key in enumerate(file.keys or ()):
        index[clean_name(key)] = i
    table = {label: index[clean_name(label)] for label in labels if clean_name(label) in index}
    # A class may be called "7": numbers are positions only if they are not all names.
    if len(table) < len(labels) and _are_numbers(labels):
        table = {label: int(label) for label in labels if int(label) < len(file.names)}
    return table, file.names, file.origin


def _are_numbers(labels: Iterable[str]) -> bool:
    return all(label.isdecimal() and label.isascii() for label in labels)
