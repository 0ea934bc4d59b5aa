"""The program's entry point: errors, interruptions and exhausted machines are one message each."""

from __future__ import annotations

import io
import sys
import warnings
from types import SimpleNamespace

import pytest

from cots import cli
from cots.cli import _shared, main


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--datasets", "pets", "--methods", "tpt"], "out"),
        (["run", "--datasets", "pts", "--methods", "tpt", "--out", "x", "--data", "."], "pets"),
        (["run", "--datasets", "pets", "--methods", "tppt", "--out", "x"], "Did you mean 'tpt'"),
        (["report", "nowhere"], "nowhere"),
        (["paper", "compare", "nowhere", "table:nothing"], "table:"),
        (["validate"], "--data"),
        (["predict", __file__, "--classes", "cat,dog", "--device", "tpu"], "device 'tpu' cannot be used"),
    ],
)
def test_errors_are_one_message(words, message, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["cots", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    shown = capsys.readouterr().err
    assert shown.startswith("cots: ")
    assert message in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError("Unable to allocate 46.6 TiB"), "out of memory (Unable to allocate 46.6 TiB)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "use fewer views"),
        (OSError(28, "No space left on device"), "Free some space"),
    ],
)
def test_what_the_machine_lacks_is_one_message(error, message, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["cots", "paper", "ls"])
    monkeypatch.setattr("cots.cli.app", lambda: (_ for _ in ()).throw(error))
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "shown"), [(cli.__file__, "cots: a\n"), ("torch/x.py", "torch/x.py: UserWarning: a\n")]
)
def test_warnings_are_one_line_that_says_whose_they_are(file, shown, monkeypatch, capsys):
    monkeypatch.setattr("warnings.formatwarning", warnings.formatwarning)  # restored afterwards
    monkeypatch.setattr("cots.cli.app", lambda: print(warnings.formatwarning("a", UserWarning, file, 1), end=""))
    main()
    assert capsys.readouterr().out == shown


def test_other_failures_keep_their_traceback(monkeypatch):
    monkeypatch.setattr("cots.cli.app", lambda: (_ for _ in ()).throw(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        main()


@pytest.mark.parametrize(("verb", "resumes"), [("run", True), ("report", False)])
def test_an_interrupted_command_reports_its_state(verb, resumes, monkeypatch, capsys, tmp_path):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cots.bench.RunConfig", stop)
    monkeypatch.setattr("cots.bench.Run.open", stop)
    words = {"run": ["--datasets", "pets", "--methods", "tpt", "--out", "x"], "report": ["x"]}
    monkeypatch.setattr("sys.argv", ["cots", verb, *words[verb]])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 130
    err = capsys.readouterr().err
    assert "cots: stopped." in err
    assert ("Re-run the same command to resume" in err) == resumes


def test_a_bar_without_a_total_pulses_and_one_with_a_total_counts(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with _shared.Bars() as bars:
        for done, total in ((3, 4), (4, None)):
            bars.show("photos", done, total)
            bars._progress.refresh()
            assert f"{done}/{total or '?'}" in terminal.getvalue()


def test_a_line_now_and_then_in_a_pipe(monkeypatch, capsys):
    seconds = iter([0.0, 0.0, 5.0, 12.0, 20.0, 50.0])
    monkeypatch.setattr(_shared, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    with _shared.Bars() as bars:
        for done in (100, 110, 124, 140, 200):
            bars.show("photos", done, 1100)
    assert capsys.readouterr().err.splitlines() == [
        "cots: photos: 124 of 1,100, 2 per second, 8 min left",
        "cots: photos: 200 of 1,100, 2 per second, 8 min left",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True
