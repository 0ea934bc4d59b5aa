"""Methods: `adapter+calibrator`, such as `tpt+cots`; an adapter alone means `+none`."""

from __future__ import annotations

from dataclasses import dataclass

from ._errors import InputError
from .adapters import ADAPTERS
from .calibrators import CALIBRATORS


@dataclass(frozen=True, kw_only=True)
class Method:
    """An adapter and a calibrator, by name."""

    adapter: str
    calibrator: str = "none"

    def __str__(self) -> str:
        return self.adapter if self.calibrator == "none" else f"{self.adapter}+{self.calibrator}"


def parse_method(text: str) -> Method:
    """The method that `text` names; an unknown part gets a suggestion.

    >>> parse_method("tpt+ecots")
    Method(adapter='tpt', calibrator='ecots')
    >>> str(parse_method("tpt+none"))
    'tpt'
    """
    parts = [part.strip() for part in text.split("+")]
    if len(parts) > 2 or not all(parts):
        raise InputError(f"A method is written adapter or adapter+calibrator, such as tpt+cots, not {text!r}.")
    adapter, calibrator = parts[0], parts[1] if len(parts) == 2 else "none"
    if adapter not in ADAPTERS and adapter in CALIBRATORS and len(parts) == 1:
        raise InputError(f"{adapter!r} is a calibrator; put an adapter before it, such as tpt+{adapter}.")
    ADAPTERS.get(adapter)
    CALIBRATORS.get(calibrator)
    return Method(adapter=adapter, calibrator=calibrator)
