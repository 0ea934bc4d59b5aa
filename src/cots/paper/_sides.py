"""Which of several runs has the values of a method, which may be named with settings: `tpt+cots(views=weak)`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._errors import InputError
from ..adapters import ADAPTERS
from ..bench import Run
from ..calibrators import CALIBRATORS
from ..methods import parse_method
from ._tables import PAPER_TABLES, RunScores, load_table

MAIN_MODEL = "ViT-B-16/openai"
Found = tuple[RunScores, str]  # a run and the name of the method in it


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
            name = name_in(scores.run, side)
            if name and (model, scores.prompt) == (backbone, prompt):
                found.append((scores, name))
        return found


def name_in(run: Run, side: str) -> str:
    """The run's name for a method that may have settings: the same, or its name in a run with just these settings."""
    if side in run.methods and not _changed(run, side):
        return side
    method = parse_method(side)
    plain = str(replace(method, adapter_settings=(), calibrator_settings=()))
    if plain in run.methods and _changed(run, plain) == dict(method.adapter_settings + method.calibrator_settings):
        return plain
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
