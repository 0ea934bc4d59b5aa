"""Plug-ins: Python files that register adapters, calibrators and metrics of one's own, without a package."""

import hashlib
import re
import sys
import traceback
import types
from pathlib import Path

from ._errors import InputError
from ._registry import Registry

_SOURCES: dict[str, bytes] = {}  # by absolute path


def load_plugin(file: str | Path, source: bytes | None = None) -> str:
    """Run a plug-in file, which registers what it defines, and return its absolute path.

    The same content runs once per process; a changed file replaces what it registered before. source: its content, for
    workers on machines that do not have the file.
    """
    path = Path(file).expanduser().resolve()
    if source is None:
        try:
            source = path.read_bytes()
        except OSError as error:
            raise InputError(f"plug-in {file} cannot be read ({error.strerror or error}). Check the path.") from None
    if _SOURCES.get(str(path)) == source:
        return str(path)
    # The same on every machine: saved states of online methods name the module of their class.
    name = "cots_plugin_" + re.sub(r"\W", "_", path.stem)
    if any(Path(other).stem == path.stem and other != str(path) for other in _SOURCES):
        raise InputError(f"Another plug-in is called {path.name} too; rename one of them.")
    module = sys.modules[name] = types.ModuleType(name)
    module.__file__ = str(path)
    digest = hashlib.sha256(source).hexdigest()
    Registry.loading.append(digest)
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except InputError as error:
        raise InputError(f"plug-in {file}: {error}") from error
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f", line {lines[-1]}" if lines else ""
        raise InputError(f"plug-in {file}{where}: {type(error).__name__}: {error}. Fix the file.") from error
    finally:
        Registry.loading.pop()
    if digest not in Registry.plugins:
        raise InputError(
            f"plug-in {file} registers nothing. Use @cots.adapter, @cots.calibrator or @cots.metrics.metric in it."
        )
    _SOURCES[str(path)] = source
    return str(path)


def plugin_source(path: str) -> bytes:
    """The content of a loaded plug-in as it was when it ran."""
    return _SOURCES[path]
