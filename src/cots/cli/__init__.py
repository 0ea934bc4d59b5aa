"""The program `cots`: thin commands that call the library and print the results."""

import errno
import os
import re
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from .._errors import CotsError
from .._interrupt import farewell
from ._bench import compare, list_things, report, run, validate
from ._calibrate import calibrate
from ._check import check
from ._export import export
from ._pages import demo, serve
from ._paper import paper
from ._predict import predict
from ._pretrain import pretrain_context
from ._publish import export_records, leaderboard, pack, unpack
from ._shared import with_plugins

__all__ = ["app", "main"]

INTERRUPTED = 130  # typer's exit code for Ctrl-C

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich would double the start-up time
    help="Calibrated test-time adaptation for vision-language models.",
)
_COMMANDS = (
    demo, predict, check, calibrate, export, serve, run, report, compare, leaderboard, pack, unpack, validate,
    pretrain_context,
)  # fmt: skip
for command in _COMMANDS:
    app.command()(with_plugins(command))
app.command("export-records")(with_plugins(export_records))
app.command("ls")(with_plugins(list_things))
app.add_typer(paper, name="paper")


@app.callback(invoke_without_command=True)
def root(show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if show_version:
        print(version("cots"))
        raise typer.Exit


def main() -> None:
    """Entry point: errors that cots raises on purpose print a message, not a traceback."""
    if sys.stdout is None:  # closed by the caller (>&-)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    warnings.formatwarning = _format_warning
    try:
        app()
    except (CotsError, OSError) as error:
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        _fail(f"{error}: the disk is full. Free some space, or write elsewhere." if full else str(error))
    except (MemoryError, RuntimeError) as error:
        # Torch has no exception type of its own for exhausted CPU memory.
        if not isinstance(error, MemoryError) and not re.search("allocate memory|out of memory", str(error)):
            raise
        _fail(f"out of memory ({error or 'no details'}): use fewer views or classes, or smaller batches.")
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            print(farewell(), file=sys.stderr)
        raise


def _format_warning(message: Warning | str, category: type[Warning], filename: str, *place: Any) -> str:
    """Warnings of cots in one line; those of other packages with category and source."""
    if Path(filename).is_relative_to(Path(__file__).parents[1]):
        return f"cots: {message}\n"
    return f"{filename}: {category.__name__}: {message}\n"


def _fail(message: str) -> None:
    print(f"cots: {message}", file=sys.stderr)
    raise SystemExit(1) from None
