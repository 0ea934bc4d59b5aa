"""`cots check --present`: which classes are in a photo, from photos that are labelled with all of them."""

from __future__ import annotations

import math
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._errors import InputError
from ._shared import Bars, option_words

if TYPE_CHECKING:
    import numpy as np

    from ..presence import PresenceRule


def refuse_others(**given: object) -> None:
    """Refuse options that have no effect with --present."""
    for name, value in given.items():
        if value:
            raise InputError(f"--{name} has no effect with --present; omit it.")


def check_present(photos: str, given: dict[str, Any], risk: float, out: Path) -> None:
    """Fit probabilities and thresholds of presence on labelled photos, print how they do, and write the policy."""
    import numpy as np

    from ..classifier import Classifier
    from ..data import open_present
    from ..presence import PresencePolicy, fit

    listed = open_present(photos, given.pop("classes", None))
    with option_words(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that there are no labels yet
        classifier = Classifier(**given, classes=listed.classes, mode="present")
    scores, rows = [], []
    with Bars() as bars:
        for row, prediction in enumerate(classifier.stream(listed.files)):
            if prediction.presence is None:
                print(f"cots: {listed.files[row]}: {prediction.error}", file=sys.stderr)
            else:
                scores.append(prediction.presence.scores)
                rows.append(row)
            bars.show("photos", row + 1, len(listed.files))
    table, labels = np.array(scores).reshape(len(rows), len(listed.classes)), listed.labels[rows]
    rule = fit(table, labels, risk)
    print(f"{len(rows)} photos, {len(listed.classes)} classes, presence with {classifier.backbone.name}")
    print("\n".join([*_ranking(table, labels, listed.classes), _promise(rule, table, labels)]))
    PresencePolicy(**vars(classifier.setup), rule=rule).save(out)
    print(f"Written: {out}")


def _ranking(scores: np.ndarray, labels: np.ndarray, classes: tuple[str, ...]) -> list[str]:
    from ..metrics import auroc

    found = {}
    for k, name in enumerate(classes):
        if 0 < labels[:, k].sum() < len(labels):
            found[name] = float(auroc(scores[:, k], labels[:, k]))
    lines = []
    if found:
        lowest = min(found, key=lambda name: found[name])
        mean = sum(found.values()) / len(found)
        lines.append(f"AUROC per class: mean {mean:.1%}, lowest {found[lowest]:.1%} ({lowest}).")
    if len(found) < len(classes):
        rest = len(classes) - len(found)
        lines.append(f"{rest} of the classes are shown by no photo or by all; they get the level of the others.")
    return lines


def _promise(rule: PresenceRule, scores: np.ndarray, labels: np.ndarray) -> str:
    from ..presence import missed_share

    threshold, found = rule.thresholds[0], rule.present(scores)
    if threshold == 0:
        least = 2 * math.ceil(1 / rule.risk - 1)
        return f"No threshold: {rule.n} photos are too few for {rule.risk:.0%}; label {least} that show a class."
    return (
        f"Threshold {threshold:.1%}: of the classes that a photo shows, at most {rule.risk:.0%} are missed on average. "
        f"On these photos {missed_share(found, labels):.1%} are missed. {found.sum(1).mean():.1f} classes per photo "
        f"count as present, where {labels.sum(1).mean():.1f} are."
    )
