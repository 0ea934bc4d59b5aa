"""open_dataset: one way in for protocols, folders, CSV lists and tar files."""

from __future__ import annotations

import csv
import glob
import os
from pathlib import Path

from .._errors import InputError
from ._dataset import Dataset, Sample
from ._files import images_below, listing, require_images, shorten, subfolders
from ._names import ClassFile, index_labels, name_folders
from ._protocols import PROTOCOLS, SPLIT_FOLDERS, find_protocol, is_protocol, open_protocol, own_name
from ._tar import expand, is_tar_pattern, open_tar

_FORMS = "a folder with one subfolder per class, shards such as data-{0000..0003}.tar, or a CSV with columns path,label"


def open_dataset(
    spec: str | os.PathLike[str], root: str | os.PathLike[str] | None = None, classes_file: str | Path | None = None
) -> Dataset:
    """Open one of the fifteen protocols by name, or data of your own.

        open_dataset("pets", root="data")                          # data/oxford_pets, in CoOp's layout
        open_dataset("photos/")                                    # one folder per class
        open_dataset("shards-{0000..0003}.tar", classes_file="names.txt")
        open_dataset("list.csv")                                   # header path,label

    spec: a protocol's name or alias, which needs `root`, or a path (absolute, or relative to the current folder or to
    `root`). A bare protocol name always means the protocol; write ./pets for a folder of your own with that name.
    classes_file: one name per line, a JSON list, or a JSON object that maps folders (or old names) to names.
    """
    text = os.fspath(spec)
    if not text:
        raise InputError(f"the dataset's name is empty: give a protocol such as 'pets', or {_FORMS}.")
    if isinstance(spec, str) and is_protocol(text):
        protocol = find_protocol(text)
        if root is None:
            raise InputError(
                f"{text!r} is the protocol {protocol.title}: give root, the folder that contains {protocol.folder}/. "
                f"For a folder of your own with that name write {os.path.join('.', text)!r}."
            )
        return open_protocol(protocol, Path(root), classes_file)
    base = Path(root) if root is not None else None
    if is_tar_pattern(text):
        below = str(base / text) if base is not None and not os.path.isabs(text) else text
        use_below = any(map(os.path.exists, expand(below))) and not any(map(os.path.exists, expand(text)))
        return open_tar(below if use_below else text, classes_file)
    path = Path(text).expanduser()
    if not path.exists() and base is not None and (base / path).exists():
        path = base / path
    if path.is_dir():
        if any(path.glob("*.tar")) and not subfolders(path):
            return open_tar(os.path.join(glob.escape(str(path)), "*.tar"), classes_file)
        return open_folder(path, classes_file)
    if path.is_file():
        if path.suffix.lower() == ".csv":
            return open_csv(path, base, classes_file)
        raise InputError(f"dataset {text!r} is a file of an unknown kind: give {_FORMS}.")
    if isinstance(spec, str) and os.path.basename(text) == text and not path.suffix:
        find_protocol(text)  # raises, and suggests the nearest name
    parent = next((p for p in path.absolute().parents if p.is_dir()), Path("/"))
    raise InputError(
        f"dataset {text!r} does not exist: {str(parent)!r} contains {listing(parent)}. Give a protocol such as 'pets', "
        f"or {_FORMS}."
    )


def open_folder(folder: Path, classes_file: str | Path | None = None) -> Dataset:
    """One folder per class, as torchvision's ImageFolder reads it: the same files, order and labels.

    Names come from `classes_file`, else from a classnames.txt, classes.txt or classes.json in the folder, else from
    open_clip when the folders are ImageNet synsets, else from the folders.
    """
    folders = tuple(subfolders(folder))
    _refuse_other_layouts(folder, folders)
    below = [(label, *paths) for label, name in enumerate(folders) for paths in images_below(folder, name)]
    samples = tuple(Sample(relative, label, full) for label, relative, full in below)
    used = {sample.label for sample in samples}
    empty = [name for label, name in enumerate(folders) if label not in used]
    if empty:
        raise InputError(
            f"image folder {str(folder)!r}: {len(empty)} of its {len(folders)} class folders have no images "
            f"({shorten(empty)}). Remove them or add images."
        )
    names, names_from = name_folders(folders, ClassFile.find(classes_file, folder, classes=folders))
    name = own_name(*folder.resolve().parts[-2:])
    return Dataset(name=name, title=name, classes=names, samples=samples, where=str(folder), names_from=names_from)


def _refuse_other_layouts(folder: Path, folders: tuple[str, ...]) -> None:
    for protocol in PROTOCOLS.values():
        split = protocol.split or "/"
        inside = (folder / split).is_file()
        if inside or (folder / protocol.folder / split).is_file():
            root = folder.resolve().parent if inside else folder
            raise InputError(
                f"{str(folder)!r} is in CoOp's layout: open {protocol.name!r} with the data folder {str(root)!r}."
            )
    if folders and all(name.casefold() in SPLIT_FOLDERS for name in folders):
        raise InputError(
            f"the folders in {str(folder)!r} are splits, not classes ({', '.join(folders)}): open one of them, such as "
            f"{str(folder / folders[-1])!r}."
        )
    if not folders:
        raise InputError(
            f"{str(folder)!r} has no class folders; it contains {listing(folder)}. Give each class its own folder, "
            "or write a CSV with the header path,label."
        )


def open_csv(file: Path, root: Path | None = None, classes_file: str | Path | None = None) -> Dataset:
    """A list with the header path,label; other columns are ignored. Labels are names, or positions in the class file.

    Relative paths start at the CSV's folder, or else at `root`. Without a class file the sorted labels are the classes.
    """
    what = f"CSV {str(file)!r}"
    rows = _rows(file, what)
    base = file.parent
    first = rows[0][1]
    if root is not None and (root / first).exists() and not (base / first).exists():
        base = root
    class_file = ClassFile.find(classes_file, file.parent)
    labels, names, names_from = index_labels(
        [label for _, _, label in rows], class_file, what, [f"line {line}" for line, _, _ in rows]
    )
    samples = tuple(
        Sample(_identity(path, base), label, os.path.join(base, path))
        for (_, path, _), label in zip(rows, labels, strict=True)
    )
    require_images(samples, what, f"Relative paths start at {str(base)!r}.")
    name = own_name(file.resolve().parent.name, file.stem)
    return Dataset(name=name, title=name, classes=names, samples=samples, where=str(file), names_from=names_from)


def _identity(path: str, base: Path) -> str:
    """An id that does not change when the whole folder moves, even where the list has absolute paths."""
    inside = os.path.isabs(path) and Path(path).is_relative_to(base.absolute())
    return os.path.normpath(os.path.relpath(path, base) if inside else path).replace(os.sep, "/")


def _rows(file: Path, what: str) -> list[tuple[int, str, str]]:
    """(line number, path, label) of every row."""
    try:
        with open(file, encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream)
            header = [cell.strip().casefold() for cell in next(reader, [])]
            if "path" not in header or "label" not in header:
                shown = ",".join(header)[:80] or "empty"
                raise InputError(f"{what}: the first line must be the header path,label, but is {shown!r}.")
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
        raise InputError(f"{what} lists no images: write one path,label per line below the header.")
    return rows
