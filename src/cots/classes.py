"""Class names: as typed, from a file or a known list, checked before any expensive step; imports no torch."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ._errors import InputError, unknown_name
from ._folders import shorten

if TYPE_CHECKING:
    from .backbones import Backbone

OF_IMAGENET = {"imagenet": "imagenet", "imagenet-a": "imagenet_a", "imagenet-r": "imagenet_r"}
# Far above any real list and any prompt that fits a model: ImageNet-21k has 21,841 classes.
MAX_CLASSES, MAX_NAME = 100_000, 1000
MAX_CLASS_FILE = 2**23  # bytes
CLASS_FILES = ("classnames.txt", "classes.txt", "classes.json")  # found next to a dataset
_FILE_ENDINGS = (".txt", ".json", ".csv")


# What stands for class names: the names, a known list, or a file.
Classes = str | os.PathLike[str] | Iterable[str]


class DuplicateClass(InputError):
    """Two names of a list are the same class, so its probability would be split; `problem` is without the remedy."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        self.problem = problem
        super().__init__(f"{problem} Remove one or make the names distinct{remedy}.")


def clean_name(name: str) -> str:
    """A class name as used in a prompt: underscores become spaces, as in the published protocols."""
    return " ".join(name.replace("_", " ").split())


def read_classes(classes: Classes, *, files: bool = True, where: str = "classes") -> tuple[str, ...]:
    """Class names as used in a prompt, by the one rule of the command line, Python and HTTP.

    A list has the names. A text is the name of a known list (`cots ls classes`), else, with `files`, the path of a file
    with one name per line or a JSON list, else the names themselves: one per line, or in one line with commas.

    >>> read_classes("everyday")[:2], read_classes("everyday, pets"), read_classes(["sports_car"])
    (('dog', 'cat'), ('everyday', 'pets'), ('sports car',))
    """
    if isinstance(classes, os.PathLike):
        return ClassFile.read(os.fspath(classes)).names
    if not isinstance(classes, str):
        return clean_names(classes, where)
    if is_known_list(classes):
        return class_list(classes)
    if files and _names_file(classes):
        return ClassFile.read(classes).names
    if _looks_like_file(classes):
        raise InputError(f"{where}: {classes.strip()[:60]!r} is a file name. Send the names in it.")
    return clean_names(_split(classes, where), where)


def is_known_list(classes: Any) -> bool:
    """Whether a text names a known list."""
    return isinstance(classes, str) and _list_key(classes) in class_lists()


def has_known_names(names: tuple[str, ...]) -> bool:
    """Whether these are the names of a known list; as published, ImageNet's have one twice."""
    return any(names == class_list(known) for known in class_lists())


def _neighbour(missing: Path) -> str:
    """The file with the nearest name in the same folder, as a question."""
    names = os.listdir(missing.parent) if missing.parent.is_dir() else []
    near = get_close_matches(missing.name, names, n=1, cutoff=0.75)
    return f" Did you mean {near[0]!r}?" if near else ""


def _names_file(text: str) -> bool:
    return _looks_like_file(text) or os.path.isfile(text)


def _looks_like_file(text: str) -> bool:
    name = text.strip().lower()
    return name.endswith(_FILE_ENDINGS) and not set(name) & set(",\n")


def _split(text: str, where: str) -> list[str]:
    """Names in lines, or in one line with commas; a single one that is nearly a known list is refused."""
    lines = text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}").strip().splitlines()
    parts = lines[0].split(",") if len(lines) == 1 else lines
    names = [part.strip() for part in parts if part.strip()]
    if not names:
        raise InputError(f"{where} has no class names. Pass at least two.")
    if len(parts) == 1:
        near = get_close_matches(_list_key(names[0]), class_lists(), n=1, cutoff=0.75)
        if near:
            raise InputError(
                f"{where}: {names[0]!r} is not a known list. Did you mean {near[0]!r}? For a class of this name, add "
                "the classes it could be mistaken for, or a comma."
            )
    return names


def clean_names(classes: Iterable[str], where: str = "classes") -> tuple[str, ...]:
    """Class names as used in a prompt, from non-empty strings; `where` they come from."""
    if isinstance(classes, (str, bytes, Mapping)) or not isinstance(classes, Iterable):
        raise InputError(f"{where} must be a list of class names, not {type(classes).__name__}.")
    names = list(islice(classes, MAX_CLASSES + 1))
    if not names:
        raise InputError(f"{where} is empty; pass at least one class name.")
    if len(names) > MAX_CLASSES:
        raise InputError(f"{where} has more than {MAX_CLASSES} names. Split the list.")
    for position, name in enumerate(names, start=1):
        _check_name(position, name, where)
    return tuple(map(clean_name, names))


def _check_name(position: int, name: Any, where: str) -> None:
    if not isinstance(name, str):
        raise InputError(f"{where}: class {position} is {repr(name)[:60]}; class names must be strings.")
    if len(name) > MAX_NAME:
        problem = f"the name {name[:60] + '...'!r} has {len(name)} characters, more than {MAX_NAME}"
        raise InputError(f"{where}: class {position}: {problem}. Use one short name per class.")
    if not clean_name(name):
        raise InputError(f"{where}: class {position} has an empty name; use at least one word per class.")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where}: class {position} ({name[:60]!r}) is not valid Unicode. Type it again.") from None


@cache
def synsets(which: str = "imagenet") -> tuple[str, ...]:
    """Synsets of "imagenet", "imagenet_a" or "imagenet_r" in label order, from timm's lists."""
    timm = Path(str(importlib.util.find_spec("timm").origin)).parent  # pyright: ignore[reportOptionalMemberAccess]
    return tuple((timm / "data" / "_info" / f"{which}_synsets.txt").read_text().split())


@cache
def imagenet_names() -> Mapping[str, str]:
    """ImageNet's class names by synset, from open_clip's file of names: open_clip itself would import torch."""
    file = Path(str(importlib.util.find_spec("open_clip").origin)).with_name("zero_shot_metadata.py")  # pyright: ignore[reportOptionalMemberAccess]
    spec = importlib.util.spec_from_file_location("cots_open_clip_names", file)
    if spec is None or spec.loader is None:
        raise InputError(f"open_clip has no file {file.name}. Install a version listed in constraints.txt.")
    names = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(names)
    return dict(zip(synsets(), map(clean_name, names.IMAGENET_CLASSNAMES), strict=True))


@cache
def _own_lists() -> Mapping[str, tuple[str, ...]]:
    lists = json.loads((files("cots") / "embedded" / "classes.json").read_text(encoding="utf-8"))
    return {name: tuple(map(clean_name, about["names"])) for name, about in lists.items()}


def class_lists() -> tuple[str, ...]:
    """The names of the known class lists."""
    return (*OF_IMAGENET, *_own_lists())


def class_list(name: str) -> tuple[str, ...]:
    """The class names of a known list, such as "imagenet" or "pets".

    >>> class_list("imagenet")[:2], len(class_list("pets"))
    (('tench', 'goldfish'), 37)
    """
    key = _list_key(name)
    if key in OF_IMAGENET:
        names = imagenet_names()
        return tuple(names[synset] for synset in synsets(OF_IMAGENET[key]))
    if key not in _own_lists():
        raise unknown_name("class list", name[:60], class_lists())
    return _own_lists()[key]


def _list_key(name: str) -> str:
    return name[:MAX_NAME].strip().lower().replace("_", "-")


def check_distinct(names: Sequence[str], backbone: Backbone | None = None, remedy: str = "") -> None:
    """Refuse two equal names; with a backbone, also two that its tokenizer does not tell apart."""
    tokens: dict[str, tuple[int, ...]] = {}
    if backbone is not None:
        count = Counter(name.lower() for name in names)
        variants = [name for name in names if count[name.lower()] > 1]
        if variants:
            tokens = dict(zip(variants, map(tuple, backbone.tokenize(variants).tolist()), strict=True))
    positions: dict[object, int] = {}
    for second, name in enumerate(names):
        for key in (name, tokens.get(name, name)):
            first = positions.setdefault(key, second)
            if first == second:
                continue
            problem = f"The class {name!r} appears twice"
            if name != names[first]:
                problem = f"{names[first]!r} and {name!r} are one class"
            places = f"names {first + 1} and {second + 1} of the list"
            raise DuplicateClass(f"{problem} ({places}), so its probability would be split.", remedy)


@dataclass(frozen=True)
class ClassFile:
    """Class names in the order of a file or list; `keys` are their folders or labels, None for a plain list.

    path: None if the names do not come from a file.
    """

    path: Path | None
    names: tuple[str, ...]
    keys: tuple[str, ...] | None

    @classmethod
    def read(cls, path: str | Path, classes: Sequence[str] = ()) -> Self:
        """Read one name per line, a JSON list, or a JSON object key -> name.

        Lines `key name` (CoOp's classnames.txt) are recognised when the keys cover all of `classes`.
        """
        file = cls(Path(path), (), None)
        try:
            with open(path, "rb") as opened:
                data = opened.read(MAX_CLASS_FILE + 1)
            if len(data) > MAX_CLASS_FILE:
                raise InputError(f"{file} is larger than {MAX_CLASS_FILE >> 20} MiB. Write one class name per line.")
            text = data.decode("utf-8-sig")
        except FileNotFoundError:
            raise InputError(f"{file} does not exist.{_neighbour(Path(path))} Check the path.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file} cannot be read ({error}). It must be UTF-8 text.") from error
        if Path(path).suffix.lower() == ".json":
            keys, names = file._parse_json(text)
        else:
            keys, names = _parse_lines(text, classes)
        if not names:
            raise InputError(f"{file} is empty. Write one class name per line.")
        return cls(file.path, clean_names(names, str(file)), keys)

    @classmethod
    def of(cls, given: Any, classes: Sequence[str] = ()) -> Self:
        """The names that `given` stands for, by the rule of `read_classes`."""
        named = isinstance(given, str) and not is_known_list(given) and _names_file(given)
        if named or isinstance(given, os.PathLike):
            return cls.read(os.fspath(given), classes)
        return cls(None, read_classes(given), None)

    @classmethod
    def find(cls, given: Any, *folders: Path, classes: Sequence[str] = ()) -> Self | None:
        """The classes that were given, else those of the first class file in `folders`, else None."""
        if given is not None:
            return cls.of(given, classes)
        for folder, name in itertools.product(folders, CLASS_FILES):
            if (folder / name).is_file():
                return cls.read(folder / name, classes)
        return None

    @property
    def origin(self) -> str:
        """Where the names come from."""
        return "the caller" if self.path is None else str(self.path)

    def __str__(self) -> str:
        return "the list of classes" if self.path is None else f"class file {str(self.path)!r}"

    def _parse_json(self, text: str) -> tuple[tuple[str, ...] | None, list[str]]:
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{self} is not valid JSON ({error}).") from error
        if isinstance(content, dict):
            return tuple(content), list(content.values())
        if isinstance(content, list):
            return None, content
        raise InputError(f"{self} must be a JSON list of names, or an object that maps folders to names.")

    def names_for(self, classes: Sequence[str], what: str) -> tuple[str, ...]:
        """One name for each of `classes` (folders, or names to replace): by key, else by position."""
        if self.keys is not None:
            table = dict(zip(map(clean_name, self.keys), self.names, strict=True))
            missing = [name for name in classes if clean_name(name) not in table]
            if missing:
                raise InputError(f"{self} has no name for {len(missing)} {what}: {shorten(missing)}. Add them.")
            return tuple(table[clean_name(name)] for name in classes)
        by_spelling = {name.casefold(): name for name in self.names}
        spelled = [clean_name(name).casefold() for name in classes]
        if set(spelled) <= set(by_spelling):  # the order of the list does not matter
            return tuple(by_spelling[name] for name in spelled)
        if len(self.names) != len(classes):
            raise InputError(
                f"{self} has {len(self.names)} names for {len(classes)} {what} ({shorten(classes, 3)}). "
                f"Write one per line in the order of the {what}, or a JSON object that maps each to its name."
            )
        return self.names


def _parse_lines(text: str, classes: Sequence[str]) -> tuple[tuple[str, ...] | None, Sequence[str]]:
    lines = text.rstrip().splitlines()
    if not classes:
        return None, lines
    pairs = [line.split(maxsplit=1) for line in lines]
    if all(len(pair) == 2 for pair in pairs) and {key for key, _ in pairs} >= set(classes):
        keys, names = zip(*pairs, strict=True)
        return keys, names
    return None, lines
