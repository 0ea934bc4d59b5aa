"""Webdataset shards: tar files indexed once, then read by offset."""

from __future__ import annotations

import glob
import itertools
import json
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from .._errors import InputError
from ._dataset import Dataset, Sample, TarSlice
from ._files import is_image
from ._names import ClassFile, index_labels
from ._protocols import own_name

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_LABEL_KEYS = ("label", "cls", "class", "class_name")


def is_tar_pattern(text: str) -> bool:
    """Whether `text` names tar files: it ends in .tar (or .tar.gz, which `open_tar` refuses)."""
    return text.lower().endswith((".tar", ".tar.gz", ".tgz"))


def expand(pattern: str) -> list[str]:
    """The shards that match a pattern with {0000..0003}, {a,b}, * or ?; braces in order, globs sorted.

    >>> expand("shards-{08..10}.tar")
    ['shards-08.tar', 'shards-09.tar', 'shards-10.tar']
    """
    parts = _BRACES.split(pattern)
    choices = [_choices(part, pattern) if place % 2 else [part] for place, part in enumerate(parts)]
    files: list[str] = []
    for combination in itertools.product(*choices):
        name = "".join(combination)
        files += sorted(glob.glob(name)) if glob.has_magic(name) and not os.path.exists(name) else [name]
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


def open_tar(pattern: str, classes_file: str | Path | None = None) -> Dataset:
    """Webdataset shards: consecutive members with one key are a sample, such as a/17.jpg and a/17.cls.

    The label is in KEY.cls (name or number), or in KEY.json under label, cls, class or class_name, or is the folder in
    the key. The id is the key, or shard/key where shards repeat keys.
    """
    what = f"shards {pattern!r}"
    files = expand(pattern)
    if not files:
        raise InputError(f"{what}: no such file. Check the pattern, for example data-{{0000..0003}}.tar or data-*.tar.")
    missing = [file for file in files if not os.path.isfile(file)]
    if missing:
        raise InputError(
            f"{what}: {len(missing)} of {len(files)} files do not exist, the first {missing[0]!r}. Check the pattern."
        )
    found = [(file, *sample) for file in files for sample in _index(file)]
    if not found:
        raise InputError(f"{what}: no image in {len(files)} file(s). A sample is KEY.jpg (png, webp) with KEY.cls.")
    shards, keys, images, labels = zip(*found, strict=True)
    ids = keys
    if len(set(keys)) < len(keys):
        name_of = os.path.basename if len(set(map(os.path.basename, files))) == len(files) else str
        ids = [f"{name_of(shard).removesuffix('.tar')}/{key}" for shard, key in zip(shards, keys, strict=True)]
    folder = Path(files[0]).resolve().parent
    places = [f"{os.path.basename(shard)}, {key!r}" for shard, key in zip(shards, keys, strict=True)]
    class_file = ClassFile.find(classes_file, folder, folder.parent)
    indices, classes, names_from = index_labels(labels, class_file, what, places)
    samples = tuple(Sample(*fields) for fields in zip(ids, indices, images, strict=True))
    stem = re.sub(r"\{.*?\}|[*?\[\]]+", "", os.path.basename(pattern)).removesuffix(".tar").strip("-_.")
    name = own_name(folder.name, stem) if stem else own_name(folder.parent.name, folder.name)
    return Dataset(name=name, title=name, classes=classes, samples=samples, where=pattern, names_from=names_from)


def _index(file: str) -> Iterator[tuple[str, TarSlice, str]]:
    """(key, place of the image, label as written) of each sample in a shard."""
    for key, members in itertools.groupby(_members(file), key=lambda member: member[0]):
        parts: dict[str, TarSlice] = {}
        texts: dict[str, bytes] = {}
        for _, ending, place, text in members:
            if ending in parts:
                raise InputError(f"tar file {file!r}: one sample has {key}.{ending} twice. Write the shard again.")
            parts[ending] = place
            texts |= {ending: text} if text is not None else {}
        images = [place for ending, place in parts.items() if is_image(f"x.{ending}")]
        if images:
            yield key, images[0], _label(file, key, texts)


def _members(file: str) -> Iterator[tuple[str, str, TarSlice, bytes | None]]:
    """(key, ending, place, content if it may be a label) of each file in a shard."""
    try:
        # "r:" refuses compressed files, whose members have no offset.
        with tarfile.open(file, "r:") as tar:
            for member in tar:
                folder, _, name = member.name.removeprefix("./").rpartition("/")
                stem, dot, ending = name.partition(".")
                if not member.isreg() or member.issparse() or not stem or not dot:
                    continue
                key = f"{folder}/{stem}" if folder else stem
                content = tar.extractfile(member) if ending.lower() in ("cls", "json") else None
                text = content.read() if content is not None else None
                yield key, ending.lower(), TarSlice(file, member.offset_data, member.size), text
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(
            f"tar file {file!r} cannot be read ({error}): it is compressed, truncated or not a tar file. "
            "Unpack .tar.gz to .tar, or download it again."
        ) from error


def _label(file: str, key: str, texts: dict[str, bytes]) -> str:
    where = f"tar file {file!r}, sample {key!r}"
    try:
        if "cls" in texts:
            text = texts["cls"].decode().strip()
        elif "json" in texts:
            content = json.loads(texts["json"])
            name = next((k for k in _LABEL_KEYS if isinstance(content, dict) and k in content), None)
            if name is None:
                raise InputError(f"{where}: its .json has none of {', '.join(_LABEL_KEYS)}. Add one, or a .cls file.")
            text = str(content[name]).strip()
        else:
            text = key.rpartition("/")[0].rpartition("/")[2]
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{where}: its label cannot be read ({error}). Write the shard again.") from error
    if not text:
        raise InputError(f"{where} has no label: add {key}.cls, or put it in a folder named after its class.")
    return text
