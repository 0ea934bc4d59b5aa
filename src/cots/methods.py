"""Methods: `adapter+calibrator`, such as `tpt+cots`; an adapter alone means `+none`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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

    @property
    def title(self) -> str:
        """The title for tables and figures."""
        title = ADAPTERS.info(self.adapter).title
        return title if self.calibrator == "none" else f"{title} + {CALIBRATORS.info(self.calibrator).title}"

    @property
    def place(self) -> tuple[int, int]:
        """Position in tables, lowest first."""
        return ADAPTERS.info(self.adapter).place, CALIBRATORS.info(self.calibrator).place

    def check_settings(self, adapter: Mapping[str, Any], calibrator: Mapping[str, Any]) -> None:
        """Refuse settings that adapter or calibrator do not have."""
        ADAPTERS.check_settings(self.adapter, adapter)
        CALIBRATORS.check_settings(self.calibrator, calibrator)


def parse_method(text: str) -> Method:
    """The method that `text` names; an unknown part gets a suggestion.

    >>> parse_method("tpt+ecots")
    Method(adapter='tpt', calibrator='ecots')
    >>> str(parse_method("tpt+none"))
    'tpt'
    """
    parts = [part.strip() for part in text.split("+")]
    if len(parts) > 2 or not all(parts):
        raise InputError(f"A method is written as adapter or adapter+calibrator, such as tpt+cots, not {text!r}.")
    adapter, calibrator = parts[0], parts[1] if len(parts) == 2 else "none"
    if adapter not in ADAPTERS and adapter in CALIBRATORS and len(parts) == 1:
        raise InputError(f"{adapter!r} is a calibrator; put an adapter before it, such as tpt+{adapter}.")
    if "tuned_features" in CALIBRATORS.settings(calibrator) and not ADAPTERS.info(adapter).tunes_text:
        raise InputError(
            f"{adapter}+{calibrator} is not possible: {calibrator} measures how far tuning moved the text features, "
            f"and {adapter} does not tune them. Use an adapter that does, such as tpt+{calibrator}."
        )
    ADAPTERS.info(adapter)
    return Method(adapter=adapter, calibrator=calibrator)


def method_title(text: str) -> str:
    """The title of a method; a name that is not registered is its own title."""
    try:
        return parse_method(text).title
    except InputError:
        return text


def headline_methods() -> tuple[str, ...]:
    """The main comparison: `tpt` with each headline calibrator, every other headline adapter alone and with CoTS."""
    found = []
    for adapter in (info.name for info in ADAPTERS.infos() if info.headline):
        calibrators = ["none"]
        if adapter == "tpt":
            calibrators += [info.name for info in CALIBRATORS.infos() if info.headline]
        elif adapter != "zeroshot":
            calibrators.append("cots")
        found += [str(Method(adapter=adapter, calibrator=calibrator)) for calibrator in calibrators]
    return tuple(found)
