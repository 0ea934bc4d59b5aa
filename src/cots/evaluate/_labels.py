"""The labels of photos that were drawn to be labelled, and what `cots check` says about them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..conformal import AskedAccuracy
from ..methods import Prediction
from ._check import ENOUGH

if TYPE_CHECKING:
    from ._asked import Asked

NONE, NOBODY = "none of these", "?"  # labels that are not in the list: the answer is wrong; nobody can tell


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The labels of the first photos of a draw: class indices, NONE or NOBODY.

    unused: number of labels after the first photo without one. They are not used, because nobody knows why a person
    left a photo out, so the others would not be a sample.
    """

    asked: Asked
    marks: tuple[int | str, ...]
    unused: int = 0

    def accuracy(self, level: float = 0.95) -> AskedAccuracy:
        """The accuracy on all photos of the folder; see `cots.conformal.Draw.accuracy`."""
        correct = []
        for mark, prediction in zip(self.marks, self.asked.predictions, strict=False):
            right = mark != NONE and prediction.label == self._name(mark)
            correct.append(math.nan if mark == NOBODY else float(right))
        return self.asked.draw.accuracy(correct, level)

    def uniform(self) -> tuple[list[Prediction], list[int]]:
        """Predictions and class indices of the uniform sample, for a policy, without photos of no class."""
        predictions, labels = [], []
        for row in self._uniform_rows():
            predictions.append(self.asked.predictions[row])
            labels.append(self.marks[row])
        return predictions, labels

    def uniform_photos(self) -> list[str]:
        """Hashes of the photos of that sample; none for a table of an earlier version."""
        return [self.asked.hashes[row] for row in self._uniform_rows()] if self.asked.hashes else []

    def _uniform_rows(self) -> list[int]:
        drawn = self.asked.draw.uniform_rows(len(self.marks)).tolist()
        return [row for row in drawn if isinstance(self.marks[row], int)]

    def _name(self, mark: int | str) -> str:
        return self.asked.setup.classes[mark] if isinstance(mark, int) else mark

    @property
    def enough(self) -> bool:
        """Whether the uniform sample is enough for a policy."""
        return len(self.uniform()[1]) >= ENOUGH

    @property
    def missing(self) -> int | None:
        """How many of the next photos of the draw to label for a policy; None if too few of them are uniform."""
        drawn, labelled = self.asked.draw, len(self.marks)
        without_class = len(drawn.uniform_rows(labelled)) - len(self.uniform()[1])
        for rows in range(labelled, len(drawn) + 1):
            if len(drawn.uniform_rows(rows)) - without_class >= ENOUGH:
                return rows - labelled
        return None

    def lines(self) -> list[str]:
        """What `cots check` prints about the labels, before the verdict on the uniform ones if they are enough."""
        drawn = self.asked.draw
        how = "uniformly " if drawn.heads.all() else ""
        photos = f"{len(self.marks)} of {len(self.asked)} photos labelled, drawn {how}from {len(drawn.confidence):,}"
        lines = [f"{photos}.", *self._estimates(bool(how))]
        if outside := self.marks.count(NONE):
            lines.append(f"{outside} of them show none of the classes; a policy is not about such photos.")
        if unknown := self.marks.count(NOBODY):
            lines.append(f"{unknown} that nobody can tell count as wrong in lower ends and as right in upper ends.")
        if self.unused:
            lines.append(
                f"{self.unused} labels after {self.asked.paths[len(self.marks)]}, which has none, are not used: label "
                f"photos in the order of the draw, or write {NOBODY} if nobody can tell."
            )
        return lines

    def _estimates(self, uniform: bool) -> list[str]:
        """The accuracy: once, unless the labels say different things about this folder and about new photos."""
        found = self.accuracy()
        same = uniform and NONE not in self.marks and NOBODY not in self.marks
        if same and self.enough:
            return []  # the verdict has it
        ends, when = found.interval, ", valid whenever you stop"
        if uniform and found.exact is not None:
            ends, when = found.exact, ""
        lines = [
            f"accuracy {found.accuracy:.1%} (95% interval {_span(ends)}{when}), mean confidence "
            f"{found.mean_confidence:.1%}",
            _verdict(found.mean_confidence - ends[1], found.mean_confidence - ends[0]),
        ]
        if uniform:
            return lines
        if found.normal is not None:
            lines.append(f"For this folder, approximately {_span(found.normal)} (active inference).")
        if found.exact is not None and not self.enough:
            lines.append(f"For new photos, {_span(found.exact)}, from the {found.uniform} uniform labels alone.")
        return lines


def _span(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.1%} to {ends[1]:.1%}"


def _verdict(low: float, high: float) -> str:
    """About the interval of mean confidence minus accuracy."""
    if low <= 0 <= high:
        ends = f"between {-100 * low:.1f} points too low and {100 * high:.1f} points too high"
        return f"The confidence may hold: it is {ends}."
    direction = "high" if low > 0 else "low"
    ends = sorted((abs(low), abs(high)))
    return f"The confidence does not hold: it is {100 * ends[0]:.1f} to {100 * ends[1]:.1f} points too {direction}."
