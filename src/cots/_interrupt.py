"""What Ctrl-C does to the program: end it at once, or let running work end in order."""

import contextlib
import os
import signal
import sys
from types import FrameType

_RESUMABLE = ("run", "check", "paper")


def farewell() -> str:
    """What to say about the work that was interrupted."""
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    stateless = "--unlabelled" in sys.argv and not any(word.startswith("--state") for word in sys.argv)
    if command in _RESUMABLE and not stateless:
        return "cots: stopped. Re-run the same command to resume."
    if command == "predict":
        return "cots: stopped. The same command starts again from the first photo."
    return "cots: stopped."


def stop_at_once() -> None:
    """From now on, Ctrl-C ends the process: an exception inside an import could surface as any other error."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if the shell ignores it
        signal.signal(signal.SIGINT, _exit)


def stop_in_order() -> None:
    """From now on, Ctrl-C raises KeyboardInterrupt, so that running work can end its processes and report."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(number: int, frame: FrameType | None) -> None:
    with contextlib.suppress(Exception):  # closed, or being flushed
        sys.stdout.flush()
    os.write(2, f"{farewell()}\n".encode())
    os._exit(130)
