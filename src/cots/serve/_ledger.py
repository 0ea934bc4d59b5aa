"""The predictions that a server acted on and their labels: an append-only SQLite file with chained checksums.

A row's checksum covers the row and the checksum before it, so changed, missing and reordered rows are found on opening.
SQLite's write-ahead log survives a killed process; a lock keeps a second server out. Photos are never stored.
"""

import os
import random
import secrets
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._checked import DamagedFile
from .._errors import CotsError, InputError

MOST = 1_000_000  # predictions in a file, about 150 MB
_APPLICATION, _VERSION = 0x636F7473, 1  # "cots"
_SCHEMA = (
    "CREATE TABLE about (text TEXT NOT NULL)",
    "CREATE TABLE acted (n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, answer TEXT NOT NULL,"
    " confidence REAL NOT NULL, probability REAL NOT NULL, asked INTEGER NOT NULL, checksum INTEGER NOT NULL)",
    "CREATE TABLE labels (n INTEGER PRIMARY KEY, of INTEGER NOT NULL UNIQUE, wrong INTEGER NOT NULL,"
    " checksum INTEGER NOT NULL)",
    "CREATE TABLE state (n INTEGER PRIMARY KEY, text TEXT NOT NULL, checksum INTEGER NOT NULL)",
    *(
        f"CREATE TRIGGER {table}_{act} BEFORE {act} ON {table} BEGIN SELECT RAISE(ABORT, 'append-only'); END"
        for table in ("about", "acted", "labels")
        for act in ("UPDATE", "DELETE")
    ),
)
_REMEDY = "Restore it from a copy, or name another file to start a new one."


@dataclass(frozen=True, kw_only=True)
class Acted:
    """A prediction that was acted on. wrong: its label, None without one."""

    n: int
    id: str
    answer: str
    asked: bool
    wrong: bool | None


@dataclass(frozen=True, kw_only=True)
class Counts:
    acted: int = 0
    asked: int = 0
    checked: int = 0
    errors: int = 0


class Ledger:
    """An open file; `about` names the policy whose predictions it has. Thread-safe."""

    def __init__(self, file: Path, about: str) -> None:
        self.file, self._lock, self._chance = file, threading.Lock(), random.SystemRandom()
        if not file.exists():
            _create(file, about)
        _check_header(file)
        self._db = sqlite3.connect(file, timeout=0.2, isolation_level=None, check_same_thread=False)
        try:
            self._lock_out_others()
            self._check(about)
        except CotsError:
            self._db.close()
            raise
        except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:  # of damaged texts and numbers
            self._db.close()
            if "locked" in str(error):
                raise InputError(f"{file} is in use by another server; name another file.") from None
            raise DamagedFile(file, str(error), _REMEDY) from None

    def _lock_out_others(self) -> None:
        for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=NORMAL", "trusted_schema=OFF"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute("BEGIN EXCLUSIVE")
        self._db.execute("COMMIT")

    def _check(self, about: str) -> None:
        if self._all("PRAGMA integrity_check") != [("ok",)]:
            raise DamagedFile(self.file, "SQLite finds errors in it", _REMEDY)
        schema = {sql for (sql,) in self._all("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")}
        if schema != set(_SCHEMA):
            raise InputError(f"{self.file} is not a monitor file of this version; name another file.")
        if self._all("SELECT text FROM about") != [(about,)]:
            raise InputError(
                f"{self.file} has the predictions of another policy, which say nothing about this one. Name another "
                "file."
            )
        self._acted_sum = self._verify("SELECT n, id, answer, confidence, probability, asked, checksum FROM acted")
        self._labels_sum = self._verify("SELECT n, of, wrong, checksum FROM labels")
        for text, checksum in self._all("SELECT text, checksum FROM state"):
            if zlib.crc32(text.encode()) != checksum:
                raise DamagedFile(self.file, "the checksum of its state does not match", _REMEDY)
        ((acted, asked),) = self._all("SELECT count(*), ifnull(sum(asked), 0) FROM acted")
        ((checked, errors),) = self._all("SELECT count(*), ifnull(sum(wrong), 0) FROM labels")
        self._counts = Counts(acted=acted, asked=asked, checked=checked, errors=errors)

    def _verify(self, query: str) -> int:
        """The last checksum of a table, after comparing all of them."""
        last = 0
        for expected, row in enumerate(self._db.execute(f"{query} ORDER BY n"), start=1):
            last = _checksum(last, row[:-1])
            if row[0] != expected or row[-1] != last:
                raise DamagedFile(self.file, f"the checksum of row {expected} does not match", _REMEDY)
        return last

    @property
    def counts(self) -> Counts:
        return self._counts

    def act(self, answer: str, confidence: float, probability: float) -> Acted | None:
        """Record a prediction and draw whether its label is asked for; None if the file is full."""
        with self._lock:
            counts = self._counts
            if counts.acted >= MOST:
                return None
            asked = self._chance.random() < probability
            acted = Acted(n=counts.acted + 1, id=secrets.token_hex(12), answer=answer, asked=asked, wrong=None)
            row = (acted.n, acted.id, answer, float(confidence), float(probability), int(asked))
            checksum = _checksum(self._acted_sum, row)
            self._db.execute("INSERT INTO acted VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, checksum))
            self._acted_sum = checksum
            self._counts = Counts(
                acted=acted.n, asked=counts.asked + asked, checked=counts.checked, errors=counts.errors
            )
        return acted

    def find(self, ids: Iterable[str]) -> dict[str, Acted]:
        """The predictions with these ids; unknown ids are left out."""
        query = "SELECT acted.n, id, answer, asked, wrong FROM acted LEFT JOIN labels ON of = acted.n WHERE id = ?"
        found = {}
        with self._lock:
            for one in ids:
                for n, id, answer, asked, wrong in self._all(query, (one,)):
                    known = None if wrong is None else bool(wrong)
                    found[one] = Acted(n=n, id=id, answer=answer, asked=bool(asked), wrong=known)
        return found

    def label(self, verdicts: Sequence[tuple[Acted, bool]]) -> None:
        """Record labels, all or none: whether each prediction was wrong."""
        with self._lock:
            counts, last, rows = self._counts, self._labels_sum, []
            for n, (acted, wrong) in enumerate(verdicts, start=counts.checked + 1):
                row = (n, acted.n, int(wrong))
                last = _checksum(last, row)
                rows.append((*row, last))
            self._db.execute("BEGIN")
            try:
                self._db.executemany("INSERT INTO labels VALUES (?, ?, ?, ?)", rows)
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._labels_sum = last
            errors = counts.errors + sum(wrong for _, wrong in verdicts)
            self._counts = Counts(
                acted=counts.acted, asked=counts.asked, checked=counts.checked + len(rows), errors=errors
            )

    def waiting(self, most: int) -> list[str]:
        """The ids whose labels were asked for and have not come, oldest first."""
        query = "SELECT id FROM acted WHERE asked AND n NOT IN (SELECT of FROM labels) ORDER BY n LIMIT ?"
        with self._lock:
            return [id for (id,) in self._all(query, (most,))]

    @property
    def state(self) -> str | None:
        """What `save_state` saved last."""
        with self._lock:
            rows = self._all("SELECT text FROM state")
        return rows[0][0] if rows else None

    def save_state(self, text: str) -> None:
        with self._lock:
            row = (text, zlib.crc32(text.encode()))
            self._db.execute("INSERT OR REPLACE INTO state VALUES (1, ?, ?)", row)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _all(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._db.execute(query, values).fetchall()


def _create(file: Path, about: str) -> None:
    """Write a new file under another name first, so that a killed server leaves a whole one or none."""
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(6)}.tmp")
    try:
        db = sqlite3.connect(temporary, isolation_level=None)
        try:
            for statement in (f"PRAGMA application_id={_APPLICATION}", f"PRAGMA user_version={_VERSION}", *_SCHEMA):
                db.execute(statement)
            db.execute("INSERT INTO about VALUES (?)", (about,))
        finally:
            db.close()
        os.replace(temporary, file)
    except (sqlite3.Error, OSError) as error:
        temporary.unlink(missing_ok=True)
        raise InputError(f"{file} cannot be written ({error}); name a file in a writable folder.") from None


def _check_header(file: Path) -> None:
    """Refuse what is not a monitor file before SQLite changes anything in it."""
    try:
        with open(file, "rb") as stream:
            header = stream.read(100)
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}); name another file.") from None
    sqlite, application = header[:16] == b"SQLite format 3\0", int.from_bytes(header[68:72], "big")
    if not sqlite or application != _APPLICATION:
        raise InputError(f"{file} is not a monitor file, or its beginning is damaged; name another file.")


def _checksum(before: int, row: Sequence[Any]) -> int:
    return zlib.crc32(repr(tuple(row)).encode(), before)
