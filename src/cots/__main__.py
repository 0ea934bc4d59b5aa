"""The program `cots`, also as `python -m cots`: how it starts, reacts to Ctrl-C and ends."""

import atexit
import contextlib
import gc
import importlib
import os
import signal
import sys
from importlib.util import find_spec
from threading import Thread
from types import FrameType

_ALSO_NEEDED = ("numpy", "PIL.Image", "regex", "ftfy")  # by every prediction of the embedded model, none imports torch


def main() -> None:
    """Entry point; from its first line to the end of the process, Ctrl-C prints no traceback."""
    stop_at_once()
    if sys.argv[1:] == ["--version"]:  # without importing the parser
        from importlib.metadata import version

        print(version("cots"))
        return
    gc.set_threshold(50_000)  # torch makes a million objects that live to the end; searching them takes a second
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


def stop_at_once() -> None:
    """From now on, Ctrl-C ends the process: an exception inside an import could surface as any other error."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not if the shell ignores it
        signal.signal(signal.SIGINT, _exit)


def stop_in_order() -> None:
    """From now on, Ctrl-C raises KeyboardInterrupt, so that running work can end its processes and report."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def preload_torch() -> None:
    """Load what torch and the embedded model need, without importing torch yet; for programs on Linux.

    Its libraries load in a thread while other packages are imported. Waiting threads of torch's parallel loops sleep
    unless OMP_WAIT_POLICY says otherwise: they would take the cores from the threads that draw views.
    """
    if "torch" in sys.modules or sys.platform != "linux":
        return
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read once, when the libraries are loaded
    Thread(target=_load_libraries, daemon=True).start()
    for name in _ALSO_NEEDED:
        with contextlib.suppress(ImportError):  # reported where it is used
            importlib.import_module(name)


def _load_libraries() -> None:
    import ctypes

    found = find_spec("torch")
    folder = os.path.join(os.path.dirname(found.origin or ""), "lib") if found else ""
    with contextlib.suppress(OSError):  # torch says what is missing
        # In the order and with the modes of torch's own import. ctypes does not hold the interpreter's lock meanwhile.
        ctypes.CDLL(os.path.join(folder, "libtorch_global_deps.so"), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(os.path.join(folder, "libtorch.so"))


def _exit(number: int, frame: FrameType | None) -> None:
    with contextlib.suppress(Exception):  # closed, or being flushed
        sys.stdout.flush()
    os.write(2, b"cots: stopped.\n")
    os._exit(130)


def _leave(status: list[int]) -> None:
    """Exit once all is done, without taking torch apart object by object."""
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
