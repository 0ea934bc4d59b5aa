"""The exceptions of cots; their messages name the problem and the remedy."""

import difflib
from collections.abc import Iterable


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
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    # A list of hundreds (open_clip's architectures) would bury the suggestion.
    shown = known if len(known) <= 25 else difflib.get_close_matches(str(name), known, n=8, cutoff=0.3)
    more = f" and {len(known) - len(shown)} more" if len(shown) < len(known) else ""
    known_list = f" Known: {', '.join(shown)}{more}." if shown else ""
    return InputError(f"Unknown {kind} {name!r}.{guess}{known_list}{' ' + hint if hint else ''}")
