"""Your own data: a folder with one folder a class, or a CSV of path,label."""

from __future__ import annotations

import csv
import os
from pathlib import Path

from .._errors import InputError
from ._dataset import Dataset, Sample
from ._files import images_below, is_image, listing, need_folder, need_some, safe_name, shorten, subfolders
from ._names import NAME_FILES, ClassFile, name_folders, number_labels
from ._protocols import PROTOCOLS, is_protocol

_SPLITS = {"train", "training", "val", "valid", "validation", "test"}


def own_name(*parts: str) -> str:
    """A name for results from the last telling part of a path; never the name of a protocol.

    >>> own_name("photos", "val"), own_name("data", "pets")
    ('photos-val', 'pets-own')
    """
    last = parts[-1]
    telling = last if last.casefold() not in _SPLITS | {"images", ""} else "-".join(parts[-2:])
    name = safe_name(telling)
    return f"{name}-own" if is_protocol(name) else name


def class_file(given: str | Path | None, *places: Path, folders: tuple[str, ...] = ()) -> ClassFile | None:
    """The class file that was given, else the first of the usual names in `places`."""
    if given is not None:
        return ClassFile(given, folders)
    beside = (place / name for place in places for name in NAME_FILES)
    found = next((file for file in beside if file.is_file()), None)
    return ClassFile(found, folders) if found else None


def open_folder(folder: Path, classes_file: str | Path | None = None) -> Dataset:
    """One folder a class, as torchvision's ImageFolder reads it: the same files, order and labels.

    Names come from `classes_file`, else from a classnames.txt, classes.txt or classes.json in the folder, else from
    open_clip when the folders are ImageNet synsets, else from the folders.
    """
    need_folder(folder, "image folder")
    folders = tuple(subfolders(folder))
    _refuse_other_layouts(folder, folders)
    samples: list[Sample] = []
    empty = []
    for label, name in enumerate(folders):
        before = len(samples)
        samples += [Sample(relative, label, full) for relative, full in images_below(folder, name)]
        if len(samples) == before:
            empty.append(name)
    if empty:
        raise InputError(
            f"image folder {str(folder)!r}: {len(empty)} of its {len(folders)} class folders hold no image "
            f"({shorten(empty)}). Remove them or put images there."
        )
    names, origin = name_folders(folders, class_file(classes_file, folder, folders=folders))
    name = own_name(*folder.resolve().parts[-2:])
    return Dataset(name=name, title=name, classes=names, samples=tuple(samples), where=str(folder), names_from=origin)


def _refuse_other_layouts(folder: Path, folders: tuple[str, ...]) -> None:
    for protocol in PROTOCOLS.values():
        if protocol.split and (folder / protocol.split).exists():
            raise InputError(
                f"{str(folder)!r} is {protocol.title} in CoOp's layout, not one folder a class: open {protocol.name!r} "
                f"with the data folder {str(folder.resolve().parent)!r}."
            )
    inside = [p.name for p in PROTOCOLS.values() if p.split and (folder / p.folder / p.split).exists()]
    if inside:
        raise InputError(
            f"{str(folder)!r} is a data folder with {', '.join(inside)} in it, not one folder a class: open "
            f"{inside[0]!r} with it as root."
        )
    splits = [name for name in folders if name.casefold() in _SPLITS]
    if splits and len(splits) == len(folders):
        raise InputError(
            f"the folders in {str(folder)!r} are splits, not classes ({', '.join(splits)}): give one of them, such as "
            f"{str(folder / splits[-1])!r}."
        )
    if folders:
        return
    if any(is_image(name) for name in os.listdir(folder)):
        raise InputError(
            f"{str(folder)!r} holds images but no class folders: put each class into a folder of its own, or write a "
            "CSV with the header path,label."
        )
    raise InputError(
        f"{str(folder)!r} holds {listing(folder)}, but no class folders: expected one folder a class with its images."
    )


def open_csv(file: Path, root: Path | None = None, classes_file: str | Path | None = None) -> Dataset:
    """A list with the header path,label (more columns are ignored); labels are class names or places in the class file.

    Relative paths start at the CSV's folder, or else at `root`. Without a class file the sorted labels are the classes.
    """
    what = f"CSV {str(file)!r}"
    rows = _rows(file, what)
    base = file.parent
    first = rows[0][1]
    if root is not None and (root / first).exists() and not (base / first).exists():
        base = root
    labels, classes, origin = number_labels(
        [label for _, _, label in rows],
        class_file(classes_file, file.parent),
        what,
        [f"line {line}" for line, _, _ in rows],
    )
    samples = tuple(
        Sample(_identity(path, base), label, os.path.join(base, path))
        for (_, path, _), label in zip(rows, labels, strict=True)
    )
    need_some(samples, what, f"Relative paths start at {str(base)!r}.")
    name = own_name(file.resolve().parent.name, file.stem)
    return Dataset(name=name, title=name, classes=classes, samples=samples, where=str(file), names_from=origin)


def _identity(path: str, base: Path) -> str:
    """An id that does not change when the whole folder moves, even where the list has absolute paths."""
    inside = os.path.isabs(path) and Path(path).is_relative_to(base.absolute())
    return os.path.normpath(os.path.relpath(path, base) if inside else path).replace(os.sep, "/")


def _rows(file: Path, what: str) -> list[tuple[int, str, str]]:
    try:
        with open(file, encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream)
            header = [cell.strip().casefold() for cell in next(reader, [])]
            if "path" not in header or "label" not in header:
                shown = ",".join(header) or "empty"
                raise InputError(
                    f"{what} has no header: its first line must name the columns, path,label, but is {shown[:80]!r}."
                )
            path_at, label_at = header.index("path"), header.index("label")
            rows = []
            for row in reader:
                if not any(cell.strip() for cell in row):
                    continue
                if len(row) <= max(path_at, label_at) or not row[path_at].strip() or not row[label_at].strip():
                    raise InputError(f"{what}, line {reader.line_num}: path or label is missing in {','.join(row)!r}.")
                rows.append((reader.line_num, row[path_at].strip(), row[label_at].strip()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{what} cannot be read ({error}): it must be UTF-8 text with commas.") from error
    if not rows:
        raise InputError(f"{what} lists no image: write one path,label a line below the header.")
    return rows
