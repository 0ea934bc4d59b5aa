"""Folders of photos, in the same order on every machine; imports no torch."""

import importlib.util
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from ._errors import InputError

# The endings that torchvision's ImageFolder accepts, and those of the other formats that `cots.read_image` reads.
IMAGE_ENDINGS = (
    ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif", ".avif",
)  # fmt: skip
HEIF_ENDINGS = (".heic", ".heif")  # read if pillow-heif is installed
_IGNORED = (*HEIF_ENDINGS, ".jp2", ".jxl", ".cr2", ".cr3", ".dng", ".nef", ".arw", ".svg")


def refuse_url(path: object) -> None:
    """Refuse a web address in place of a file; as a `Path` it has only one slash."""
    address = re.sub(r"^(\w+):/+", r"\1://", str(path)[:200])
    if re.match(r"(?i)(https?|ftp|s3|gs)://", address):
        raise InputError(f"{address}: cots does not download photos. Save it first, then pass the file.")


@cache
def image_endings() -> tuple[str, ...]:
    """The endings of the files that count as images."""
    if importlib.util.find_spec("pillow_heif") is None:
        return IMAGE_ENDINGS
    return IMAGE_ENDINGS + HEIF_ENDINGS


def is_image(name: str) -> bool:
    """Whether a file counts as an image; macOS leaves files with a leading dot next to images."""
    return name.lower().endswith(image_endings()) and not name.startswith(".")


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
            if name.lower().endswith(_IGNORED) and not name.startswith(".") and not is_image(name):
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
