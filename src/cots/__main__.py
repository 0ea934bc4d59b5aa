"""The program `cots`, also as `python -m cots`."""

import sys

from ._interrupt import stop_at_once


def main() -> None:
    """Entry point; Ctrl-C prints no traceback from its first line on."""
    stop_at_once()
    if sys.argv[1:] == ["--version"]:  # without importing the parser
        from importlib.metadata import version

        print(version("cots"))
        return
    from .cli import main as run

    run()


if __name__ == "__main__":
    main()
