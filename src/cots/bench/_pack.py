"""pack_run and unpack_run: a finished run as one archive, to hand on or publish.

An archive is an uncompressed tar with the manifest, DONE, the records and last the SHA-256 of each, in the format of
`sha256sum`. Equal runs give equal bytes. It contains no photos, features or states, and nothing in it is executed.
"""

import hashlib
import io
import itertools
import os
import secrets
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

from .._checked import DamagedFile
from .._errors import CotsError, InputError
from .._files import Location, make_folder, remove_tree, write_whole, writing
from ._binding import Binding
from ._check import check_run
from ._manifest import DONE, MANIFEST
from ._run import Run
from ._shards import file_name, read_shard

PACKED, SUMS = ".cots.tar", "SHA256SUMS"
_REMEDY = "Ask for a new copy of the file, or pack the run again."


class RefusedArchive(CotsError):
    """An archive that is not an intact pack of one run; `reason` says why."""

    def __init__(self, file: Path, reason: str) -> None:
        self.file, self.reason = file, reason
        super().__init__(f"{file} was refused: {reason}. {_REMEDY}")


def pack_run(folder: str | Location, out: str | os.PathLike[str]) -> Path:
    """Write the archive of the finished run in `folder`, verified while reading; returns its path."""
    run, file = Run.open(folder), Path(out)
    if not file.name.endswith(PACKED) or "://" in os.fspath(out):
        raise InputError(f"{out} must be a local file that ends in {PACKED}.")
    if file.exists():
        raise InputError(f"{file} exists. Choose another name, or delete it.")
    if not run.complete or run.missing():
        raise InputError(f"{run.folder} is unfinished. Re-run its command to finish it, then pack it.")
    sums = []
    make_folder(file.parent)
    with writing(file), tempfile.TemporaryDirectory(dir=file.parent, prefix=".pack-") as temporary:
        written = Path(temporary, file.name)
        with tarfile.open(written, "w", format=tarfile.PAX_FORMAT) as archive:
            for name, binding in _files(run):
                source = run.folder / name
                if binding is not None:
                    read_shard(source, binding)
                data = source.read_bytes()
                _add(archive, name, data)
                sums.append(f"{hashlib.sha256(data).hexdigest()}  {name}\n")
            _add(archive, SUMS, "".join(sums).encode())
        os.replace(written, file)
    return file


def unpack_run(file: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Run:
    """The run of an archive, in the new folder `out` (default: the name without .cots.tar), once all of it is verified.

    Raises RefusedArchive, and leaves nothing behind, for anything but an intact pack of one run.
    """
    archive = Path(file)
    if not archive.is_file():
        raise InputError(f"{archive} does not exist. Pass a file that cots pack has written.")
    folder = archive.with_name(archive.name.removesuffix(PACKED)) if out is None else Path(out)
    if folder.exists() or folder.is_symlink():
        raise InputError(f"{folder} exists, and cots unpack overwrites nothing. Choose another folder with --out.")
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(6)}.tmp")
    make_folder(temporary)
    try:
        _extract(archive, temporary)
        with writing(folder):
            temporary.rename(folder)
    finally:
        remove_tree(temporary)
    return Run.open(folder)


def _files(run: Run) -> Iterator[tuple[str, Binding | None]]:
    """The name of each file of a pack, in its order, and where it belongs if it has records."""
    yield MANIFEST, None
    yield DONE, None
    for dataset, seed, method in itertools.product(sorted(run.datasets), sorted(run.seeds), sorted(run.methods)):
        folder = f"shards/{dataset}/seed{seed}/{method}"
        for index in range(_shards(run, dataset)):
            yield f"{folder}/{file_name(index)}", run.bindings.shard(dataset, method, seed, index)


def _shards(run: Run, dataset: str) -> int:
    return -(-run.dataset(dataset).n // run.manifest.shard_size)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """Without the owner, times and rights, which differ between machines."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o644
    archive.addfile(member, io.BytesIO(data))


def _extract(file: Path, folder: Path) -> None:
    """Write the verified files of an archive into the empty `folder`."""
    sums, listed = {}, None
    for name, data in _members(file):
        if name == SUMS:
            listed = data
            continue
        sums[name] = hashlib.sha256(data).hexdigest()
        write_whole(folder / name, data)
    if MANIFEST not in sums:
        raise RefusedArchive(file, f"it has no {MANIFEST}")
    if listed is None:
        raise RefusedArchive(file, f"it ends early or is damaged: it has no {SUMS}")
    _check_sums(file, sums, listed)
    _check_run(file, folder, sums.keys())


def _check_run(file: Path, folder: Path, found: Set[str]) -> None:
    """Refuse files that are not exactly those of the manifest in `folder`, or not intact."""
    try:
        run = Run.open(folder)
    except DamagedFile as error:
        raise RefusedArchive(file, f"{MANIFEST} is damaged ({error.reason})") from error
    # A manifest can claim more shards than a machine can list.
    expected = len(run.methods) * len(run.seeds) * sum(_shards(run, dataset) for dataset in run.datasets)
    if len(found) < 2 + expected:
        raise RefusedArchive(file, f"its manifest has {expected:,} shards of records, of which some are missing")
    for name in sorted(found - {name for name, _ in _files(run)}):
        raise RefusedArchive(file, f"{name!a} is not part of its run")
    for error in check_run(folder).damaged:
        raise RefusedArchive(file, f"{str(error.file).removeprefix(f'{folder}/')} is damaged ({error.reason})")
    if missing := run.missing():
        raise RefusedArchive(file, f"{missing[0].method} on {missing[0].dataset} is incomplete")


def _check_sums(file: Path, sums: Mapping[str, str], listed: bytes) -> None:
    expected = {}
    for line in listed.decode("utf-8", "replace").splitlines():
        digest, _, name = line.partition("  ")
        expected[name] = digest
    for name in sorted(sums.keys() | expected.keys()):
        if sums.get(name) != expected.get(name):
            raise RefusedArchive(file, f"{name} is missing in it or does not match {SUMS}")


def _members(file: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of each member; RefusedArchive for any that a pack cannot have."""
    size, seen = file.stat().st_size, set()
    try:
        with tarfile.open(file, "r:") as archive:  # no compression, so that nothing can expand
            while (member := archive.next()) is not None:
                problem = _problem(member, size)
                if problem is None and member.name in seen:
                    problem = "occurs twice"
                if problem is not None:
                    raise RefusedArchive(file, f"{member.name[:200]!a} {problem}")
                seen.add(member.name)
                reader = archive.extractfile(member)
                assert reader is not None
                yield member.name, reader.read()
    except (CotsError, OSError):
        raise
    except Exception as error:  # a parser of damaged headers raises nearly anything
        raise RefusedArchive(file, f"it is not an intact tar archive ({str(error)[:100]})") from error


def _problem(member: tarfile.TarInfo, size: int) -> str | None:
    """Why a member cannot belong to a pack; size: of the whole archive."""
    if member.issym() or member.islnk():
        return "is a link"
    if member.isdev():
        return "is a device"
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
        return "is not a plain file"
    parts = member.name.split("/")
    if parts[0] in ("", "..") or ".." in parts or "\\" in member.name or ":" in parts[0]:
        return "leads out of the folder"
    if member.name not in (MANIFEST, DONE, SUMS) and (parts[0] != "shards" or len(parts) != 5 or "" in parts):
        return "is not part of a run"
    if member.size < 0 or member.offset_data + member.size > size:
        return "claims to be larger than the archive"
    return None
