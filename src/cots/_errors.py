"""The exceptions of cots, whose messages name the problem and the remedy, and checks of single settings."""

import difflib
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any


class CotsError(Exception):
    """Base class of all errors that cots raises on purpose."""


class InputError(CotsError, ValueError):
    """An invalid value from the caller; the message names it and the remedy."""


class BackboneError(CotsError, RuntimeError):
    """A model could not be loaded; the message names what to download and where to put it."""


class UntrainedWordWarning(UserWarning):
    """A class name or template contains a word that the model was not trained on."""


def install_extra(extra: str) -> str:
    """How to install an optional dependency; cots is on no package registry."""
    return f"in the clone of cots, run uv sync --extra {extra} or pip install '.[{extra}]'"


def unknown_name(kind: str, name: object, known: Iterable[str], hint: str = "") -> InputError:
    """An error for an unknown name that suggests the nearest known one."""
    known = sorted(known)
    if len(str(name)) > 200:  # hardly a typing error, and slow to compare
        name = f"{str(name)[:60]}..."
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.55)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    # A list of hundreds (open_clip's architectures) would bury the suggestion.
    shown = known if len(known) <= 25 else difflib.get_close_matches(str(name), known, n=8, cutoff=0.3)
    more = f" and {len(known) - len(shown)} more" if len(shown) < len(known) else ""
    known_list = f" Known: {', '.join(shown)}{more}." if shown else ""
    return InputError(f"Unknown {kind} {name!r}.{guess}{known_list}{' ' + hint if hint else ''}")


def whole_number(name: str, value: Any, least: int = 0, most: int | None = None) -> int:
    """`value` as an int; refuse anything but a whole number from `least` to `most`. NumPy integers are accepted."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or int(value) < least or (most is not None and int(value) > most):
        limits = f">= {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{name} must be a whole number {limits}, not {value!r}.")
    return int(value)


def check_positive(name: str, value: Any) -> None:
    """Refuse anything but a positive number; the limits keep products of a few settings finite in float32."""
    if not _is_real(value) or not 1e-30 <= value <= 1e30:
        raise InputError(f"{name} must be a positive number (1e-30 to 1e30), not {value!r}.")


def check_share(name: str, value: Any) -> None:
    """Refuse anything but a share of the views, in (0, 1]."""
    if not _is_real(value) or not 0 < value <= 1:
        raise InputError(f"{name} is a share of the views and must be in (0, 1], not {value!r}.")


def check_fraction(name: str, value: Any) -> None:
    """Refuse anything but a confidence in (0, 1]."""
    if not _is_real(value) or not 0 < value <= 1:
        raise InputError(f"{name} is a confidence in (0, 1], such as 0.7, not {value!r}.")


def check_one_of(name: str, value: Any, known: Iterable[str]) -> None:
    """Refuse a value that is not one of `known`, and suggest the nearest."""
    known = tuple(known)
    if not isinstance(value, str) or value not in known:
        raise unknown_name(name, value, known)


def check_unused(name: str, value: object, default: object, where: str) -> None:
    """Refuse a value that differs from its default but is not used."""
    if value != default:
        raise InputError(f"{name}={value!r} has no effect with {where}; omit {name}.")


def _is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
