"""Ctrl-C while the program starts or ends: exit status 130 and one line, at whatever moment."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A finder that sees every import and interrupts the process when a module is about to be imported.
SCRIPT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts jobs in the background without it
moment, sys.argv = sys.argv[1], ["cots", *sys.argv[2:]]
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from cots_launcher import main
main()
"""
MOMENTS = [
    "cots",
    "typing",
    "cots.__main__",
    "cots._interrupt",
    "typer",
    "cots.cli._predict",
    "torch",
    "torch._tensor",
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupt_during_start_up_prints_no_traceback(moment, tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"")
    words = ["predict", str(tmp_path / "photo.jpg"), "--classes", "cat,dog"]
    done = subprocess.run([sys.executable, "-c", SCRIPT, moment, *words], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "cots: stopped.\n")


def test_an_interrupt_while_python_exits_prints_no_traceback():
    words = ["predict", "nowhere.jpg", "--classes", "cat,dog"]
    at_exit = "import atexit; atexit.register(os.kill, os.getpid(), signal.SIGINT); print('at the end')"
    script = SCRIPT.replace("\nmain()", f"\ntry:\n    main()\nfinally:\n    {at_exit}")
    done = subprocess.run([sys.executable, "-c", script, "", *words], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (130, "at the end\n")
    assert [line[:17] for line in done.stderr.splitlines()] == ["cots: nowhere.jpg", "cots: stopped."]


def test_an_ignored_interrupt_stays_ignored():
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from cots._interrupt import *; stop_at_once()"
    code += "; stop_in_order(); import os; os.kill(os.getpid(), signal.SIGINT); print('alive')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "alive\n"
