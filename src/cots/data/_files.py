"""Files of a dataset: folders of images in the same order on every machine, and class names from files or labels."""

import glob
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from .._errors import InputError, unknown_name
from ..prompts import clean_name, clean_names, imagenet_names

# The endings that torchvision's ImageFolder accepts, so that both read the same files.
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
# Image formats that are ignored in folders; some can be read if the file itself is given.
OTHER_ENDINGS = (".avif", ".gif", ".heic", ".heif", ".jp2", ".jxl", ".cr2", ".cr3", ".dng", ".nef", ".arw", ".svg")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
MAX_CLASS_FILE = 2**23  # bytes
CLASS_FILES = ("classnames.txt", "classes.txt", "classes.json")
BY_SYNSET = "open_clip, by synset"


def sample_photos() -> Path:
    """The folder of the photos that ship with cots."""
    folder = Path(__file__).parents[1] / "embedded" / "photos"
    # A clone has them only in examples/.
    return folder if folder.is_dir() else Path(__file__).parents[3] / "examples" / "photos"


def is_image(name: str) -> bool:
    """Whether a file counts as an image; macOS leaves files with a leading dot next to images."""
    return name.lower().endswith(IMAGE_ENDINGS) and not name.startswith(".")


def subfolders(folder: Path) -> list[str]:
    """Names of the folders in `folder`, sorted as text ("10" before "2"), without hidden folders."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if _is_folder(entry) and not entry.name.startswith("."))


def images_below(folder: Path, name: str = "") -> Iterator[tuple[str, str]]:
    """(path relative to `folder`, full path) of the images below folder/name, in torchvision's order."""
    for parent, files in sorted(_walk(folder / name)):
        below = os.path.relpath(parent, folder).replace(os.sep, "/")
        for file in sorted(files):
            if is_image(file):
                yield f"{below}/{file}", os.path.join(parent, file)


def skipped_images(folder: Path) -> Counter[str]:
    """Number of images below `folder` in formats that `images_below` ignores, by ending."""
    counts: Counter[str] = Counter()
    for _, files in _walk(folder):
        for name in files:
            if name.lower().endswith(OTHER_ENDINGS) and not name.startswith("."):
                counts[os.path.splitext(name.lower())[1]] += 1
    return counts


def _walk(folder: Path | str) -> Iterator[tuple[str, list[str]]]:
    """(folder, its files) at any depth; follows links, except to a folder that contains the link.

    A dangling link or a named pipe counts as a file and fails when it is read.
    """
    for parent, folders, files in os.walk(folder, onerror=_refuse_unlisted, followlinks=True):
        folders[:] = [name for name in folders if not _is_cycle(os.path.join(parent, name))]
        yield parent, files


def _refuse_unlisted(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        problem = f"The folder {error.filename!r} cannot be listed ({error.strerror}). Check its permissions."
        raise InputError(problem) from None


def _is_cycle(link: str) -> bool:
    """Whether a folder is a link to one of the folders above it."""
    return os.path.islink(link) and any(os.path.samefile(link, above) for above in Path(link).parents)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


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


def listing(folder: Path) -> str:
    """What `folder` contains, for an error: 'annotations/, images/ and 3 more', or 'nothing'."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name + ("/" if _is_folder(entry) else "") for entry in entries)
    return shorten(names) if names else "nothing"


def nearest_folder(path: Path) -> str:
    """The nearest folder above `path` that exists and what it contains, for an error."""
    parent = next((p for p in path.absolute().parents if p.is_dir()), Path("/"))
    return f"{str(parent)!r} contains {listing(parent)}"


def shorten(names: Sequence[str], limit: int = 6) -> str:
    """The first names of a list, for an error."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def require_folder(folder: Path, what: str) -> None:
    """Refuse a folder that does not exist or cannot be listed."""
    if not folder.exists():
        raise InputError(f"{what} {str(folder)!r} does not exist: {nearest_folder(folder)}. Check the path.")
    if not folder.is_dir():
        raise InputError(f"{what} {str(folder)!r} is a file; pass the folder that contains it.")


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
            with open(file.path, "rb") as opened:
                data = opened.read(MAX_CLASS_FILE + 1)
            if len(data) > MAX_CLASS_FILE:
                raise InputError(f"{file} is larger than {MAX_CLASS_FILE >> 20} MiB. Write one class name per line.")
            text = data.decode("utf-8-sig")
        except FileNotFoundError:
            raise InputError(f"{file} does not exist. Check the path.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file} cannot be read ({error}). It must be UTF-8 text.") from error
        if file.path.suffix.lower() == ".json":
            keys, names = file._parse_json(text)
        else:
            keys, names = _parse_lines(text, classes)
        if not names:
            raise InputError(f"{file} is empty. Write one class name per line.")
        return cls(file.path, clean_names(names, str(file)), keys)

    @classmethod
    def find(cls, given: str | Path | None, *folders: Path, classes: Sequence[str] = ()) -> Self | None:
        """The class file that was given, else the first one in `folders`, else None."""
        if given is not None:
            return cls.read(given, classes)
        for folder, name in itertools.product(folders, CLASS_FILES):
            if (folder / name).is_file():
                return cls.read(folder / name, classes)
        return None

    def __str__(self) -> str:
        return f"class file {str(self.path)!r}"

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


def name_folders(folders: Sequence[str], file: ClassFile | None) -> tuple[tuple[str, ...], str]:
    """Class names of class folders, and their source."""
    if file is not None:
        return file.names_for(folders, "class folders"), str(file.path)
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
            f"(classes_file=, or --classes), or save it next to the data as {CLASS_FILES[0]}."
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
    return table, file.names, str(file.path)


def _are_numbers(labels: Iterable[str]) -> bool:
    return all(label.isdecimal() and label.isascii() for label in labels)
