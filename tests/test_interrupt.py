"""Ctrl-C while the program starts or ends: exit status 130 and one line, at whatever moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cots._interrupt import farewell

WORDS = ["predict", "photo.jpg", "--classes", "cat,dog"]
START = f"""
import json, os, signal, sys, tempfile, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts jobs in the background without it
sys.argv = ["cots", *{WORDS}]
"""
# A finder that sees every import. When one of the modules is about to be imported, it interrupts a fork of the process;
# the process itself goes on to the next, and prints the status and the output of all forks after the last.
MOMENTS = ["cots", "typing", "cots.__main__", "typer", "cots.cli._predict", "torch", "torch._tensor"]
SCRIPT = f"""{START}
moments, found = {MOMENTS}, {{}}
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name not in moments or name in found or threading.current_thread() is not threading.main_thread():
            return
        with tempfile.TemporaryFile() as output:
            pid = os.fork()
            if not pid:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                sys.meta_path.remove(self)
                os.kill(os.getpid(), signal.SIGINT)
                return
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            output.seek(0)
            found[name] = status, output.read().decode()
        if name == moments[-1]:
            print(json.dumps(found), flush=True)
            os._exit(0)
sys.meta_path.insert(0, Finder())
from cots_launcher import main
main()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the process is forked at every moment")
def test_an_interrupt_during_start_up_prints_no_traceback(tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"")
    words = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    said = "cots: stopped. The same command starts again from the first photo.\n"
    found = json.loads(done.stdout)
    # The launcher itself says less while it is imported.
    assert {moment: status for moment, (status, _) in found.items()} == dict.fromkeys(MOMENTS, 130), done.stderr
    assert {text for _, text in found.values()} <= {said, "cots: stopped.\n"}
    assert found["torch"] == [130, said]


@pytest.mark.parametrize(
    ("words", "end"),
    [
        (["run"], "to resume."),
        (["check", "x"], "to resume."),
        (["check", "x", "--unlabelled"], "cots: stopped."),
        (["check", "x", "--unlabelled", "--state", "watch.json"], "to resume."),
        (["predict", "x"], "from the first photo."),
        ([], "stopped."),
    ],
)
def test_an_interrupt_says_whether_the_work_resumes(words, end, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["cots", *words])
    assert farewell().endswith(end)


def test_an_interrupt_while_python_exits_prints_no_traceback():
    at_exit = "import atexit; atexit.register(os.kill, os.getpid(), signal.SIGINT); print('at the end')"
    script = f"{START}\nfrom cots_launcher import main\ntry:\n    main()\nfinally:\n    {at_exit}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (130, "at the end\n")
    assert [line[:14] for line in done.stderr.splitlines()] == ["cots: photo.jp", "cots: stopped."]


def test_an_ignored_interrupt_stays_ignored():
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from cots._interrupt import *; stop_at_once()"
    code += "; stop_in_order(); import os; os.kill(os.getpid(), signal.SIGINT); print('alive')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "alive\n"
