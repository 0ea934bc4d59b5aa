"""Checks of single settings, shared by all packages."""

from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from ._errors import InputError, unknown_name


def whole_number(name: str, value: Any, least: int = 0, most: int | None = None) -> int:
    """`value` as an int; refuse anything but a whole number from `least` to `most`. NumPy integers are accepted."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or int(value) < least or (most is not None and int(value) > most):
        limits = f">= {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{name} must be a whole number {limits}, not {value!r}.")
    return int(value)


def positive(name: str, value: Any) -> None:
    """Refuse anything but a positive number; the limits keep products of a few settings finite in float32."""
    if not _is_real(value) or not 1e-30 <= value <= 1e30:
        raise InputError(f"{name} must be a positive number (1e-30 to 1e30), not {value!r}.")


def share(name: str, value: Any) -> None:
    """Refuse anything but a share of the views, in (0, 1]."""
    if not _is_real(value) or not 0 < value <= 1:
        raise InputError(f"{name} is a share of the views and must be in (0, 1], not {value!r}.")


def one_of(name: str, value: Any, known: Iterable[str]) -> None:
    """Refuse a value that is not one of `known`, and suggest the nearest."""
    known = tuple(known)
    if not isinstance(value, str) or value not in known:
        raise unknown_name(name, value, known)


def no_effect(name: str, value: object, default: object, where: str) -> None:
    """Refuse a value that differs from its default but is not used."""
    if value != default:
        raise InputError(f"{name}={value!r} has no effect with {where}; omit {name}.")


def _is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
