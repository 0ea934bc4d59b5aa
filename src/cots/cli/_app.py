"""The program `cots` and its verbs."""

from __future__ import annotations

import errno
import os
import re
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from .._errors import CotsError
from ._bench import list_things, report, run, validate
from ._calibrate import calibrate
from ._demo import demo
from ._paper import paper
from ._predict import predict
from ._serve import serve

INTERRUPTED = 130  # typer's exit code for Ctrl-C

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Calibrated test-time adaptation for vision-language models.",
)
app.command()(demo)
app.command()(predict)
app.command()(calibrate)
app.command()(serve)
app.command()(run)
app.command()(report)
app.command()(validate)
app.command("ls")(list_things)
app.add_typer(paper, name="paper")


@app.callback(invoke_without_command=True)
def root(show_version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if show_version:
        print(version("cots"))
        raise typer.Exit


def main() -> None:
    """Entry point: errors that cots raises on purpose are one message, not a traceback."""
    if sys.stdout is None:  # closed by the caller (>&-)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        app()
    except (CotsError, OSError) as error:
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        remedy = ": the disk that the output goes to is full; make room, or write elsewhere." if full else ""
        print(f"cots: {error}{remedy}", file=sys.stderr)
        raise SystemExit(1) from None
    except (MemoryError, RuntimeError) as error:
        # Torch has no error of its own for a CPU's memory.
        if not isinstance(error, MemoryError) and not re.search("allocate memory|out of memory", str(error)):
            raise
        reason = f" ({error})" if str(error) else ""
        print(f"cots: not enough memory{reason}: give fewer views or classes, or smaller batches.", file=sys.stderr)
        raise SystemExit(1) from None
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            goes_on = " The same command goes on where it was." if sys.argv[1:2] in (["run"], ["paper"]) else ""
            print(f"cots: stopped.{goes_on}", file=sys.stderr)
        raise
