"""Functions by name: built-in, registered with a decorator, found through an entry point, or loaded from a plug-in."""

import contextlib
import functools
import hashlib
import importlib
import inspect
import pkgutil
import re
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from ._errors import CotsError, InputError, unknown_name

_NAME = re.compile(r"[\w-]+(\([\w-]+\))?")
_SOURCES: dict[str, bytes] = {}  # of the loaded plug-ins, by absolute path


@dataclass(frozen=True, kw_only=True)
class Info:
    """A registered function and its description.

    title: for tables and figures. cite: authors, venue and year. place: position in tables, lowest first. headline:
    part of the main comparison of the demo and the paper. plugin: SHA-256 of the plug-in that registered it.
    """

    name: str
    function: Callable[..., Any]
    plugin: str = ""
    title: str = ""
    cite: str = ""
    place: int = 1000
    headline: bool = False

    @property
    def summary(self) -> str:
        """First line of the function's docstring."""
        return (inspect.getdoc(self.function) or "").split("\n", 1)[0]

    @functools.cached_property  # reading a signature is slow, and requests check settings
    def settings(self) -> dict[str, Any]:
        """The function's keyword-only parameters and their defaults."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


I = TypeVar("I", bound=Info)  # noqa: E741


class Registry(Generic[I]):
    """Functions by name. The settings of a function are its keyword-only parameters; an unknown setting is an error.

    Third-party packages either use the decorator at import, or declare an entry point in `group`
    (`name = "package.module:function"`), which is imported when the name is first used.
    """

    loading: ClassVar[list[str]] = []  # hashes of the plug-ins that are being loaded
    plugins: ClassVar[set[str]] = set()  # hashes of the plug-ins that have registered something

    def __init__(self, kind: str, group: str, info: type[I]) -> None:
        self.kind, self.group = kind, group
        self._info_type = info
        self._found: dict[str, I] = {}
        self._built_in: frozenset[str] = frozenset()

    def register(self, name: str, **described: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator: make `function` available as `name`; `described` are fields of the registry's info class.

        Replacing another registered function causes a warning; built-in functions cannot be replaced.
        """
        if not _NAME.fullmatch(name):
            message = "must consist of letters, digits, '-' and '_', and may end with another name in parentheses."
            raise InputError(f"{self.kind} name {name!r} {message}")
        if name in self._built_in:
            raise InputError(f"{self.kind} {name!r} is built in and cannot be replaced; choose another name.")
        known = {f.name for f in fields(self._info_type)} - {"name", "function", "plugin"}
        for key in described:
            if key not in known:
                raise unknown_name(f"description of {self.kind} {name!r}:", key, known)

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            if name in self._found:
                message = f"{self.kind} {name!r} was registered before; the new function replaces it."
                warnings.warn(message, stacklevel=_callers_level())
            # A plug-in may be the first to import the built-in functions, and may register one under a new name.
            own = not self._built_in and str(function.__module__).startswith("cots.")
            plugin = self.loading[-1] if self.loading and not own else ""
            given = {"title": name, **described, "name": name, "function": function, "plugin": plugin}
            self._found[name] = self._info_type(**given)
            self.plugins.add(plugin)
            return function

        return add

    def registered(self) -> list[str]:
        """The names registered so far, without entry points."""
        return list(self._found)

    def unregister(self, name: str) -> None:
        """Forget `name`."""
        self._found.pop(name, None)

    def discover(self, package: str) -> None:
        """Import every public module of `package`, which registers the built-in functions."""
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            if not module.name.startswith("_"):
                importlib.import_module(f"{package}.{module.name}")
        self._built_in = frozenset(self._found)

    def info(self, name: str) -> I:
        """The description of `name`."""
        if name not in self._found:
            self._load_entry_point(name)
        return self._found[name]

    def infos(self) -> list[I]:
        """All descriptions in the order of tables, without entry points that cannot be loaded."""
        for name in self:
            with contextlib.suppress(CotsError):
                self.info(name)
        return sorted(self._found.values(), key=lambda info: (info.place, info.name))

    def get(self, name: str) -> Callable[..., Any]:
        """The function registered as `name`."""
        return self.info(name).function

    def built_in(self, name: str) -> bool:
        """Whether the function is part of this package."""
        return name in self._built_in

    def settings(self, name: str) -> dict[str, Any]:
        """The settings of a method and their defaults."""
        return self.info(name).settings

    def check_settings(self, name: str, given: Mapping[str, Any]) -> None:
        """Refuse settings that `name` does not have."""
        allowed = self.settings(name)
        for key in given:
            if key not in allowed:
                raise unknown_name(f"setting of {self.kind} {name!r}:", key, allowed)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._found, *(point.name for point in _entry_points(self.group, tuple(sys.path)))}))

    def __contains__(self, name: object) -> bool:
        # Entry points only for unknown names, because listing them takes time.
        return name in self._found or name in set(self)

    def _load_entry_point(self, name: str) -> None:
        found = [point for point in _entry_points(self.group, tuple(sys.path)) if point.name == name]
        if not found:
            raise unknown_name(self.kind, name, self)
        try:
            function = found[0].load()
        except Exception as error:  # importing another package can raise anything
            package = found[0].dist.name if found[0].dist else "a package"
            raise CotsError(
                f"{self.kind} {name!r} of {package} ({found[0].value}) cannot be loaded: "
                f"{type(error).__name__}: {error}. Fix, upgrade or uninstall {package}."
            ) from error
        if name not in self._found:  # the module may have used the decorator itself
            self.register(name)(function)


def _callers_level() -> int:
    """The stacklevel of the first frame outside cots, for a warning from the calling function."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("cots."):
        level, frame = level + 1, frame.f_back
    return level


def load_plugin(file: str | Path, source: bytes | None = None) -> str:
    """Run a Python file that registers adapters, calibrators or metrics; returns its absolute path.

    The same content runs once per process; a changed file replaces what it registered before. source: its content, for
    workers on machines without the file.
    """
    path = Path(file).expanduser().resolve()
    if source is None:
        try:
            source = path.read_bytes()
        except OSError as error:
            raise InputError(f"plug-in {file} cannot be read ({error.strerror or error}). Check the path.") from None
    if _SOURCES.get(str(path)) == source:
        return str(path)
    # Saved states of online methods name the module of their class, so it is the same on every machine.
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
    """The content of a plug-in when it was loaded."""
    return _SOURCES[path]


@functools.lru_cache(maxsize=16)
def _entry_points(group: str, path: tuple[str, ...]) -> EntryPoints:
    """The entry points of a group; path: that of the imports, because a longer one may lead to more packages."""
    return entry_points(group=group)
