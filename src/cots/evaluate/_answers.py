"""Labels from the files that people filled: the table of `cots check --ask`, or an export of Label Studio.

The table is read for its labels only, so a spreadsheet may round numbers or sort rows.
"""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import msgspec

from .._errors import InputError
from ._asked import COLUMNS, POOL, Asked
from ._labels import Labels


def read_table(table: Path, asked: Asked) -> Labels:
    """The labels in a table that `Asked.save` wrote and a person filled; refuse a table of another draw."""
    header, rows = _cells(table)
    missing = [name for name in ("path", "asking_probability", "label") if name not in header]
    if missing:
        raise InputError(
            f"{table} has no column {missing[0]}. Without the probability with which each photo was asked for, labels "
            "of photos that were not drawn uniformly say nothing about the others. Restore the column."
        )
    expected = dict(zip(asked.paths, asked.draw.probability, strict=True))
    answers: dict[str, str] = {}
    for line, row in rows:
        cells = dict(zip(header, row, strict=False))
        path = cells["path"]
        if path in answers:
            raise InputError(f"{table}, line {line}: {path} is there twice. Delete one of the two.")
        given = cells.get("asking_probability", "").replace(",", ".")
        if path in expected and not _near(given, expected[path]):
            raise InputError(
                f"{table}, line {line}: asking_probability is {given or 'missing'}, but {path} was drawn with "
                f"{expected[path]:.6g}. Use the table that was written with {table.with_suffix(POOL).name}."
            )
        answers[path] = cells.get("label", "")
    return asked.labels(answers, str(table))


def is_asked(table: Path) -> bool:
    """Whether a file is a table of photos to label, or was one before somebody deleted a column or renamed it."""
    if table.suffix.lower() != ".csv" or not table.is_file():
        return False
    if table.with_suffix(POOL).is_file():
        return True
    header = set(_cells(table)[0])
    return "asking_probability" in header or header == set(COLUMNS) - {"asking_probability"}


def count_labels(table: Path) -> int:
    """Number of rows with a label in a table of photos to label."""
    header, rows = _cells(table)
    if "label" not in header:
        return 0
    at = header.index("label")
    return sum(len(row) > at and bool(row[at]) for _, row in rows)


def read_export(file: Path) -> Labels:
    """The labels of an export of Label Studio (JSON) whose tasks `cots check --ask --format label-studio` wrote."""
    try:
        tasks = msgspec.json.decode(file.read_bytes(), type=list[_Task])
        tables = {task.data.table for task in tasks}
        if len(tables) != 1:
            raise ValueError(f"its tasks belong to {len(tables)} tables")
    except FileNotFoundError:
        raise InputError(f"{file}: no such file.") from None
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise InputError(
            f"{file} is not an export of Label Studio (JSON) with tasks of cots check --ask ({error})."
        ) from None
    answers = {task.data.path: task.label() for task in tasks}
    return Asked.load(Path(tables.pop())).labels(answers, str(file))


class _Photo(msgspec.Struct):
    path: str
    table: str


class _Value(msgspec.Struct):
    choices: list[str] = []


class _Result(msgspec.Struct):
    value: _Value


class _Annotation(msgspec.Struct):
    result: list[_Result]
    was_cancelled: bool = False


class _Task(msgspec.Struct):
    data: _Photo
    annotations: list[_Annotation] = []

    def label(self) -> str:
        """The choice of the last annotation; empty without one."""
        label = ""
        for annotation in self.annotations:
            for result in annotation.result:
                if result.value.choices and not annotation.was_cancelled:
                    label = result.value.choices[0]
        return label


def _near(text: str, value: float) -> bool:
    try:
        return math.isclose(float(text), value, rel_tol=0.01)  # spreadsheets may round
    except ValueError:
        return False


def _cells(table: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header in lower case, and the rows with their line numbers, separated by commas or, in Europe, semicolons."""
    try:
        text = table.read_text("utf-8-sig")
        first = text.partition("\n")[0]
        reader = csv.reader(
            io.StringIO(text, newline=""), delimiter=";" if first.count(";") > first.count(",") else ","
        )
        header = [cell.strip().casefold() for cell in next(reader, [])]
        rows = []
        for row in reader:
            if "".join(row).strip():
                rows.append((reader.line_num, [cell.strip() for cell in row]))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{table} cannot be read ({error}). Save it as UTF-8 text with commas.") from error
    return header, rows
