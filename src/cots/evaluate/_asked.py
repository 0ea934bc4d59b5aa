"""The files of `cots check --ask`: photos to label in a table, and what is known about them beside it.

    ask.csv     path, prediction, confidence, asking_probability, label: one row per photo, for a person
    ask.pool    the draw, all confidences and the predictions of the photos in the table, with a checksum

The table is read for its labels only, so a spreadsheet may round numbers or sort rows.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import torch

from .._checked import read_tensors, write_tensors
from .._errors import InputError, unknown_name
from .._files import write_whole
from ..classes import clean_name
from ..conformal import AskedAccuracy, Draw, Setup
from ..methods import Prediction
from ._check import ENOUGH

COLUMNS = ("path", "prediction", "confidence", "asking_probability", "label")
POOL = ".pool"  # ending of the file beside the table
KIND = "cots ask 1"
NONE, NOBODY = "none of these", "?"  # labels that are not in the list: the answer is wrong; nobody can tell
_DRAW = ("confidence", "photos", "probability", "heads", "place", "least", "most")
_REMEDY = "Ask again with cots check --ask."


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Photos that were drawn from a folder to be labelled, in the order of the draw, with their predictions.

    paths: as in the table, relative to its folder.
    """

    setup: Setup
    draw: Draw
    paths: tuple[str, ...] = field(repr=False)
    predictions: tuple[Prediction, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.paths)

    def rows(self, labels: Sequence[str] = ()) -> list[tuple[str, ...]]:
        """The rows of the table, with COLUMNS; without `labels`, the last one is empty."""
        rows = []
        for at, (path, prediction) in enumerate(zip(self.paths, self.predictions, strict=True)):
            numbers = f"{prediction.confidence:.6f}", f"{self.draw.probability[at]:.6g}"
            rows.append((path, prediction.label or "", *numbers, labels[at] if labels else ""))
        return rows

    def save(self, table: Path) -> Path:
        """Write the pool, then the table, which is of no use without it; the file of the pool."""
        tensors = {}
        for name in _DRAW:
            tensors[name] = torch.from_numpy(np.ascontiguousarray(getattr(self.draw, name)))
        for name in ("probabilities", "in_list", "agreement", "tau"):
            values = np.array([getattr(prediction, name) for prediction in self.predictions])
            tensors[f"predictions.{name}"] = torch.from_numpy(values)
        about = {"paths": self.paths, "labels": [prediction.label for prediction in self.predictions]}
        metadata = {"kind": KIND, "setup": json.dumps(asdict(self.setup)), "photos": json.dumps(about)}
        pool = table.with_suffix(POOL)
        write_tensors(pool, tensors, metadata)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([COLUMNS, *self.rows()])
        write_whole(table, text.getvalue().encode())
        return pool

    @classmethod
    def load(cls, table: Path) -> Self:
        """Read the pool beside a table that `save` wrote."""
        file = table.with_suffix(POOL)
        if not file.is_file():
            raise InputError(
                f"{file}, which cots check --ask wrote beside {table.name}, is missing: without it nobody knows how "
                f"these photos were drawn. Put it back. {_REMEDY}"
            )
        tensors, metadata = read_tensors(file, remedy=_REMEDY)
        try:
            if metadata["kind"] != KIND:
                raise ValueError(f"its kind is not {KIND!r}")
            setup = msgspec.convert(json.loads(metadata["setup"]), Setup)
            about = json.loads(metadata["photos"])
            drawn = Draw(**{name: tensors[name] for name in _DRAW})
            predictions = _predictions(setup, about["labels"], drawn.confidence[drawn.photos], tensors)
            if not len(about["paths"]) == len(predictions) == len(drawn):
                raise ValueError("it has other numbers of photos and predictions")
            return cls(setup=setup, draw=drawn, paths=tuple(about["paths"]), predictions=predictions)
        except (KeyError, IndexError, ValueError, TypeError, msgspec.ValidationError) as error:
            raise InputError(f"{file} is not a file of cots check --ask ({error}). {_REMEDY}") from None

    def labels(self, answers: Mapping[str, str], where: str) -> Labels:
        """The labels by path, as people wrote them in `where`; empty ones and missing photos have none."""
        known = set(self.paths)
        for path in answers:
            if path not in known:
                raise unknown_name(f"photo in {where}:", path, known, "Its photos are not those that were drawn.")
        index = {}
        for at, name in enumerate(self.setup.classes):
            index.setdefault(name, at)
        marks: list[int | str] = []
        unused = 0
        for at, path in enumerate(self.paths):
            label = clean_name(answers.get(path, ""))
            if not label:
                continue
            if label not in index and label not in (NONE, NOBODY):
                hint = f"Use a name of the list, {NONE!r}, or {NOBODY!r} if nobody can tell."
                raise unknown_name(f"label of {path} in {where}:", label, {*index, NONE}, hint)
            if len(marks) == at:  # so far, none was left out
                marks.append(index.get(label, label))
            else:
                unused += 1
        if not marks:
            raise InputError(
                f"{where} has no label for the first photo, {self.paths[0]}. Label the photos in the order of the draw."
            )
        return Labels(asked=self, marks=tuple(marks), unused=unused)


def _predictions(
    setup: Setup, labels: Sequence[str], confidence: np.ndarray, tensors: Mapping[str, np.ndarray]
) -> tuple[Prediction, ...]:
    predictions = []
    for at, label in enumerate(labels):
        signals: dict[str, Any] = {}
        for name in ("in_list", "agreement", "tau"):
            signals[name] = float(tensors[f"predictions.{name}"][at])
        predictions.append(
            Prediction(
                label=label, confidence=float(confidence[at]), classes=setup.classes, method=setup.method,
                probabilities=tensors["predictions.probabilities"][at], **signals,
            )
        )  # fmt: skip
    return tuple(predictions)


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


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The labels of the first photos of a draw: class indices, NONE or NOBODY.

    unused: number of labels after the first photo without one. They are not used, because nobody knows why a person
    left a photo out, so the others would not be a sample.
    """

    asked: Asked
    marks: tuple[int | str, ...]
    unused: int = 0

    def accuracy(self, level: float = 0.95) -> AskedAccuracy:
        """The accuracy on all photos of the folder; see `cots.conformal.Draw.accuracy`."""
        correct = []
        for mark, prediction in zip(self.marks, self.asked.predictions, strict=False):
            right = mark != NONE and prediction.label == self._name(mark)
            correct.append(math.nan if mark == NOBODY else float(right))
        return self.asked.draw.accuracy(correct, level)

    def uniform(self) -> tuple[list[Prediction], list[int]]:
        """Predictions and class indices of the uniform sample, for a policy, without photos of no class."""
        predictions, labels = [], []
        for row in self.asked.draw.uniform_rows(len(self.marks)):
            mark = self.marks[row]
            if isinstance(mark, int):
                predictions.append(self.asked.predictions[row])
                labels.append(mark)
        return predictions, labels

    def _name(self, mark: int | str) -> str:
        return self.asked.setup.classes[mark] if isinstance(mark, int) else mark

    @property
    def enough(self) -> bool:
        """Whether the uniform sample is enough for a policy."""
        return len(self.uniform()[1]) >= ENOUGH

    def lines(self) -> list[str]:
        """What `cots check` prints about the labels, before the verdict on the uniform ones if they are enough."""
        drawn = self.asked.draw
        how = "uniformly " if drawn.heads.all() else ""
        photos = f"{len(self.marks)} of {len(self.asked)} photos labelled, drawn {how}from {len(drawn.confidence):,}"
        lines = [f"{photos}.", *self._estimates(bool(how))]
        if outside := self.marks.count(NONE):
            lines.append(f"{outside} of them show none of the classes; a policy is not about such photos.")
        if unknown := self.marks.count(NOBODY):
            lines.append(f"{unknown} that nobody can tell count as wrong in lower ends and as right in upper ends.")
        if self.unused:
            lines.append(
                f"{self.unused} labels after {self.asked.paths[len(self.marks)]}, which has none, are not used: label "
                f"photos in the order of the draw, or write {NOBODY} if nobody can tell."
            )
        return lines

    def _estimates(self, uniform: bool) -> list[str]:
        """The accuracy: once, unless the labels say different things about this folder and about new photos."""
        found = self.accuracy()
        same = uniform and NONE not in self.marks and NOBODY not in self.marks
        if same and self.enough:
            return []  # the verdict has it
        ends, when = found.interval, ", valid whenever you stop"
        if uniform and found.exact is not None:
            ends, when = found.exact, ""
        lines = [
            f"accuracy {found.accuracy:.1%} (95% interval {_span(ends)}{when}), mean confidence "
            f"{found.mean_confidence:.1%}",
            _verdict(found.mean_confidence - ends[1], found.mean_confidence - ends[0]),
        ]
        if uniform:
            return lines
        if found.normal is not None:
            lines.append(f"For this folder, approximately {_span(found.normal)} (active inference).")
        if found.exact is not None and not self.enough:
            lines.append(f"For new photos, {_span(found.exact)}, from the {found.uniform} uniform labels alone.")
        return lines


def _span(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.1%} to {ends[1]:.1%}"


def _verdict(low: float, high: float) -> str:
    """About the interval of mean confidence minus accuracy."""
    if low <= 0 <= high:
        ends = f"between {-100 * low:.1f} points too low and {100 * high:.1f} points too high"
        return f"The confidence may hold: it is {ends}."
    direction = "high" if low > 0 else "low"
    ends = sorted((abs(low), abs(high)))
    return f"The confidence does not hold: it is {100 * ends[0]:.1f} to {100 * ends[1]:.1f} points too {direction}."
