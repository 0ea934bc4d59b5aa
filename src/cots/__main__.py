"""The program `cots`, also as `python -m cots`."""

from ._interrupt import stop_at_once


def main() -> None:
    """Entry point; from its first line on, Ctrl-C prints no traceback."""
    stop_at_once()
    from .cli import main as run

    run()


if __name__ == "__main__":
    main()
