"""open_dataset: one way in for protocols, folders, tar files and lists."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from .._errors import InputError
from ._coop import open_protocol
from ._dataset import Dataset
from ._files import listing, subfolders
from ._own import open_csv, open_folder
from ._protocols import find_protocol, is_protocol
from ._tar import expand, is_tar_pattern, open_tar

_FORMS = "a folder with one folder a class, shards such as data-{0000..0003}.tar, or a .csv with the header path,label"


def open_dataset(
    spec: str | os.PathLike[str], root: str | os.PathLike[str] | None = None, classes_file: str | Path | None = None
) -> Dataset:
    """Open one of the fifteen protocols by name, or data of your own.

        open_dataset("pets", root="data")                          # data/oxford_pets, in CoOp's layout
        open_dataset("photos/")                                    # one folder a class
        open_dataset("shards-{0000..0003}.tar", classes_file="names.txt")
        open_dataset("list.csv")                                   # header path,label

    spec: a protocol's name or alias, which needs `root`, or a path (absolute, or relative to the current folder or to
    `root`). A bare protocol name always means the protocol; write ./pets for a folder of your own with that name.
    classes_file: one name a line, a JSON list, or a JSON object that maps folders (or old names) to names.
    """
    text = os.fspath(spec)
    if not text:
        raise InputError(f"the dataset's name is empty: give a protocol such as 'pets', or {_FORMS}.")
    if isinstance(spec, str) and is_protocol(text):
        protocol = find_protocol(text)
        if root is None:
            raise InputError(
                f"{text!r} is the protocol {protocol.title}: give root, the folder that holds {protocol.folder}/. "
                f"For a folder of your own with that name write {os.path.join('.', text)!r}."
            )
        return open_protocol(protocol, Path(root), classes_file)
    base = Path(root) if root is not None else None
    if is_tar_pattern(text):
        below = str(base / text) if base is not None and not os.path.isabs(text) else text
        return open_tar(text if _any_exists(text) or not _any_exists(below) else below, classes_file)
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
        raise InputError(f"dataset {text!r} is a file of a kind that cannot be read: give {_FORMS}.")
    if isinstance(spec, str) and os.path.basename(text) == text and not path.suffix:
        _ = find_protocol(text)  # raises, with the nearest name
    parent = next((p for p in path.absolute().parents if p.is_dir()), Path("/"))
    raise InputError(
        f"dataset {text!r} does not exist: {str(parent)!r} holds {listing(parent)}. Give a protocol such as 'pets', "
        f"or {_FORMS}."
    )


def _any_exists(pattern: str) -> bool:
    return any(os.path.exists(file) for file in expand(pattern))
