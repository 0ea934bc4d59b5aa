"""Self-describing functions by name: built-in, registered with a decorator, or found through an entry point."""

import contextlib
import importlib
import inspect
import pkgutil
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from importlib.metadata import entry_points
from typing import Any, ClassVar, Generic, TypeVar

from ._errors import CotsError, InputError, unknown_name

_NAME = re.compile(r"[\w-]+(\([\w-]+\))?")


@dataclass(frozen=True, kw_only=True)
class Info:
    """A registered function and what its own file says about it.

    title: as tables and figures print it. cite: authors, venue and year. place: position in tables, lowest first.
    headline: part of the demo's and the paper's main comparison. plugin: SHA-256 of the plug-in that registered it.
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

    @property
    def settings(self) -> dict[str, Any]:
        """The function's keyword-only parameters and their defaults."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


I = TypeVar("I", bound=Info)  # noqa: E741


class Registry(Generic[I]):
    """Functions by name. A function's settings are its keyword-only parameters, so an unknown setting is an error.

    Third-party packages either call the decorator at import, or declare an entry point in `group`
    (`name = "package.module:function"`), which is imported the first time that name is used.
    """

    loading: ClassVar[list[str]] = []  # hashes of the plug-ins that are being loaded
    plugins: ClassVar[set[str]] = set()  # hashes of the plug-ins that have registered something

    def __init__(self, kind: str, group: str, info: type[I]) -> None:
        self.kind, self.group = kind, group
        self._info_type = info
        self._found: dict[str, I] = {}
        self._built_in: frozenset[str] = frozenset()

    def register(self, name: str, **described: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator: make `function` available as `name`; `described` are the fields of the registry's info class.

        Your own function of that name is replaced with a warning; a built-in one cannot be replaced.
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
            plugin = self.loading[-1] if self.loading else ""
            given = {"title": name, **described, "name": name, "function": function, "plugin": plugin}
            self._found[name] = self._info_type(**given)
            self.plugins.add(plugin)
            return function

        return add

    def unregister(self, name: str) -> None:
        """Forget `name`."""
        self._found.pop(name, None)

    def discover(self, package: str) -> None:
        """Import every public module of `package`, so that each registers what it defines: the built-in functions."""
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            if not module.name.startswith("_"):
                importlib.import_module(f"{package}.{module.name}")
        self._built_in = frozenset(self._found)

    def info(self, name: str) -> I:
        """What is registered as `name`."""
        if name not in self._found:
            self._load_entry_point(name)
        return self._found[name]

    def infos(self) -> list[I]:
        """Everything registered, in the order of tables, without entry points that cannot be loaded."""
        for name in self:
            with contextlib.suppress(CotsError):
                self.info(name)
        return sorted(self._found.values(), key=lambda info: (info.place, info.name))

    def get(self, name: str) -> Callable[..., Any]:
        """The function registered as `name`."""
        return self.info(name).function

    def built_in(self, name: str) -> bool:
        """Whether the function is part of this package."""
        return (getattr(self.get(name), "__module__", None) or "").startswith("cots.")

    def settings(self, name: str) -> dict[str, Any]:
        """The settings of a method and their defaults."""
        return self.info(name).settings

    def check_settings(self, name: str, given: Mapping[str, Any]) -> None:
        """Refuse a setting that `name` does not have: it would have no effect."""
        allowed = self.settings(name)
        for key in given:
            if key not in allowed:
                raise unknown_name(f"setting of {self.kind} {name!r}:", key, allowed)

    def __iter__(self) -> Iterator[str]:
        names = set(self._found) | {point.name for point in entry_points(group=self.group)}
        return iter(sorted(names))

    def __contains__(self, name: object) -> bool:
        # Listing entry points reads the metadata of every installed package: only for names that are not known.
        return name in self._found or name in set(self)

    def _load_entry_point(self, name: str) -> None:
        found = [point for point in entry_points(group=self.group) if point.name == name]
        if not found:
            raise unknown_name(self.kind, name, self)
        try:
            function = found[0].load()
        except Exception as error:  # whatever another package does at import
            package = found[0].dist.name if found[0].dist else "a package"
            raise CotsError(
                f"{self.kind} {name!r} of {package} ({found[0].value}) cannot be loaded: "
                f"{type(error).__name__}: {error}. Fix, upgrade or uninstall {package}."
            ) from error
        if name not in self._found:  # the module may have used the decorator itself
            self.register(name)(function)


def _callers_level() -> int:
    """The stacklevel of the first frame outside of cots, for a warning of the function that calls this."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("cots."):
        level, frame = level + 1, frame.f_back
    return level
