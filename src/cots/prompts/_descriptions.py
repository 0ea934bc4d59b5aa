"""Descriptions: sentences about each class, as language models write them (CuPL, Pratt et al., ICCV 2023)."""

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
Sentences = tuple[tuple[str, ...], ...]  # of each class


def read_descriptions(source: Descriptions, classes: Sequence[str]) -> Sentences:
    """The sentences of each class, from a mapping {name: [sentence, ...]} or a JSON file of one.

    Names are compared as in prompts, without case; other names than `classes` are ignored.
    """
    where = "descriptions" if isinstance(source, Mapping) else f"descriptions {os.fspath(source)}"
    content = source if isinstance(source, Mapping) else _read_file(Path(source).expanduser(), where)
    known = {_key(name): sentences for name, sentences in content.items()}
    missing = [name for name in classes if _key(name) not in known]
    if missing:
        raise InputError(f"{where}: no sentences for {len(missing)} classes: {shorten(missing)}. Add them.")
    return tuple(_check_sentences(known[_key(name)], name, where) for name in classes)


def _key(name: Any) -> str:
    return clean_name(str(name)).casefold()


def _read_file(file: Path, where: str) -> Mapping[str, Any]:
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise InputError(f"{where} has more than {LARGEST_FILE >> 20} MiB. Use fewer sentences.")
        content = json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{where} cannot be read ({error.strerror or error}). Check the path.") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not valid JSON ({error}).") from None
    if not isinstance(content, dict):
        raise InputError(f'{where} must be a JSON object such as {{"cat": ["A cat has whiskers."]}}.')
    return content


def _check_sentences(sentences: Any, name: str, where: str) -> tuple[str, ...]:
    if isinstance(sentences, (str, bytes)) or not isinstance(sentences, Sequence) or not sentences:
        raise InputError(f"{where}: {name[:60]!r} needs a list of at least one sentence.")
    for sentence in sentences:
        if not isinstance(sentence, str) or not sentence.strip() or len(sentence) > MAX_NAME:
            problem = f"{where}: {str(sentence)[:60]!r} of {name[:60]!r} is not a sentence"
            raise InputError(f"{problem}. Write 1 to {MAX_NAME} characters.")
    return tuple(sentence.strip() for sentence in sentences)
