"""Photos that show several things: a CSV with path,label and label;label, or one row per label."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._errors import InputError, unknown_name
from ..classes import clean_name, read_classes
from ._open import csv_rows


@dataclass(frozen=True, kw_only=True)
class LabelledPhotos:
    """Photos, class names, and whether each photo shows each class (photos, classes)."""

    files: tuple[Path, ...]
    classes: tuple[str, ...]
    labels: NDArray[np.bool_] = field(repr=False)


def open_present(file: str | Path, classes: Any = None) -> LabelledPhotos:
    """Read the list. A photo with an empty label shows none of the classes; relative paths start at the CSV's folder.

    classes: as for `read_classes`; default: the sorted labels.
    """
    path = Path(file)
    what = f"CSV {str(path)!r}"
    if path.suffix.lower() != ".csv" or not path.is_file():
        raise InputError(f"{str(path)!r} is not a CSV file. For several classes per photo, list path,label;label.")
    shown: dict[str, list[str]] = {}
    line_of: dict[str, int] = {}
    for line, photo, cell in csv_rows(path, what, empty_labels=True):
        labels = shown.setdefault(photo, [])
        for label in filter(None, map(clean_name, cell.split(";"))):
            labels.append(label)
            line_of.setdefault(label, line)
    if not line_of:
        raise InputError(f"{what} has no labels. Write path,label;label.")
    names = tuple(sorted(line_of)) if classes is None else read_classes(classes)
    position = {name: k for k, name in enumerate(names)}
    for label, line in line_of.items():
        if label not in position:
            raise unknown_name(f"label in {what}, line {line}:", label, names, "Add it to the classes.")
    table = np.zeros((len(shown), len(names)), dtype=bool)
    for row, labels in enumerate(shown.values()):
        table[row, [position[label] for label in labels]] = True
    files = tuple(Path(os.path.join(path.parent, photo)) for photo in shown)
    return LabelledPhotos(files=files, classes=names, labels=table)
