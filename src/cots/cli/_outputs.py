"""What `cots predict` writes: a table, JSON lines, CSV, or a file for another tool."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from .._errors import InputError

if TYPE_CHECKING:
    from ..methods import Prediction

COLUMNS = (
    "file", "label", "confidence", "abstained", "tau", "alpha", "method", "in_list", "none_of_these", "agreement",
    "views_used", "confidence_low", "confidence_high", "label_set", "node", "rank", "path", "node_probability", "error",
)  # fmt: skip
NONE, UNSURE = "none of these", "unsure"  # printed instead of a class


_BY_SUFFIX = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}


def choose_format(format: str | None, json: bool, csv: bool, out: Path | None) -> str:
    """The format that was named, else that of the file, else a table on a terminal and JSON lines in a pipe."""
    given = [name for name, chosen in ((format, format), ("json", json), ("csv", csv)) if chosen]
    if len(given) > 1:
        raise InputError("--format, --json and --csv cannot be combined; choose one.")
    if given:
        return str(given[0])
    if out is None:
        return "table" if sys.stdout.isatty() else "json"
    if out.suffix.lower() not in _BY_SUFFIX:
        raise InputError(f"--out {out}: name its format with --format, or end it in {', '.join(_BY_SUFFIX)}.")
    return _BY_SUFFIX[out.suffix.lower()]


def open_output(kind: str, files: Sequence[Path], top: int, out: Path | None, title: str) -> Output:
    """The output of a command; `out`: a file in place of standard output. title: of the table's last column."""
    if out is not None and kind == "table":
        raise InputError("--out needs a format for files, such as --format csv; a table is for the terminal.")
    if out is None and kind == "parquet":
        raise InputError("--format parquet writes a file. Name it with --out.")
    if kind in ("json", "csv"):
        stream = sys.stdout if out is None else open(out, "w", encoding="utf-8", newline="")  # noqa: SIM115
        return (Lines if kind == "json" else Csv)(stream, top)
    if kind == "table":
        return Table(files, top, title)
    if kind == "parquet":
        from ..exchange import require_pyarrow

        require_pyarrow()  # before the work
    return Document(kind, top, out)


class Output(Protocol):
    """Takes the predictions as they come; `close` writes what is left."""

    def write(self, file: Path, prediction: Prediction) -> None: ...

    def close(self) -> None:
        """Called once, also when interrupted."""


class Lines(Output):
    """JSON lines."""

    def __init__(self, stream: TextIO, top: int) -> None:
        self._stream, self._top = stream, top

    def write(self, file: Path, prediction: Prediction) -> None:
        print(json.dumps({"file": str(file), **prediction.to_dict(self._top)}), file=self._stream, flush=True)

    def close(self) -> None:
        if self._stream is not sys.stdout:
            self._stream.close()


class Csv(Output):
    """Comma-separated values: ranges in two columns, sets joined by |, and two columns for each top class."""

    def __init__(self, stream: TextIO, top: int) -> None:
        self._stream, self._top = stream, top
        self._writer = csv.writer(stream, lineterminator="\n")
        columns = list(COLUMNS)
        for rank in range(1, top + 1):
            columns += [f"class_{rank}", f"probability_{rank}"]
        self._width = len(columns)
        self._writer.writerow(columns)

    def write(self, file: Path, prediction: Prediction) -> None:
        cells = {"file": str(file), **prediction.to_dict(self._top)}
        cells["confidence_low"], cells["confidence_high"] = cells["confidence_range"] or ("", "")
        for name in ("label_set", "path"):
            cells[name] = "|".join(cells[name] or ())
        for name in ("abstained", "none_of_these"):
            cells[name] = str(cells[name]).lower()
        row: list[Any] = [cells[name] for name in COLUMNS]
        for entry in cells["top"]:
            row += entry.values()
        self._writer.writerow(row + [""] * (self._width - len(row)))
        self._stream.flush()

    def close(self) -> None:
        if self._stream is not sys.stdout:
            self._stream.close()


class Document(Output):
    """A file that is written at the end, with what there is by then."""

    def __init__(self, kind: str, top: int, out: Path | None) -> None:
        self._kind, self._top, self._out = kind, top, out
        self._predictions: dict[Path, Prediction] = {}

    def write(self, file: Path, prediction: Prediction) -> None:
        self._predictions[file] = prediction

    def close(self) -> None:
        from ..exchange import write_parquet

        if self._out is not None and self._kind == "parquet":
            rows = [{"file": str(file), **one.to_dict(self._top)} for file, one in self._predictions.items()]
            write_parquet(rows, self._out)
        elif self._predictions:
            text = json.dumps(self._content(), indent=1)
            if self._out is None:
                print(text, flush=True)
            else:
                self._out.write_text(text + "\n", encoding="utf-8")
                self._tell(self._out)

    def _content(self) -> Any:
        from ..exchange import fiftyone_labels, label_studio_task

        if self._kind == "fiftyone":
            return fiftyone_labels(self._predictions)
        return [label_studio_task(file, one) for file, one in self._predictions.items()]

    def _tell(self, out: Path) -> None:
        """How to load the file."""
        from ..exchange import common_folder, label_studio_config

        if self._kind == "fiftyone":
            print(
                "cots: load it with fiftyone.Dataset.from_dir(dataset_type=fiftyone.types."
                f"FiftyOneImageClassificationDataset, data_path={common_folder(self._predictions)!r}, "
                f"labels_path={str(out)!r}).",
                file=sys.stderr,
            )
            return
        config = out.with_suffix(".xml")
        config.write_text(label_studio_config(next(iter(self._predictions.values())).classes), encoding="utf-8")
        print(
            f"cots: create a project with the labelling configuration {config}, then import {out}. Local photos need "
            "LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true and LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT=/.",
            file=sys.stderr,
        )


class Table(Output):
    """Rows on a terminal: one table per photo with fixed widths, so that each row appears as soon as it is ready."""

    def __init__(self, files: Sequence[Path], top: int, title: str) -> None:
        from rich.console import Console

        self._console, self._top, self._title, self._header = Console(), top, title, True
        longest = max(len(str(file)) for file in files)
        self._width = min(longest, max(16, self._console.width // 3))

    def write(self, file: Path, prediction: Prediction) -> None:
        if prediction.error is not None:
            return  # listed at the end
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as Rows
        from rich.text import Text

        from ..methods import percentage

        ranked = [f"{name} {percentage(p)}" for name, p in prediction.top(self._top)]
        label, rest = Text(prediction.label or "", "bold"), ", ".join(ranked[1:])
        if prediction.abstained:
            reason = NONE if prediction.none_of_these else UNSURE
            label, rest = Text(reason, "yellow"), ", ".join(ranked)
        elif prediction.node is not None:
            label, rest = Text(prediction.name, "bold"), prediction.doubt or rest
        if prediction.label_set is not None:
            rest = f"set: {', '.join(prediction.label_set) or 'empty'}"
        confidence, digits = percentage(prediction.node_probability or prediction.confidence, 1), 10
        if prediction.presence is not None:
            label, confidence = Text(", ".join(prediction.presence.present or ()), "bold"), ""
            rest = prediction.presence.words(self._top)
        if prediction.confidence_range is not None:
            low, high = prediction.confidence_range
            confidence, digits = f"{confidence} ({percentage(low)} to {percentage(high)})", 22
        rows = Rows(box=SIMPLE_HEAD, show_header=self._header, padding=(0, 1, 0, 0), show_edge=False, expand=True)
        rows.add_column("photo", width=self._width, overflow="fold")
        rows.add_column("class", ratio=2, overflow="fold")
        rows.add_column("confidence", width=digits, justify="right")
        rows.add_column(self._title, ratio=3, overflow="fold", style="dim")
        rows.add_row(Text(str(file)), label, confidence, Text(rest))
        self._console.print(rows)
        self._header = False
