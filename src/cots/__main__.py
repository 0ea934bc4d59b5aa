"""The program `cots`, also as `python -m cots`."""

import sys

from ._interrupt import stop_at_once


def main() -> None:
    """Entry point; from its first line to the end of the process, Ctrl-C prints no traceback."""
    stop_at_once()
    if sys.argv[1:] == ["--version"]:  # without the imports of a parser
        from importlib.metadata import version

        print(version("cots"))
        return
    from .cli import main as run

    try:
        run()
    finally:
        stop_at_once()  # Python prints a traceback for an interrupt while it exits


if __name__ == "__main__":
    main()
