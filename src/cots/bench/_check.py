"""check_run: verify all files of a run folder (`cots validate RUN`)."""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from .._checked import DamagedFile, verify
from .._files import DAMAGED, Location, names
from ._binding import Binding
from ._manifest import MANIFEST, read_done
from ._run import Missing, Run
from ._shards import damaged, features_folder, file_name, present, read_bound, read_shard, records_folder, state_folder


@dataclass(kw_only=True)
class RunCheck:
    """The result of `check_run`: number of files, files without a checksum, damaged files, missing shards."""

    folder: Location
    files: int = 0
    unverified: int = 0
    damaged: list[DamagedFile] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.damaged and not self.missing

    def text(self) -> str:
        """The damaged and missing files, and the remedy."""
        lines = [f"{self.folder}: {self.files} files checked, {len(self.damaged)} damaged"]
        lines += [
            f"  damaged: {str(error.file).removeprefix(f'{self.folder}/')} ({error.reason})" for error in self.damaged
        ]
        lines += [
            f"  missing: {len(shards)} shard{'s' * (len(shards) > 1)} of {method} on {dataset}, seed {seed}"
            for dataset, method, seed, shards in self.missing
        ]
        if self.unverified:
            lines.append(f"  {self.unverified} files of an earlier version have no checksum and cannot be verified")
        if any(error.file.name == MANIFEST for error in self.damaged):
            lines.append("Restore the manifest from a copy, or run into a new folder.")
        elif not self.ok:
            lines.append("Re-run the command of the run to recompute them.")
        return "\n".join(lines)


def check_run(folder: Location, progress: Callable[[int, int], object] = lambda done, total: None) -> RunCheck:
    """Verify every file of the run in `folder`, except features in a shared cache, which runs verify when reading."""
    check = RunCheck(folder=folder)
    try:
        run = Run.open(folder)
    except DamagedFile as error:
        check.files, check.damaged = 1, [error]
        return check
    check.missing = run.missing()
    check.files, check.unverified = 1, int(not verify(folder / MANIFEST))
    if run.complete:
        check.files += 1
        try:
            read_done(folder)
        except DamagedFile as error:
            check.damaged.append(error)
    folders: dict[Location, Callable[[Location, int], object]] = {}
    for name in ("features", "state"):
        folders |= dict.fromkeys(_folders(folder / name), _verify)
    folders |= _readers(run)
    for done, (part, read) in enumerate(folders.items()):
        progress(done + 1, len(folders))
        errors = damaged(part, read)
        wrong = {error.file for error in errors}
        files = [part / file_name(index) for index in present(part)]
        check.damaged += errors
        check.files += len(files)
        check.unverified += sum(not verify(file) for file in files if file not in wrong)
    return check


def _verify(file: Location, index: int) -> None:
    verify(file)


@dataclass(frozen=True)
class _Reader:
    """Reads the files of one folder, which belong where `binding` says."""

    read: Callable[[Location, Binding], object]
    binding: Callable[[int], Binding]

    def __call__(self, file: Location, index: int) -> None:
        self.read(file, self.binding(index))


def _readers(run: Run) -> dict[Location, _Reader]:
    """A reader for each folder of records, features and states."""
    of, readers = run.bindings, {}
    for dataset, seed, method in itertools.product(run.datasets, run.seeds, run.methods):
        adapter = method.partition("+")[0]
        shard = functools.partial(of.shard, dataset, method, seed)
        state = functools.partial(of.state, dataset, adapter, seed)
        features = functools.partial(of.features, dataset, seed)
        readers[records_folder(run.folder, dataset, seed, method)] = _Reader(read_shard, shard)
        readers[state_folder(run.folder, dataset, seed, adapter)] = _Reader(read_bound, state)
        readers[features_folder(run.folder, dataset, seed)] = _Reader(read_bound, features)
    return readers


def _folders(folder: Location) -> list[Location]:
    """`folder` and the folders in it, at any depth."""
    inner = [name for name in names(folder) if "." not in name and not name.endswith(DAMAGED)]
    return [folder, *(each for name in inner for each in _folders(folder / name))]
