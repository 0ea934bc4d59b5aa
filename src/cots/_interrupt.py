"""Ctrl-C: an exit without a traceback while a program starts, a KeyboardInterrupt once it works."""

import os
import signal
from types import FrameType


def stop_at_once() -> None:
    """From now on Ctrl-C ends the process: an exception inside an import could surface as any other error."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell can have it ignored
        signal.signal(signal.SIGINT, _exit)


def stop_in_order() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, so that work ends its processes and reports what it did."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(number: int, frame: FrameType | None) -> None:
    os.write(2, b"cots: stopped.\n")
    os._exit(130)
