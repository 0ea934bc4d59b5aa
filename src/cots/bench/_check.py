"""`cots validate RUN`: is every file of a run folder there, and is it what was written?"""

from collections.abc import Callable
from dataclasses import dataclass, field

from .._checked import DamagedFile, verify
from .._files import DAMAGED, Location, names
from ._manifest import MANIFEST
from ._run import Missing, Run
from ._shards import damaged, file_name, present, read_shard, records_folder

Progress = Callable[[int, int], object]  # folders checked, and their number


@dataclass(kw_only=True)
class RunCheck:
    """What `check_run` found: number of files, those without a checksum, damaged ones, missing shards."""

    folder: Location
    files: int = 0
    unverified: int = 0
    damaged: list[DamagedFile] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.damaged and not self.missing

    def text(self) -> str:
        """What is damaged or missing, and what to do about it."""
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
            lines.append("Re-run the command that made the run: it makes them again.")
        return "\n".join(lines)


def check_run(folder: Location, progress: Progress = lambda done, total: None) -> RunCheck:
    """Read every file of the run in `folder`; features in a shared cache are checked by the runs that read them."""
    found = RunCheck(folder=folder)
    try:
        run = Run.open(folder)
    except DamagedFile as error:
        found.files, found.damaged = 1, [error]
        return found
    found.missing = run.missing()
    read = {
        records_folder(folder, dataset, seed, method): read_shard
        for dataset in run.datasets
        for seed in run.seeds
        for method in run.methods
    }
    read |= {part: verify for name in ("features", "state") for part in _folders(folder / name)}
    found.files, found.unverified = 1, int(not verify(folder / MANIFEST))
    for done, (part, check) in enumerate(read.items()):
        progress(done + 1, len(read))
        wrong = damaged(part, check)
        found.damaged += wrong.values()
        whole = present(part) - wrong.keys()
        found.files += len(whole) + len(wrong)
        found.unverified += sum(not verify(part / file_name(index)) for index in whole)
    return found


def _folders(folder: Location) -> list[Location]:
    """`folder` and the folders in it, at any depth."""
    inner = [name for name in names(folder) if "." not in name and not name.endswith(DAMAGED)]
    return [folder, *(each for name in inner for each in _folders(folder / name))]
