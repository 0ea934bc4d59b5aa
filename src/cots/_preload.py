"""A faster first import of torch: its libraries load in a thread while other packages are imported."""

import contextlib
import importlib
import os
import sys
from importlib.util import find_spec
from threading import Thread

_ALSO_NEEDED = ("numpy", "PIL.Image", "regex", "ftfy")  # by every prediction of the embedded model, none imports torch


def preload_torch() -> None:
    """Load what torch and the embedded model need, without importing torch yet; for programs on Linux.

    Waiting threads of torch's parallel loops sleep unless OMP_WAIT_POLICY says otherwise: they would take the cores
    from the threads that draw views.
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
