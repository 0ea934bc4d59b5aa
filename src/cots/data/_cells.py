"""Images inside Parquet files, and inside the Arrow files of `datasets`: columns of bytes, which pyarrow reads."""

import os
from functools import lru_cache
from typing import Any, NamedTuple

from .._errors import InputError
from ..exchange import require_pyarrow


class TableCell(NamedTuple):
    """The position of one image: row `row` of row group (of Arrow: record batch) `group` of a file."""

    file: str
    column: str
    group: int
    row: int

    def read(self) -> bytes:
        where = f"row {self.row} of group {self.group} in {self.file!r}"
        arrow = require_pyarrow()
        try:
            value = _images(self.file, self.column, self.group)[self.row].as_py()
        except (OSError, ValueError, IndexError, KeyError, arrow.ArrowException) as error:
            raise InputError(f"{where} cannot be read ({str(error)[:200]}). Download the file again.") from error
        data = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(data, bytes):
            raise InputError(f"{where} has no bytes of an image. Write the dataset again with its images embedded.")
        return data


def is_parquet(file: str | os.PathLike[str]) -> bool:
    return os.fspath(file).lower().endswith(".parquet")


def open_stream(file: str | os.PathLike[str]) -> Any:
    arrow = require_pyarrow()
    return arrow.ipc.open_stream(arrow.memory_map(os.fspath(file)))


@lru_cache(maxsize=8)
def batches(file: str) -> list[Any]:
    """The record batches of an Arrow file, mapped and not read."""
    return list(open_stream(file))


# Samples are read in order, mostly; each process that reads keeps its own group.
@lru_cache(maxsize=2)
def _images(file: str, column: str, group: int) -> Any:
    """The images of one row group or record batch."""
    if not is_parquet(file):
        return batches(file)[group].column(column)
    opened = require_pyarrow().parquet.ParquetFile(file)
    # Without threads: Arrow's do not survive the fork that makes a worker.
    return opened.read_row_group(group, columns=[column], use_threads=False)[column]
