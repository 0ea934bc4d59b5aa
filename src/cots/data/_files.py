"""Folders: what is in them, in an order that is the same on every machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from .._errors import InputError
from ._dataset import Sample

# The endings that torchvision's ImageFolder takes, so that both see the same files.
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def is_image(name: str) -> bool:
    """Whether a file counts as an image; names with a leading dot are what macOS leaves behind."""
    return name.lower().endswith(IMAGE_ENDINGS) and not name.startswith(".")


def subfolders(folder: Path) -> list[str]:
    """Names of the folders in `folder`, sorted as text ("10" before "2"), hidden ones left out."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def images_below(folder: Path, name: str) -> Iterator[tuple[str, str]]:
    """(path relative to `folder`, full path) of the images below folder/name, in torchvision's order."""
    for place, files in sorted(_walk(os.path.join(folder, name), ())):
        below = os.path.relpath(place, folder).replace(os.sep, "/")
        for file in sorted(files):
            if is_image(file):
                yield f"{below}/{file}", os.path.join(place, file)


def _walk(folder: str, above: tuple[tuple[int, int], ...]) -> Iterator[tuple[str, list[str]]]:
    """(folder, its files) at any depth through links, except a link to a folder that it lies in: it never ends."""
    try:
        found = os.stat(folder)
        with os.scandir(folder) as entries:
            # Not a named pipe: opening it would wait for ever. A link to nothing is told of when it is read.
            there = [(e.name, e.is_dir()) for e in entries if e.is_dir() or e.is_file() or e.is_symlink()]
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"The folder {folder!r} cannot be listed ({error.strerror}): check its permissions.") from None
    here = (found.st_dev, found.st_ino)
    if here in above:
        return
    yield folder, [name for name, is_folder in there if not is_folder]
    for name, is_folder in there:
        if is_folder:
            yield from _walk(os.path.join(folder, name), (*above, here))


def listing(folder: Path, limit: int = 6) -> str:
    """The first names in `folder`, for a message: 'annotations/, images/ and 3 more', or 'nothing'.

    >>> import tempfile
    >>> listing(Path(tempfile.mkdtemp()))
    'nothing'
    """
    with os.scandir(folder) as entries:
        names = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in entries)
    return shorten(names, limit) if names else "nothing"


def shorten(names: Sequence[str], limit: int = 6) -> str:
    """The first names of a list, for a message.

    >>> shorten(["a", "b", "c"], limit=2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def need_folder(folder: Path, what: str) -> None:
    """Refuse a folder that does not exist or cannot be listed."""
    if not folder.exists():
        parent = next((p for p in folder.parents if p.is_dir()), None)
        there = f" {str(parent)!r} holds {listing(parent)}." if parent is not None else ""
        raise InputError(f"{what} {str(folder)!r} does not exist.{there} Check the path.")
    if not folder.is_dir():
        raise InputError(f"{what} {str(folder)!r} is a file; give the folder that holds it.")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise InputError(f"{what} {str(folder)!r} cannot be listed: check its permissions.")


def need_some(samples: Sequence[Sample], what: str, remedy: str) -> None:
    """Refuse a list of which none of a few spread samples is on disk: one that is missing becomes a record later."""
    tried = samples[:: max(1, len(samples) // 8)]
    if not any(isinstance(s.source, str) and os.path.exists(s.source) for s in tried):
        raise InputError(
            f"{what}: none of {len(tried)} images tried was found; the first is {str(tried[0].source)!r}. {remedy}"
        )


def safe_name(text: str) -> str:
    """`text` as a name for a folder of results.

    >>> safe_name("My photos/é 2024")
    'My-photos-2024'
    """
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.") or "data"
