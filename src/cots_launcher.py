"""The console script `cots`, outside the package: an interrupt while the package is imported prints no traceback."""

import sys


def main() -> None:
    """Run `cots.__main__.main`, which handles Ctrl-C itself once it is imported."""
    try:
        from cots.__main__ import main as run

        run()
    except KeyboardInterrupt:
        print("cots: stopped.", file=sys.stderr)
        sys.exit(130)
