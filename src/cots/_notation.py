"""How methods and their settings are written: `tpt(steps=2)+cots(k=4)`. `cots.methods` gives the names their meaning.

    method  = part ["+" part]                        an adapter, and a calibrator
    part    = name ["(" [part] {"," key "=" value} ")"]
    value   = scalar | "[" scalar {"," scalar} "]"
    scalar  = number | true | false | none | word

A part within parentheses comes first and belongs to the name: `tda(soc)` is TDA on top of the prompt that SoC tunes,
`tda(soc(weight=20),cache_from=confident)` the same with settings of both. Imports nothing, so that the command line can
check names at once.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ._errors import InputError

Scalar: TypeAlias = int | float | bool | str | None
Value: TypeAlias = Scalar | tuple[Scalar, ...]

_LONGEST = 300  # characters of a method
_OPEN, _CLOSED = "([", ")]"
_NAME = re.compile(r"[\w-]+")
_WORD = re.compile(r"[A-Za-z_][\w.-]*")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_WORDS: dict[str, Scalar] = {"true": True, "false": False, "none": None}


@dataclass(frozen=True, kw_only=True)
class Part:
    """An adapter or calibrator as it is written. name: with the part inside, such as `tda(soc)`.

    settings: its own. inner: those of the part inside.
    """

    name: str
    settings: Mapping[str, Value] = field(default_factory=dict)
    inner: Mapping[str, Value] = field(default_factory=dict)


def split_methods(text: str) -> tuple[str, ...]:
    """The methods of a comma-separated list: `tpt, tpt+cots(k=4,loss=l1)` has two."""
    return tuple(_pieces(text, ","))


def split_method(text: str) -> list[str]:
    """The adapter and, if there is one, the calibrator, as text."""
    if len(text) > _LONGEST:
        raise InputError(f"A method has at most {_LONGEST} characters, not {len(text)}: {text[:40]!r}...")
    parts = _pieces(text, "+")
    marks = text.count("+") - sum(part.count("+") for part in parts)
    if len(parts) not in (1, 2) or marks != len(parts) - 1:
        raise InputError(f"A method is written as adapter or adapter+calibrator, such as tpt+cots, not {text!r}.")
    return parts


def read_part(text: str) -> Part:
    """The part that `text` writes.

    >>> read_part("tda(soc(weight=20), cache_from=confident)")
    Part(name='tda(soc)', settings={'cache_from': 'confident'}, inner={'weight': 20})
    """
    name, mark, rest = text.strip().partition("(")
    name = name.strip()
    if not _NAME.fullmatch(name):
        raise _unreadable(text)
    if not mark:
        return Part(name=name)
    if not rest.endswith(")") or not _balanced(rest[:-1]):
        raise _unreadable(text)
    settings: dict[str, Value] = {}
    inner: Mapping[str, Value] = {}
    for index, piece in enumerate(_pieces(rest[:-1], ",")):
        key, equals, value = _setting(piece)
        if equals:
            if key in settings:
                raise InputError(f"{text!r} sets {key} twice. Set it once.")
            settings[key] = _read_value(value, text)
        elif index == 0:
            below = read_part(piece)
            if below.inner or "(" in below.name:
                raise _unreadable(text)
            name, inner = f"{name}({below.name})", below.settings
        else:
            raise _unreadable(text)
    return Part(name=name, settings=settings, inner=inner)


def write_part(name: str, settings: Mapping[str, Value]) -> str:
    """How a part is written: `cots(k=4,loss=l1)`, `tda(soc,cache_from=confident)`."""
    if not settings:
        return name
    given = ",".join(f"{key}={write_value(value)}" for key, value in settings.items())
    return f"{name[:-1]},{given})" if name.endswith(")") else f"{name}({given})"


def write_value(value: Value) -> str:
    """A value as it is written, numbers as short as possible and without a plus sign."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{','.join(map(write_value, value))}]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value).replace("e+", "e")


def _pieces(text: str, mark: str) -> list[str]:
    """The texts between marks that are outside parentheses, without empty ones."""
    pieces, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character in _OPEN) - (character in _CLOSED)
        if character == mark and depth <= 0:
            pieces.append(text[start:index])
            start = index + 1
    pieces.append(text[start:])
    return [piece.strip() for piece in pieces if piece.strip()]


def _setting(piece: str) -> tuple[str, str, str]:
    """Key, equals sign and value; no equals sign for a part, whose own settings are within parentheses."""
    key, equals, value = piece.partition("=")
    if not equals or not _NAME.fullmatch(key.strip()):
        return piece, "", ""
    return key.strip(), equals, value.strip()


def _read_value(text: str, where: str) -> Value:
    if text.startswith("[") and text.endswith("]"):
        return tuple(_read_scalar(piece, where) for piece in _pieces(text[1:-1], ","))
    return _read_scalar(text, where)


def _read_scalar(text: str, where: str) -> Scalar:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _NUMBER.fullmatch(text):
        number = float(text)
        return int(number) if number.is_integer() and abs(number) < 1e15 else number
    if _WORD.fullmatch(text):
        return text
    raise InputError(
        f"{where!r} has a setting with the value {text!r}; values are numbers, words, true, false, none and lists "
        "such as [2,5]. Set anything else in Python or in a config file."
    )


def _balanced(text: str) -> bool:
    opened = []
    for character in text:
        if character in _OPEN:
            opened.append(_CLOSED[_OPEN.index(character)])
        elif character in _CLOSED and (not opened or opened.pop() != character):
            return False
    return not opened


def _unreadable(text: str) -> InputError:
    return InputError(
        f"{text.strip()!r} is not a method's name with settings. Write it as cots(k=4,loss=l1), or as "
        "tda(soc,cache_from=confident) for TDA on top of a tuned prompt."
    )
