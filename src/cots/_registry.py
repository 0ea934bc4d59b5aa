"""Named methods: built-in, registered with a decorator, or found through an entry point."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from ._errors import CotsError, InputError, unknown_name

_NAME = re.compile(r"[\w-]+(\([\w-]+\))?")


class Registry:
    """Functions by name. A method's settings are its keyword-only parameters, so an unknown setting is an error.

    Third-party packages either call the decorator at import, or declare an entry point in `group`
    (`name = "package.module:function"`), which is imported the first time that name is asked for.
    """

    def __init__(self, kind: str, group: str) -> None:
        self.kind = kind
        self.group = group
        self._functions: dict[str, Callable[..., Any]] = {}
        self._tags: dict[str, Mapping[str, Any]] = {}

    def register(self, name: str, **tags: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator: make `function` available as `name`. A name can be taken only once."""
        if not _NAME.fullmatch(name):
            message = "must be made of letters, digits, '-' or '_', and may end with another name in parentheses."
            raise InputError(f"{self.kind} name {name!r} {message}")
        if name in self._functions:
            raise InputError(f"{self.kind} {name!r} is registered already; choose another name.")

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            self._functions[name] = function
            self._tags[name] = MappingProxyType(dict(tags))
            return function

        return add

    def unregister(self, name: str) -> None:
        """Forget `name`; for tests and notebooks that register the same method twice."""
        self._functions.pop(name, None)
        self._tags.pop(name, None)

    def get(self, name: str) -> Callable[..., Any]:
        if name not in self._functions:
            self._load_entry_point(name)
        return self._functions[name]

    def tag(self, name: str, key: str, default: Any = None) -> Any:
        self.get(name)
        return self._tags[name].get(key, default)

    def settings(self, name: str) -> dict[str, Any]:
        """The settings of a method and their defaults."""
        parameters = inspect.signature(self.get(name)).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def check_settings(self, name: str, given: Mapping[str, Any]) -> None:
        """Refuse a setting that `name` does not have: it would have no effect."""
        allowed = self.settings(name)
        for key in given:
            if key not in allowed:
                raise unknown_name(f"setting of {self.kind} {name!r}:", key, allowed)

    def __iter__(self) -> Iterator[str]:
        names = set(self._functions) | {point.name for point in entry_points(group=self.group)}
        return iter(sorted(names))

    def __contains__(self, name: object) -> bool:
        # Looking entry points up reads the metadata of every installed package: not for names that are known.
        return name in self._functions or name in set(self)

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
                f"{type(error).__name__}: {error}. Mend, update or remove {package}."
            ) from error
        if name not in self._functions:  # the module may have used the decorator itself
            self.register(name)(function)


def describe(function: Callable[..., Any]) -> str:
    """First line of a method's docstring, for listings."""
    return (inspect.getdoc(function) or "").split("\n", 1)[0]
