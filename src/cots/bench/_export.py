"""export_records: all records of a run as one table, for pandas, DuckDB, spreadsheets and other tools."""

import csv
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._errors import InputError
from .._files import Location, make_folder, writing
from ..exchange import require_pyarrow
from ._run import Run
from ._shards import read_shard

_COLUMNS = (
    "dataset", "method", "seed", "id", "label", "prediction", "label_name", "prediction_name", "confidence", "tau",
    "correct", "error",
)  # fmt: skip
_PROBABILITIES = "probabilities"
_COUNTS = ("seed", "label", "prediction")  # whole numbers; confidence, tau and probabilities are float32
Table = Mapping[str, list[Any]]  # the values of each column; None where a row has none


@dataclass(frozen=True)
class Exported:
    """The result of `export_records`: the file, and its rows and those with an error."""

    file: Path
    rows: int
    failed: int


def export_records(
    folder: str | Location,
    out: str | os.PathLike[str],
    *,
    probabilities: bool = False,
    partial: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Exported:
    """Write one row per dataset, method, seed and sample of a run to `out`, a .csv or .parquet file.

    | column                        | meaning                                                                |
    |-------------------------------|------------------------------------------------------------------------|
    | `dataset`, `method`, `seed`   | of the run                                                             |
    | `id`                          | of the sample                                                          |
    | `label`, `prediction`         | indices of classes; `label_name` and `prediction_name`: their names    |
    | `confidence`, `tau`           | probability of the prediction, and its temperature, if the method has one |
    | `correct`                     | whether the prediction is the label                                    |
    | `error`                       | why the sample failed; its other results are empty then                |
    | `probabilities`               | of all classes, if asked for; in CSV as a JSON list                    |

    Shards are read one at a time, so a run may be larger than memory. `partial` allows an unfinished run. `progress` is
    called with the number of shards done and in total.
    """
    run, file = Run.open(folder), Path(out)
    if "://" in os.fspath(out) or file.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"{out} must be a local file that ends in .csv or .parquet.")
    missing = run.missing()
    if missing and not partial:
        left = sum(len(group.shards) for group in missing)
        raise InputError(
            f"{run.folder} is unfinished: {left} shards are missing. Re-run its command to finish it, or export what "
            "there is with partial=True (--partial)."
        )
    names = (*_COLUMNS, _PROBABILITIES) if probabilities else _COLUMNS
    open_writer = _CsvWriter if file.suffix.lower() == ".csv" else _ParquetWriter
    rows = failed = 0
    make_folder(file.parent)
    with writing(file), tempfile.TemporaryDirectory(dir=file.parent, prefix=".export-") as temporary:
        unfinished = Path(temporary, file.name)
        with closing(open_writer(unfinished, names)) as writer:
            for done, total, table in _tables(run, probabilities):
                writer.write(table)
                rows += len(table["id"])
                failed += sum(reason is not None for reason in table["error"])
                if progress is not None:
                    progress(done, total)
        os.replace(unfinished, file)
    return Exported(file, rows, failed)


def _tables(run: Run, probabilities: bool) -> Iterator[tuple[int, int, Table]]:
    """The number of shards read so far and in total, and the rows of each."""
    groups = list(itertools.product(run.datasets, run.methods, run.seeds))
    total = sum(len(run.files(*group)) for group in groups)
    columns = ("label", "prediction", "confidence", "tau", *([_PROBABILITIES] if probabilities else []))
    done = 0
    for dataset, method, seed in groups:
        classes = run.dataset(dataset).classes
        for file, binding in run.files(dataset, method, seed).items():
            stored, info = read_shard(file, binding, columns)
            done += 1
            table = _table(stored, info.ids, info.errors, classes)
            whose = {"dataset": dataset, "method": method, "seed": seed}
            yield done, total, {**{name: [value] * len(info.ids) for name, value in whose.items()}, **table}


def _table(
    stored: Mapping[str, np.ndarray], ids: list[str], errors: Mapping[str, str], classes: tuple[str, ...]
) -> dict[str, list[Any]]:
    """The rows of one shard, without those that all of its rows share."""
    good = (stored["prediction"] >= 0).tolist()
    label, prediction = stored["label"].tolist(), stored["prediction"].tolist()
    table: dict[str, list[Any]] = {
        "id": ids,
        "label": label,
        "prediction": _where(good, prediction),
        "label_name": [classes[index] for index in label],
        "prediction_name": [classes[index] if index >= 0 else None for index in prediction],
        "confidence": _where(good, list(stored["confidence"])),
        "tau": _where(np.isfinite(stored["tau"]).tolist(), list(stored["tau"])),
        "correct": _where(good, (stored["prediction"] == stored["label"]).tolist()),
        "error": [errors.get(name) for name in ids],
    }
    if _PROBABILITIES in stored:
        table[_PROBABILITIES] = _where(good, list(stored[_PROBABILITIES]))
    return table


def _where(kept: list[bool], values: list[Any]) -> list[Any]:
    return [value if here else None for here, value in zip(kept, values, strict=True)]


class _CsvWriter:
    def __init__(self, file: Path, names: tuple[str, ...]) -> None:
        self._names = names
        self._stream = open(file, "w", encoding="utf-8", newline="")  # noqa: SIM115, closed by `close`
        self._rows = csv.writer(self._stream)
        self._rows.writerow(names)

    def write(self, table: Table) -> None:
        columns = [list(map(_cell, table[name])) for name in self._names]
        self._rows.writerows(zip(*columns, strict=True))

    def close(self) -> None:
        self._stream.close()


def _cell(value: Any) -> Any:
    """A value as text that reads back as the same float32."""
    if isinstance(value, np.ndarray):
        return json.dumps([float(str(number)) for number in value])
    return str(value) if isinstance(value, np.floating) else value


class _ParquetWriter:
    def __init__(self, file: Path, names: tuple[str, ...]) -> None:
        self._arrow = arrow = require_pyarrow()
        number = arrow.float32()
        kinds = {"confidence": number, "tau": number, "correct": arrow.bool_(), _PROBABILITIES: arrow.list_(number)}
        kinds |= dict.fromkeys(_COUNTS, arrow.int64())
        self._schema = arrow.schema([(name, kinds.get(name, arrow.string())) for name in names])
        self._writer = arrow.parquet.ParquetWriter(file, self._schema)

    def write(self, table: Table) -> None:
        arrays = [self._arrow.array(table[field.name], field.type) for field in self._schema]
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        self._writer.close()
