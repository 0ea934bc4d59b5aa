"""Class names: lists given by the user, checked before any expensive step, and known lists by name."""

import importlib.util
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

from .._errors import InputError, unknown_name
from ..backbones import Backbone

OF_IMAGENET = {"imagenet": "imagenet", "imagenet-a": "imagenet_a", "imagenet-r": "imagenet_r"}
# Far above any real list and any prompt that fits a model: ImageNet-21k has 21,841 classes.
MAX_CLASSES, MAX_NAME = 100_000, 1000


class DuplicateClass(InputError):
    """Two names of a list are the same class, so its probability would be split."""


def clean_name(name: str) -> str:
    """A class name as used in a prompt: underscores become spaces, as in the published protocols."""
    return " ".join(name.replace("_", " ").split())


def clean_names(classes: str | Iterable[str], where: str = "classes") -> tuple[str, ...]:
    """Class names as used in a prompt, from non-empty strings or the name of a known list; `where` they come from."""
    if isinstance(classes, str):
        return class_list(classes)
    if isinstance(classes, (bytes, Mapping)) or not isinstance(classes, Iterable):
        raise InputError(f"{where} must be a list of class names, not {type(classes).__name__}.")
    names = list(islice(classes, MAX_CLASSES + 1))
    if not names:
        raise InputError(f"{where} is empty; pass at least one class name.")
    if len(names) > MAX_CLASSES:
        raise InputError(f"{where} has more than {MAX_CLASSES} names. Split the list.")
    for position, name in enumerate(names):
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
    """ImageNet's class names by synset, from open_clip."""
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

    return dict(zip(synsets(), map(clean_name, IMAGENET_CLASSNAMES), strict=True))


@cache
def _own_lists() -> Mapping[str, tuple[str, ...]]:
    lists = json.loads((files("cots") / "embedded" / "classes.json").read_text(encoding="utf-8"))
    return {name: tuple(map(clean_name, entry["names"])) for name, entry in lists.items()}


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
        short = name[:60]
        hint = f"Or pass the class names themselves as a list: [{short!r}, ...]."
        raise unknown_name("class list", short, class_lists(), hint)
    return _own_lists()[key]


def list_or_names(names: Sequence[str]) -> tuple[str, ...]:
    """Class names as typed; a single one that names a known list stands for its classes.

    >>> list_or_names(["everyday"])[:2], list_or_names(["everyday", "pets"])
    (('dog', 'cat'), ('everyday', 'pets'))
    """
    if len(names) == 1 and _list_key(names[0]) in class_lists():
        return class_list(names[0])
    return tuple(names)


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
            raise DuplicateClass(
                f"{problem} (positions {first} and {second}), so its probability would be split. "
                f"Remove one or make the names distinct{remedy}."
            )
