"""The program `cots`, also as `python -m cots`: how it starts and ends."""

import atexit
import gc
import os
import sys

from ._interrupt import stop_at_once


def main() -> None:
    """Entry point; from its first line to the end of the process, Ctrl-C prints no traceback."""
    stop_at_once()
    if sys.argv[1:] == ["--version"]:  # without importing the parser
        from importlib.metadata import version

        print(version("cots"))
        return
    gc.set_threshold(50_000)  # torch makes a million objects that live to the end; searching them takes time
    status: list[int] = []
    atexit.register(_leave, status)  # the first to be registered is the last to be called
    from .cli import main as run

    try:
        run()
    except SystemExit as stop:
        status += [stop.code] if isinstance(stop.code, int) else []
        raise
    finally:
        stop_at_once()  # Python prints a traceback for an interrupt while it exits


def _leave(status: list[int]) -> None:
    """Exit once all is done, without taking torch apart object by object, which takes 0.3 s."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (AttributeError, OSError):  # closed, or a pipe that nobody reads: Python says so
        return
    if status:
        os._exit(status[0])


if __name__ == "__main__":
    from cots.__main__ import main as run  # under this name, commands import the same functions

    run()
