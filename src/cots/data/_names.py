"""Class names: from a class file, from ImageNet's list, or from folders and labels."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from .._errors import InputError, unknown_name
from ..prompts import clean_name, imagenet_names
from ._files import shorten

CLASS_FILES = ("classnames.txt", "classes.txt", "classes.json")
BY_SYNSET = "open_clip, by synset"


@dataclass(frozen=True)
class ClassFile:
    """Class names in the order of a file; `keys` are their folders or labels, None for a plain list."""

    path: Path
    names: tuple[str, ...]
    keys: tuple[str, ...] | None

    @classmethod
    def read(cls, path: str | Path, classes: Sequence[str] = ()) -> Self:
        """Read one name per line, a JSON list, or a JSON object key -> name.

        Lines `key name` (CoOp's classnames.txt) are recognised when the keys cover all of `classes`.
        """
        file = cls(Path(path), (), None)
        try:
            text = file.path.read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            raise InputError(f"{file} does not exist. Check the path.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file} cannot be read ({error}). It must be UTF-8 text.") from error
        keys, names = file._parse_json(text) if file.path.suffix.lower() == ".json" else _parse_lines(text, classes)
        names = tuple(map(clean_name, names))
        if not names:
            raise InputError(f"{file} is empty. Write one class name per line.")
        if "" in names:
            raise InputError(f"{file}: class {names.index('')} has an empty name. Remove the empty line or name it.")
        return cls(file.path, names, keys)

    @classmethod
    def find(cls, given: str | Path | None, *folders: Path, classes: Sequence[str] = ()) -> Self | None:
        """The class file that was given, else the first one in `folders`, else None."""
        beside = (folder / name for folder in folders for name in CLASS_FILES)
        path = given if given is not None else next((file for file in beside if file.is_file()), None)
        return None if path is None else cls.read(path, classes)

    def __str__(self) -> str:
        return f"class file {str(self.path)!r}"

    def _parse_json(self, text: str) -> tuple[tuple[str, ...] | None, list[str]]:
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"{self} is not valid JSON ({error}).") from error
        keys, names = (tuple(content), list(content.values())) if isinstance(content, dict) else (None, content)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError(f"{self} must be a JSON list of names, or an object that maps folders to names.")
        return keys, names

    def names_for(self, classes: Sequence[str], what: str) -> tuple[str, ...]:
        """One name for each of `classes` (folders, or names to replace): by key, else by position."""
        if self.keys is not None:
            table = {clean_name(key): name for key, name in zip(self.keys, self.names, strict=True)}
            missing = [name for name in classes if clean_name(name) not in table]
            if missing:
                raise InputError(f"{self} has no name for {len(missing)} {what}: {shorten(missing)}. Add them.")
            return tuple(table[clean_name(name)] for name in classes)
        if len(self.names) != len(classes):
            raise InputError(
                f"{self} has {len(self.names)} names for {len(classes)} {what} ({shorten(classes, 3)}). "
                f"Write one per line in the order of the {what}, or a JSON object that maps each to its name."
            )
        return self.names


def _parse_lines(text: str, classes: Sequence[str]) -> tuple[tuple[str, ...] | None, Sequence[str]]:
    lines = text.rstrip().splitlines()
    pairs = [line.split(maxsplit=1) for line in lines]
    if classes and all(len(pair) == 2 for pair in pairs) and {key for key, _ in pairs} >= set(classes):
        keys, names = zip(*pairs, strict=True)
        return keys, names
    return None, lines


def name_folders(folders: Sequence[str], file: ClassFile | None) -> tuple[tuple[str, ...], str]:
    """Class names of class folders, and their source."""
    if file is not None:
        return file.names_for(folders, "class folders"), str(file.path)
    if all(folder in imagenet_names() for folder in folders):
        return tuple(imagenet_names()[folder] for folder in folders), BY_SYNSET
    return tuple(map(clean_name, folders)), "folder names"


def index_labels(
    labels: Sequence[str], file: ClassFile | None, what: str, places: Iterable[str]
) -> tuple[list[int], tuple[str, ...], str]:
    """Labels as written -> (class indices, class names, source of the names); `places` locate bad labels in errors."""
    numeric = all(label.isdecimal() and label.isascii() for label in labels)
    if file is None and numeric:
        raise InputError(
            f"{what}: the labels are numbers, so the classes have no names. Pass a class file with one name per line "
            f"(classes_file=, or --classes), or save it next to the data as {CLASS_FILES[0]}."
        )
    table, names, origin = _index_by_spelling(set(labels)) if file is None else _index_by_file(set(labels), file)
    for label, place in zip(labels, places, strict=True):
        if label in table:
            continue
        if file is None or not clean_name(label):
            raise InputError(f"{what}, {place}: the label is empty.")
        if numeric:
            raise InputError(
                f"{what}, {place}: label {label} is out of range: {file} has {len(names)} names, so labels go from 0 "
                f"to {len(names) - 1}."
            )
        raise unknown_name(f"label in {what}, {place}:", label, {*names, *(file.keys or ())}, f"Add it to {file}.")
    return [table[label] for label in labels], names, origin


def _index_by_spelling(labels: set[str]) -> tuple[dict[str, int], tuple[str, ...], str]:
    if labels <= imagenet_names().keys():
        # By synset, never by name: ImageNet has two classes called "missile" and two called "sunglasses".
        table = {synset: index for index, synset in enumerate(sorted(labels))}
        return table, tuple(imagenet_names()[synset] for synset in table), BY_SYNSET
    names = sorted({clean_name(label) for label in labels} - {""})
    index = {name: place for place, name in enumerate(names)}
    return {label: index[clean_name(label)] for label in labels if clean_name(label)}, tuple(names), "labels"


def _index_by_file(labels: set[str], file: ClassFile) -> tuple[dict[str, int], tuple[str, ...], str]:
    index = {name: place for place, name in reversed(list(enumerate(file.names)))}  # the first of equal names wins
    index |= {clean_name(key): place for place, key in enumerate(file.keys or ())}
    table = {label: index[clean_name(label)] for label in labels if clean_name(label) in index}
    # A class may be called "7": numbers are positions only if they are not all names.
    if len(table) < len(labels) and all(label.isdecimal() and label.isascii() for label in labels):
        table = {label: int(label) for label in labels if int(label) < len(file.names)}
    return table, file.names, str(file.path)
