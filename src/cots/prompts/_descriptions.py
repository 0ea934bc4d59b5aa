"""What users' files say about each class: sentences (CuPL, Pratt et al., ICCV 2023), and attributes for TCA."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._errors import InputError
from .._folders import shorten
from ..classes import MAX_NAME, clean_name

LARGEST_FILE = 2**25  # bytes; CuPL's sentences for ImageNet have 5 MB

Descriptions = Mapping[str, Sequence[str]] | str | os.PathLike[str]
Attributes = Mapping[str, Sequence[str] | str] | str | os.PathLike[str]
Sentences = tuple[tuple[str, ...], ...]  # of each class


def read_descriptions(source: Descriptions, classes: Sequence[str]) -> Sentences:
    """The sentences of each class, from a mapping {name: [sentence, ...]} or a JSON file of one.

    Names are compared as in prompts, without case; other names than `classes` are ignored.
    """
    where, content = _content("descriptions", source, '{"cat": ["A cat has whiskers."]}')
    return _of_classes(content, classes, where, "sentence")


def read_attributes(source: Attributes, classes: Sequence[str]) -> Sentences:
    """The attributes of each class, like `read_descriptions`; a text stands for its words.

    >>> read_attributes({"cat": ["soft", "striped"], "car": "shiny red"}, ["car", "cat"])
    (('shiny', 'red'), ('soft', 'striped'))
    """
    where, content = _content("attributes", source, '{"cat": ["soft", "striped"]}')
    lists: dict[str, Any] = {}
    for name, words in content.items():
        lists[name] = words.split() if isinstance(words, str) else words
    found = _of_classes(lists, classes, where, "attribute")
    for name, words in zip(classes, found, strict=True):
        if len({word.casefold() for word in words}) < len(words):
            raise InputError(f"{where}: {name[:60]!r} has an attribute twice. Remove one.")
    return found


def hash_of(sentences: Sentences | None) -> str:
    """A hash of the texts about the classes; empty without any."""
    return "" if sentences is None else hashlib.sha256(json.dumps(sentences).encode()).hexdigest()


def _content(what: str, source: Any, example: str) -> tuple[str, Mapping[str, Any]]:
    """Where the texts are from, for errors, and the mapping itself."""
    if isinstance(source, Mapping):
        return what, source
    where = f"{what} {os.fspath(source)}"
    return where, _read_file(Path(source).expanduser(), where, example)


def _of_classes(content: Mapping[str, Any], classes: Sequence[str], where: str, one: str) -> Sentences:
    known = {_key(name): texts for name, texts in content.items()}
    missing = [name for name in classes if _key(name) not in known]
    if missing:
        raise InputError(f"{where}: no {one}s for {len(missing)} classes: {shorten(missing)}. Add them.")
    return tuple(_check_texts(known[_key(name)], name, where, one) for name in classes)


def _key(name: Any) -> str:
    return clean_name(str(name)).casefold()


def _read_file(file: Path, where: str, example: str) -> Mapping[str, Any]:
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise InputError(f"{where} has more than {LARGEST_FILE >> 20} MiB. Use fewer texts.")
        content = json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{where} cannot be read ({error.strerror or error}). Check the path.") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not valid JSON ({error}).") from None
    if not isinstance(content, dict):
        raise InputError(f"{where} must be a JSON object such as {example}.")
    return content


def _check_texts(texts: Any, name: str, where: str, one: str) -> tuple[str, ...]:
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Sequence) or not texts:
        raise InputError(f"{where}: {name[:60]!r} needs a list of at least one {one}.")
    for text in texts:
        if not isinstance(text, str) or not text.strip() or len(text) > MAX_NAME:
            article = "an" if one.startswith("a") else "a"
            problem = f"{where}: {str(text)[:60]!r} of {name[:60]!r} is not {article} {one}"
            raise InputError(f"{problem}. Write 1 to {MAX_NAME} characters.")
    return tuple(text.strip() for text in texts)
