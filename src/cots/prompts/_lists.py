"""Class lists by name: ImageNet's from open_clip and timm, and those that come with cots."""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from .._errors import unknown_name

OF_IMAGENET = {"imagenet": "imagenet", "imagenet-a": "imagenet_a", "imagenet-r": "imagenet_r"}


def clean_name(name: str) -> str:
    """A class name as it enters a prompt: underscores become spaces, as in the published protocols."""
    return " ".join(name.replace("_", " ").split())


@cache
def synsets(which: str = "imagenet") -> tuple[str, ...]:
    """Synsets of "imagenet", "imagenet_a" or "imagenet_r" in label order, from the lists in timm."""
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
    return {name: tuple(entry["names"]) for name, entry in lists.items()}


def class_lists() -> tuple[str, ...]:
    """The names of the known class lists."""
    return (*OF_IMAGENET, *_own_lists())


def class_list(name: str) -> tuple[str, ...]:
    """The class names of a known list, such as "imagenet" or "pets".

    >>> class_list("imagenet")[:2], len(class_list("pets"))
    (('tench', 'goldfish'), 37)
    """
    key = _key(name)
    if key in OF_IMAGENET:
        return tuple(imagenet_names()[synset] for synset in synsets(OF_IMAGENET[key]))
    if key not in _own_lists():
        hint = f"Or pass the class names themselves as a list: [{name!r}, ...]."
        raise unknown_name("class list", name, class_lists(), hint)
    return _own_lists()[key]


def list_or_names(names: Sequence[str]) -> tuple[str, ...]:
    """Class names as typed: a single one that names a known list stands for its classes.

    >>> list_or_names(["everyday"])[:2], list_or_names(["everyday", "pets"])
    (('dog', 'cat'), ('everyday', 'pets'))
    """
    return class_list(names[0]) if len(names) == 1 and _key(names[0]) in class_lists() else tuple(names)


def _key(name: str) -> str:
    return name.strip().lower().replace("_", "-")
