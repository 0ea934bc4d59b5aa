"""Which of several runs has the values of a method, which may be named with settings: `tpt+cots(views=weak)`."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .._errors import InputError
from ..adapters import ADAPTERS
from ..bench import Run
from ..calibrators import CALIBRATORS
from ..methods import method_title, parse_method
from ._tables import PAPER_TABLES, RunScores, load_table

MAIN_MODEL = "ViT-B-16/openai"
_SETTINGS = re.compile(r"(.+)\((\w+=[^()]+)\)")
Found = tuple[RunScores, str]  # a run and the name of the method in it


def split_side(side: str) -> tuple[str, dict[str, Any]]:
    """The method of a side and the settings of its calibrator.

    >>> split_side("tpt+ecots(alpha=0.2)"), split_side("tda(ctpt)")
    (('tpt+ecots', {'alpha': 0.2}), ('tda(ctpt)', {}))
    """
    found = _SETTINGS.fullmatch(side)
    if found is None:
        return side, {}
    settings = {}
    for part in found[2].split(","):
        name, _, text = part.strip().partition("=")
        try:
            settings[name] = json.loads(text)
        except ValueError:
            settings[name] = text
    return found[1], settings


def side_title(side: str) -> str:
    """The title of a side, for people."""
    method, settings = split_side(side)
    about = ", ".join(f"{name} {value}" for name, value in settings.items())
    return f"{method_title(method)} ({about})" if about else method_title(method)


class Sides:
    """Finds the values of methods in runs, in the largest run first."""

    def __init__(self, runs: Sequence[Run]) -> None:
        scores = map(RunScores, runs)
        self._scores = sorted(scores, key=lambda one: -len(one.run.methods) * len(one.entries))
        self._known = set()
        for name in PAPER_TABLES:
            self._known.update(load_table(name).backbones)

    def find(self, left: str, right: str, backbone: str, prompt: str) -> tuple[Found, Found] | None:
        """A run for each side, the same one if any has both; None if there is none."""
        lefts, rights = self._all(left, backbone, prompt), self._all(right, backbone, prompt)
        for one in lefts:
            for other in rights:
                if one[0] is other[0]:
                    return one, other
        for one in lefts:
            for other in rights:
                if one[0].entries.keys() == other[0].entries.keys():
                    return one, other
        return None

    def _all(self, side: str, backbone: str, prompt: str) -> list[Found]:
        found = []
        for scores in self._scores:
            # Models that are not in the paper are compared with its main model.
            model = scores.model if scores.model in self._known else MAIN_MODEL
            name = _name_in(scores.run, side)
            if name and (model, scores.prompt) == (backbone, prompt):
                found.append((scores, name))
        return found


def _name_in(run: Run, side: str) -> str:
    """The run's name for a side: the side itself, or its method in a run with just these settings."""
    if side in run.methods and not _changed(run, side):
        return side
    method, settings = split_side(side)
    if method in run.methods and _changed(run, method) == settings:
        return method
    return ""


def _changed(run: Run, method: str) -> dict[str, Any]:
    """The settings of a method that its run changed from their defaults."""
    try:
        parsed = parse_method(method)
    except InputError:  # a plug-in that is not loaded, or a name with settings
        return {}
    given: Mapping[str, Mapping[str, Any]] = run.manifest.config.settings
    changed = {}
    for registry, part in ((ADAPTERS, parsed.adapter), (CALIBRATORS, parsed.calibrator)):
        defaults = registry.settings(part)
        for name, value in given.get(part, {}).items():
            if name not in defaults or defaults[name] != value:
                changed[name] = value
    return changed
