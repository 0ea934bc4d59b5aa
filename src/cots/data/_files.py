"""Folders: images in the same order on every machine, and errors that list the content of a folder."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from .._errors import InputError
from ._dataset import Sample

# The endings that torchvision's ImageFolder accepts, so that both read the same files.
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
# Image formats that are ignored in folders; some can be read if the file itself is given.
OTHER_ENDINGS = (".avif", ".gif", ".heic", ".heif", ".jp2", ".jxl", ".cr2", ".cr3", ".dng", ".nef", ".arw", ".svg")


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
    for place, files in sorted(_walk(os.path.join(folder, name), ())):
        below = os.path.relpath(place, folder).replace(os.sep, "/")
        for file in sorted(files):
            if is_image(file):
                yield f"{below}/{file}", os.path.join(place, file)


def skipped_images(folder: Path) -> Counter[str]:
    """Number of images below `folder` in formats that `images_below` ignores, by ending."""
    names = (name.lower() for _, files in _walk(str(folder), ()) for name in files if not name.startswith("."))
    return Counter(os.path.splitext(name)[1] for name in names if name.endswith(OTHER_ENDINGS))


def _walk(folder: str, above: tuple[tuple[int, int], ...]) -> Iterator[tuple[str, list[str]]]:
    """(folder, its files) at any depth; follows links, except to a folder that contains the link."""
    try:
        found = os.stat(folder)
        with os.scandir(folder) as entries:
            # A dangling link or a named pipe counts as a file and fails when it is read.
            inside = [(entry.name, _is_folder(entry)) for entry in entries]
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"The folder {folder!r} cannot be listed ({error.strerror}). Check its permissions.") from None
    here = (found.st_dev, found.st_ino)
    if here in above:
        return
    yield folder, [name for name, is_folder in inside if not is_folder]
    for name, is_folder in inside:
        if is_folder:
            yield from _walk(os.path.join(folder, name), (*above, here))


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


def require_images(samples: Sequence[Sample], what: str, remedy: str) -> None:
    """Refuse an empty list, or one without any of a few spot-checked files; single gaps become error records."""
    if not samples:
        raise InputError(f"{what} lists no images. {remedy}")
    checked = samples[:: max(1, len(samples) // 8)]
    if not any(isinstance(s.source, str) and os.path.exists(s.source) for s in checked):
        raise InputError(
            f"{what}: none of {len(checked)} spot-checked images exists; the first is {str(checked[0].source)!r}. "
            f"{remedy}"
        )
