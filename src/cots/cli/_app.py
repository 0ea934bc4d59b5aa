"""The program `cots` and its verbs."""

from __future__ import annotations

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
    try:
        app()
    except (CotsError, OSError) as error:
        print(f"cots: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("cots: stopped. The same command goes on where it was.", file=sys.stderr)
        raise SystemExit(130) from None
