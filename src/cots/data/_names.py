"""Class names: from a file, from open_clip's and timm's lists, or from the folders themselves."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from .._errors import CotsError, InputError, unknown_name
from ..prompts import clean_name
from ._files import shorten

NAME_FILES = ("classnames.txt", "classes.txt", "classes.json")


@cache
def synsets(which: str = "imagenet") -> tuple[str, ...]:
    """Synsets of "imagenet", "imagenet_a" or "imagenet_r" in label order, from the lists that timm carries.

    >>> synsets()[0], len(synsets("imagenet_a"))
    ('n01440764', 200)
    """
    spec = importlib.util.find_spec("timm")
    file = Path(spec.origin if spec and spec.origin else "timm").parent / "data" / "_info" / f"{which}_synsets.txt"
    try:
        return tuple(file.read_text().split())
    except OSError as error:
        raise CotsError(f"timm's list of synsets {file.name} is missing ({error}): reinstall timm.") from error


@cache
def imagenet_names() -> Mapping[str, str]:
    """ImageNet's class names by synset, from open_clip.

    >>> imagenet_names()["n01440764"]
    'tench'
    """
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

    return dict(zip(synsets(), map(clean_name, IMAGENET_CLASSNAMES), strict=True))


class ClassFile:
    """A file of class names: one a line, a JSON list, a JSON object folder -> name, or lines `folder name`.

    `names` are in the file's order; `keys` the folders or labels they belong to, or None for a plain list.
    """

    def __init__(self, path: str | Path, folders: Sequence[str] = ()) -> None:
        self.path = Path(path)
        self.keys: tuple[str, ...] | None = None
        try:
            text = self.path.read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            raise InputError(f"class file {str(path)!r} does not exist: check the path.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"class file {str(path)!r} cannot be read ({error}): it must be UTF-8 text.") from error
        given = self._from_json(text) if self.path.suffix.lower() == ".json" else self._from_lines(text, folders)
        self.names = tuple(map(clean_name, given))
        if not self.names:
            raise InputError(f"{self} is empty: give one class name a line.")
        for place, name in enumerate(self.names):
            if not name:
                raise InputError(f"{self}: class {place} has an empty name; an empty line would shift all labels.")

    def __str__(self) -> str:
        return f"class file {str(self.path)!r}"

    def _from_json(self, text: str) -> list[str]:
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"{self} is not valid JSON ({error}).") from error
        if isinstance(content, dict):
            self.keys = tuple(content)
            content = list(content.values())
        if not isinstance(content, list) or not all(isinstance(name, str) for name in content):
            raise InputError(f"{self} must hold a JSON list of names, or an object folder -> name, with names as text.")
        return content

    def _from_lines(self, text: str, folders: Sequence[str]) -> list[str]:
        lines = text.rstrip().splitlines()
        split = [line.split(maxsplit=1) for line in lines]
        # CoOp's classnames.txt is written this way.
        if folders and all(len(parts) == 2 for parts in split) and set(folders) <= {parts[0] for parts in split}:
            self.keys = tuple(parts[0] for parts in split)
            return [parts[1] for parts in split]
        return lines

    def for_classes(self, old: Sequence[str], what: str) -> tuple[str, ...]:
        """A name for each of the classes `old` (folders, or names to replace): by key, else in order."""
        if self.keys is not None:
            table = {clean_name(key): name for key, name in zip(self.keys, self.names, strict=True)}
            missing = [name for name in old if clean_name(name) not in table]
            if missing:
                raise InputError(f"{self} has no name for {len(missing)} {what}: {shorten(missing)}. Add them.")
            return tuple(table[clean_name(name)] for name in old)
        if len(self.names) != len(old):
            few = "too few" if len(self.names) < len(old) else "too many"
            raise InputError(
                f"{self} has {few} names: {len(self.names)} for {len(old)} {what} ({shorten(list(old), 3)}). "
                f"Give one a line in the order of the {what}, or a JSON object that maps each to its name."
            )
        return self.names


def name_folders(folders: Sequence[str], file: ClassFile | None) -> tuple[tuple[str, ...], str]:
    """Class names of class folders and where they come from."""
    if file is not None:
        return file.for_classes(folders, "class folders"), str(file.path)
    if all(folder in imagenet_names() for folder in folders):
        return tuple(imagenet_names()[folder] for folder in folders), "open_clip, by synset"
    return tuple(map(clean_name, folders)), "folder names"


def number_labels(
    labels: Sequence[str], file: ClassFile | None, what: str, lines: Sequence[str]
) -> tuple[list[int], tuple[str, ...], str]:
    """Labels written as names or numbers -> (indices, class names, where these come from); lines[i] says where i is."""
    distinct = list(dict.fromkeys(labels))
    numbers = all(label.isdecimal() and label.isascii() for label in distinct)
    if file is None:
        if numbers:
            raise InputError(
                f"{what}: the labels are numbers, so the classes have no names. Give a file of names, one a line "
                f"(classes_file=, in a run classes= or --classes), or put it beside the data as {NAME_FILES[0]}."
            )
        if all(label in imagenet_names() for label in distinct):
            # By synset, never by name: ImageNet has two classes called "missile" and two called "sunglasses".
            keys = {synset: i for i, synset in enumerate(sorted(distinct))}
            return [keys[label] for label in labels], tuple(imagenet_names()[k] for k in keys), "open_clip, by synset"
        found = {name: i for i, name in enumerate(sorted(set(map(clean_name, distinct))))}
        if "" in found:
            raise InputError(f"{what}, {lines[[clean_name(label) for label in labels].index('')]}: the label is empty.")
        return [found[clean_name(label)] for label in labels], tuple(found), "labels"
    index = {clean_name(name): i for i, name in reversed(list(enumerate(file.names)))}
    index |= {clean_name(key): i for i, key in enumerate(file.keys or ())}
    # A class called "7" is meant by its name; numbers are places in the list only when they are not names.
    by_name = all(clean_name(label) in index for label in distinct)
    if not by_name and numbers:
        for label, line in zip(labels, lines, strict=True):
            if int(label) >= len(file.names):
                raise InputError(
                    f"{what}, {line}: label {label} is out of range: {file} has {len(file.names)} names, "
                    f"so labels go from 0 to {len(file.names) - 1}."
                )
        return [int(label) for label in labels], file.names, str(file.path)
    for label, line in zip(labels, lines, strict=True):
        if clean_name(label) not in index:
            raise unknown_name(f"label in {what}, {line}:", label, set(index), f"Add it to {file}.")
    return [index[clean_name(label)] for label in labels], file.names, str(file.path)
