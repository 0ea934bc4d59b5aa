"""The program `cots`, also as `python -m cots`."""

import gc
import sys

from ._interrupt import stop_at_once


def main() -> None:
    """Entry point; from its first line on, Ctrl-C prints no traceback."""
    stop_at_once()
    if sys.argv[1:] == ["--version"]:  # without the imports of a parser
        from importlib.metadata import version

        print(version("cots"))
        return
    gc.set_threshold(50_000)  # torch makes a million objects that live to the end; searching them takes a second
    from .cli import main as run

    try:
        run()
    finally:
        gc.freeze()


if __name__ == "__main__":
    main()
