"""Records with errors: how many there are, and how they are made anew."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from ._files import remove
from ._job import Job, records_folder
from ._manifest import DONE
from ._numbers import Numbers
from ._paths import Location
from ._shards import file_name, present, read_shard
from ._stream import is_online


def forget_failed(folder: Location, jobs: Sequence[Job]) -> None:
    """Take away every shard with an error in it, and the view features of samples that could not be read.

    What an online method has done after such a shard depends on it and goes too.
    """
    for job in jobs:
        for method in job.methods:
            records = records_folder(job.folder, job.name, job.seed, method)
            bad = _with_errors(records)
            if bad and is_online(method):
                bad = Numbers(shard for shard in present(records) if shard >= min(bad))
            _remove(folder, records, bad)
        _remove(folder, job.features, _with_errors(job.features))


def _with_errors(folder: Location) -> Numbers:
    found = ((index, read_shard(folder / file_name(index), ())[1]) for index in present(folder))
    return Numbers(index for index, metadata in found if json.loads(metadata["errors"]))


def _remove(folder: Location, where: Location, indices: Iterable[int]) -> None:
    for index in indices:
        remove(folder / DONE)  # first: no reader may take the run for complete
        remove(where / file_name(index))
