"""The file of a monitor: what it keeps, killed writers, damage anywhere, other files, and a second server."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.kills import forked, killed

import cots
from cots.serve import _ledger
from cots.serve._ledger import Counts, Ledger


def write_forever(file, said: int) -> None:
    """Record predictions and labels, and write the number of each into the pipe `said` once it is recorded."""
    ledger = Ledger(file, "a policy")
    while True:
        acted = ledger.act("beagle", 0.9, 1.0)
        assert acted is not None
        ledger.label([(acted, acted.n % 3 == 0)])
        ledger.save_state("x" * 5000)
        os.write(said, b"%d\n" % acted.n)


@contextlib.contextmanager
def writer(file):
    """A process that writes until it is killed; yields its id and what it says."""
    reading, writing = os.pipe()
    child = forked(lambda: write_forever(file, writing))
    os.close(writing)
    with open(reading, "rb") as said:
        try:
            yield child, said
        finally:
            os.kill(child, signal.SIGKILL)
            assert killed(child)


def filled(file, rows: int = 6) -> list[str]:
    ledger = Ledger(file, "a policy")
    acted = [ledger.act("beagle", 0.9, 1.0) for _ in range(rows)]
    ledger.label([(acted[0], True), (acted[2], False)])
    ledger.save_state("state")
    ledger.close()
    return [one.id for one in acted]


def test_what_is_recorded_is_there_after_opening_again(tmp_path):
    file = tmp_path / "monitor.db"
    ids = filled(file)
    ledger = Ledger(file, "a policy")
    assert ledger.counts == Counts(acted=6, asked=6, checked=2, errors=1)
    assert ledger.state == "state"
    assert ledger.waiting(3) == [ids[1], ids[3], ids[4]]
    found = ledger.find([ids[0], ids[1], ids[2], "no such id"])
    assert [found[one].wrong for one in ids[:3]] == [True, None, False]
    assert len(found) == 3
    ledger.label([(found[ids[1]], True)])
    assert ledger.counts == Counts(acted=6, asked=6, checked=3, errors=2)
    assert len(set(ids)) == 6
    ledger.close()
    assert sorted(tmp_path.iterdir()) == [file]


def test_labels_are_asked_for_with_the_probability(tmp_path):
    ledger = Ledger(tmp_path / "monitor.db", "a policy")
    for _ in range(1000):
        ledger.act("beagle", 0.9, 0.2)
    assert 140 < ledger.counts.asked < 270
    ledger.close()


def test_several_labels_are_recorded_together_or_not_at_all(tmp_path):
    ledger = Ledger(tmp_path / "monitor.db", "a policy")
    one = ledger.act("beagle", 0.9, 1.0)
    two = ledger.act("beagle", 0.9, 1.0)
    ledger.label([(one, False)])
    with pytest.raises(sqlite3.IntegrityError):
        ledger.label([(two, True), (one, True)])
    assert ledger.counts == Counts(acted=2, asked=2, checked=1, errors=0)
    ledger.label([(two, True)])
    ledger.close()
    assert Ledger(tmp_path / "monitor.db", "a policy").counts.checked == 2


def test_several_threads_record_every_row_once(tmp_path):
    file = tmp_path / "monitor.db"
    ledger = Ledger(file, "a policy")

    def record() -> None:
        for _ in range(50):
            acted = ledger.act("beagle", 0.9, 1.0)
            ledger.label([(acted, acted.n % 5 == 0)])
            ledger.save_state(str(ledger.counts.acted))

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(record) for _ in range(4)]:
            done.result()
    ledger.close()
    ledger = Ledger(file, "a policy")  # compares the chain of checksums
    assert ledger.counts == Counts(acted=200, asked=200, checked=200, errors=40)
    ledger.close()


def test_nothing_can_be_changed_or_removed(tmp_path):
    file = tmp_path / "monitor.db"
    filled(file)
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as db:
        for statement in ("UPDATE acted SET confidence = 1", "DELETE FROM labels", "UPDATE labels SET wrong = 0"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                db.execute(statement)


def test_a_full_file_takes_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(_ledger, "MOST", 2)
    ledger = Ledger(tmp_path / "monitor.db", "a policy")
    assert [ledger.act("a", 0.5, 1.0) is None for _ in range(3)] == [False, False, True]
    assert ledger.counts.acted == 2


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_server_loses_nothing_that_it_has_answered(tmp_path, seed):
    file, rng = tmp_path / "monitor.db", np.random.default_rng(seed)
    with writer(file) as (child, said):
        for _ in range(int(rng.integers(1, 300))):
            last = int(said.readline())
        os.kill(child, signal.SIGKILL)
        rest = said.read().split()
    last = int(rest[-1]) if rest else last
    ledger = Ledger(file, "a policy")
    assert ledger.counts.acted in (last, last + 1)
    assert ledger.counts.checked in (last, last + 1)
    assert ledger.state == "x" * 5000
    ledger.close()


def test_a_second_server_is_refused_until_the_first_ends(tmp_path):
    file = tmp_path / "monitor.db"
    with writer(file) as (_, said):
        said.readline()
        with pytest.raises(cots.InputError, match=r"monitor\.db is in use by another server"):
            Ledger(file, "a policy")
    ledger = Ledger(file, "a policy")
    assert ledger.counts.acted >= 1
    ledger.close()


def test_damage_is_found_or_harmless(tmp_path):
    """Every flipped bit is either refused by name or leaves all rows as they were."""
    file = tmp_path / "monitor.db"
    ids = filled(file)
    sound, refused = file.read_bytes(), 0
    rng = np.random.default_rng(0)
    used = [i for i in range(len(sound)) if sound[i]]
    for at in rng.choice(used, 100, replace=False).tolist():
        file.write_bytes(sound[:at] + bytes([sound[at] ^ 1 << rng.integers(8)]) + sound[at + 1 :])
        try:
            ledger = Ledger(file, "a policy")
        except cots.CotsError as error:
            refused += "monitor.db" in str(error)
        else:
            assert [ledger.find([one])[one].answer for one in ids] == ["beagle"] * 6
            assert ledger.counts == Counts(acted=6, asked=6, checked=2, errors=1)
            ledger.close()
    assert refused > 60
    for size in range(0, len(sound), 1500):
        file.write_bytes(sound[:size])
        with pytest.raises(cots.CotsError, match=r"monitor\.db"):
            Ledger(file, "a policy")
        assert file.stat().st_size == size, "a file that is refused stays as it is"


def test_rows_that_are_missing_or_reordered_are_found(tmp_path):
    file = tmp_path / "monitor.db"
    filled(file)
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("DROP TRIGGER acted_DELETE")
        db.execute("DELETE FROM acted WHERE n = 4")
        db.execute(next(sql for sql in _ledger._SCHEMA if "acted_DELETE" in sql))
    with pytest.raises(cots.CotsError, match=r"monitor\.db is damaged \(the checksum of row 4 does not match"):
        Ledger(file, "a policy")


def test_other_files_are_refused_and_left_alone(tmp_path):
    other = tmp_path / "notes.txt"
    other.write_text("my notes")
    with pytest.raises(cots.InputError, match=r"notes\.txt is not a monitor file"):
        Ledger(other, "a policy")
    assert other.read_text() == "my notes"
    foreign = tmp_path / "foreign.db"
    with contextlib.closing(sqlite3.connect(foreign)) as db:
        db.execute("CREATE TABLE acted (n INTEGER)")
    before = foreign.read_bytes()
    with pytest.raises(cots.InputError, match=r"foreign\.db is not a monitor file"):
        Ledger(foreign, "a policy")
    assert foreign.read_bytes() == before
    filled(tmp_path / "monitor.db")
    with pytest.raises(cots.InputError, match="has the predictions of another policy"):
        Ledger(tmp_path / "monitor.db", "another policy")
    with pytest.raises(cots.InputError, match="cannot be written"):
        Ledger(tmp_path / "no such folder" / "monitor.db", "a policy")
    if os.name == "posix":
        with pytest.raises(cots.InputError, match="cannot be read"):
            Ledger(tmp_path, "a policy")
