"""Benchmark runs: their list, and the pages that `cots report` has written into their folders."""

import hashlib
import hmac
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from .._checked import DamagedFile
from .._errors import CotsError
from ..bench import Run
from ._schemas import ApiError, Hash, Strict

REPORT = Path("report", "report.html")  # in a run folder: where `cots report` writes by default
MAX_REPORT = 64 * 2**20
# A report can come from someone else's run folder, so it can neither run scripts nor load anything.
REPORT_POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", re.ASCII)


class RunInfo(Strict):
    id: str
    damaged: str | None = Field(default=None, description="Why the run cannot be read; if set, other fields are empty.")
    model: str = ""
    weights_hash: Hash = ""
    datasets: list[str] = Field(default_factory=list)
    methods: list[str] = Field(default_factory=list)
    seeds: list[int] = Field(default_factory=list)
    complete: bool = False
    created: str = ""
    photos: int = Field(default=0, description="Photos of all datasets together.")
    report: str | None = Field(
        default=None, description="Address of its report; null until cots report has written it."
    )


class Runs(Strict):
    runs: list[RunInfo]


class RunFolders:
    """The run folders in one folder. A requested id is only compared with their names.

    token: the server's. Browsers send no token with the address of a frame, so addresses of reports contain a key.
    """

    def __init__(self, folder: str | Path | None, token: str | None = None) -> None:
        self.folder = None if folder is None else Path(folder)
        self._token = token

    def list(self) -> Runs:
        """The description of each run, newest first."""
        return Runs(
            runs=sorted(map(self._describe, self._folders()), key=lambda run: (run.created, run.id), reverse=True)
        )

    def report(self, id: str, key: str) -> bytes:
        """The report of a run, or an ApiError."""
        if self._token is not None and not hmac.compare_digest(key.encode(), self._key(id).encode()):
            raise ApiError(401, "unauthorized", "The key is missing or wrong; GET /v1/runs has the address.")
        for folder in self._folders():
            if folder.name == id and (file := _report_of(folder)):
                return file.read_bytes()
        raise ApiError(404, "no_report", "No report with this id; GET /v1/runs lists them.", "id")

    def _key(self, id: str) -> str:
        return hmac.new((self._token or "").encode(), id.encode(), hashlib.sha256).hexdigest()

    def _folders(self) -> Iterator[Path]:
        if self.folder is None or not self.folder.is_dir():
            return
        for folder in sorted(self.folder.iterdir()):
            if _NAME.fullmatch(folder.name) and (folder / "manifest.json").is_file():
                yield folder

    def _describe(self, folder: Path) -> RunInfo:
        try:
            run = Run.open(folder)
            complete = run.complete and not run.missing()
        except (CotsError, OSError) as error:
            # The full reason can contain paths of the server.
            reason = error.reason if isinstance(error, DamagedFile) else "it cannot be read"
            return RunInfo(id=folder.name, damaged=f"manifest.json: {reason}")
        report = None
        if _report_of(folder):
            report = f"/reports/{folder.name}" + (f"?key={self._key(folder.name)}" if self._token else "")
        return RunInfo(
            id=folder.name,
            model=run.manifest.model.name,
            weights_hash=run.manifest.model.weights_hash,
            datasets=list(run.datasets),
            methods=list(run.methods),
            seeds=list(run.seeds),
            complete=complete,
            created=run.manifest.created,
            photos=sum(entry.n for entry in run.manifest.datasets),
            report=report,
        )


def _report_of(folder: Path) -> Path | None:
    """The report in a run folder, if there is one: a link could lead to any file of the server."""
    file = folder / REPORT
    if file.is_symlink() or file.parent.is_symlink() or not file.is_file() or file.stat().st_size > MAX_REPORT:
        return None
    return file
