"""Checks of settings: each names the setting, what it was, and what it may be."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from .._errors import InputError, unknown_name


def choice(name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise unknown_name(name, value, known)


def positive(name: str, value: Any) -> None:
    # Inside these limits a value and its products with a few others are finite in float32.
    if not _is_number(value) or not 1e-30 <= value <= 1e30:
        raise InputError(f"{name} must be a positive number (1e-30 to 1e30), not {value!r}.")


def fraction(name: str, value: Any) -> None:
    if not _is_number(value) or not 0 < value <= 1:
        raise InputError(f"{name} is a share of the views: a number above 0, at most 1, not {value!r}.")


def whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise InputError(f"{name} must be a whole number, {least} or more, not {value!r}.")


def no_effect(name: str, value: object, default: object, where: str) -> None:
    """Refuse a value that differs from the default where nothing would read it."""
    if value != default:
        raise InputError(f"{name}={value!r} has no effect with {where}; leave {name} out.")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
