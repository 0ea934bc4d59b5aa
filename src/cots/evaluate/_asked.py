"""The files of `cots check --ask`: photos to label in a table, and what is known about them beside it.

ask.csv     path, prediction, confidence, asking_probability, label: one row per photo, for a person
ask.pool    the draw, all confidences and the predictions of the photos in the table, with a checksum
"""

from __future__ import annotations

import csv
import io
import json
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
from ..conformal import Draw, Setup
from ..methods import Prediction
from ._labels import NOBODY, NONE, Labels

COLUMNS = ("path", "prediction", "confidence", "asking_probability", "label")
POOL = ".pool"  # ending of the file beside the table
KIND = "cots ask 1"
_DRAW = ("confidence", "photos", "probability", "heads", "place", "least", "most")
_REMEDY = "Ask again with cots check --ask."


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Photos that were drawn from a folder to be labelled, in the order of the draw, with their predictions.

    paths: as in the table, relative to its folder. hashes: of the photos, for `Policy.photos`.
    """

    setup: Setup
    draw: Draw
    paths: tuple[str, ...] = field(repr=False)
    predictions: tuple[Prediction, ...] = field(repr=False)
    hashes: tuple[str, ...] = field(default=(), repr=False)

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
        answers = [prediction.label for prediction in self.predictions]
        about = {"paths": self.paths, "labels": answers, "hashes": self.hashes}
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
            sizes = {len(about["paths"]), len(predictions), len(drawn), len(about.get("hashes") or drawn)}
            if len(sizes) > 1:
                raise ValueError("it has other numbers of photos and predictions")
            paths, hashes = tuple(about["paths"]), tuple(about.get("hashes", ()))
            return cls(setup=setup, draw=drawn, paths=paths, predictions=predictions, hashes=hashes)
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
