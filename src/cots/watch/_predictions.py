"""Predictions as signals: which are watched, a reference from a policy's photos, and what is said about them."""

import math
from collections.abc import Sequence

import numpy as np

from .._errors import InputError
from ..methods import Prediction, method_kind
from ._state import WINDOW, Seen

SIGNALS: tuple[str, ...] = ("confidence", "agreement", "in_list")  # fields of a Prediction
KEPT = 1000  # photos in the reference of a policy
NO_REFERENCE = (
    f"the policy has no random sample of signals to compare with, so the first {WINDOW} photos are the reference. Run "
    "cots check again for a policy that has one."
)


def check_frozen(method: str) -> None:
    """Refuse an online method."""
    if method_kind(method) == "online":
        raise InputError(
            f"{method} cannot be watched: it is an online method, whose answers change with the photos before, even if "
            "nothing else does. Watch an episodic method such as zeroshot or tpt+ecots."
        )


def reference_of(predictions: Sequence[Prediction], seed: int = 0) -> dict[str, list[float]]:
    """The signals of at most `KEPT` predictions, drawn at random: others would not be exchangeable with the stream.

    Signals that are NaN are left out: methods with one view have no agreement.
    """
    good = [one for one in predictions if one.error is None]
    if not good:
        raise InputError("A reference needs at least one prediction without an error.")
    drawn = np.random.default_rng(seed).permutation(len(good))[:KEPT].tolist()
    reference = {}
    for name in SIGNALS:
        values = [float(getattr(good[i], name)) for i in drawn]
        if not any(map(math.isnan, values)):
            reference[name] = values
    return reference


def lines(seen: Seen) -> list[str]:
    """What `cots check --unlabelled` prints."""
    recent = f"the last {WINDOW} of " if seen.n > WINDOW else ""
    means, agreement = seen.means, ""
    if not math.isnan(means.get("agreement", math.nan)):
        agreement = f"{means['agreement']:.1%} of the views agree with the answer, "
    texts = [
        f"{recent}{seen.n:,} photos: mean confidence {means['confidence']:.1%}, {agreement}"
        f"{means['none_of_these']:.1%} of the photos seem to show none of the classes."
    ]
    for alarm in seen.alarms:
        texts.append(f"Changed: {alarm.text}.")
    if not seen.reference:
        texts.append(f"The next {WINDOW} photos are the reference; changes are found after them.")
    elif not seen.alarmed:
        texts.append(f"No change against the reference of {seen.reference:,} photos.")
    return [
        *texts,
        f"A false alarm ever, with probability at most {seen.false_alarms:.0%}. It shows when to look at the photos, "
        "not whether the predictions are right.",
    ]
