"""The verdict of `cots check` on labelled photos, with the guarantees that they support."""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from .._errors import InputError
from ..calibrators import fit_temperature
from ..conformal import ConformalSets, Coverage, ErrorControl, control_error, evaluate, fit, tempered
from ..metrics import BinnedScore, binomial_interval, ece, noise_floor, top_label
from ..novelty import Flag, flag_members
from ..taxonomy import RankReport, RankRule, Taxonomy, evaluate_ranks
from ._score import halves

ENOUGH = 200  # labelled photos; fewer support no guarantee
FIRM = 0.02  # half the width of a precise interval of the accuracy


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The verdict on labelled photos, with the threshold and the prediction sets that they support.

    chance: the 95% quantile of the ECE of a calibrated model on such photos. needed: number of labels for an accuracy
    interval of +-2 points. flag: the threshold of none-of-these.
    sets_on_these, ranks_on_these: how sets and taxonomy do on the photos they were fitted on.
    """

    n: int
    accuracy: float
    interval: tuple[float, float]
    mean_confidence: float
    reliability: BinnedScore = field(repr=False)
    chance: float
    needed: int
    temperature: float
    error: ErrorControl
    sets: ConformalSets = field(repr=False)
    sets_on_these: Coverage
    flag: Flag | None = None
    ranks: RankRule | None = None
    ranks_on_these: RankReport | None = None

    @property
    def enough(self) -> bool:
        """Whether the photos are enough for a verdict and a policy."""
        return self.n >= ENOUGH

    @property
    def holds(self) -> bool:
        """Whether these photos are consistent with the stated confidence."""
        low, high = self.interval
        return low <= self.mean_confidence <= high and self.reliability.value <= self.chance

    @property
    def verdict(self) -> str:
        if not self.enough:
            return f"No verdict: {self.n} photos are too few. Label at least {ENOUGH}."
        if self.holds:
            return f"The confidence holds: nothing in these {self.n} photos contradicts it."
        if self.interval[0] <= self.mean_confidence <= self.interval[1]:
            return "The confidence does not hold: it is right on average, but not at every level. See the diagram."
        gap = self.mean_confidence - self.accuracy
        direction = "high" if gap > 0 else "low"
        return f"The confidence does not hold: it is {100 * abs(gap):.1f} points too {direction}."

    def lines(self) -> list[str]:
        """The output of `cots check`."""
        low, high = self.interval
        lines = [
            f"accuracy {self.accuracy:.1%} (95% interval {low:.1%} to {high:.1%}), mean confidence "
            f"{self.mean_confidence:.1%}, ECE {self.reliability.value:.1%} (chance alone: up to {self.chance:.1%})",
            self.verdict,
        ]
        if self.needed > self.n:
            lines.append(f"For an interval of ±{100 * FIRM:g} points, label {self.needed:,} photos.")
        if self.temperature != 1.0:
            lines.append(f"Temperature {self.temperature:.3f}, fitted on the other half of the photos.")
        if self.ranks is None:
            lines.append(self._promise())
        size, empty = self.sets_on_these.mean_size, self.sets_on_these.empty
        text = (
            f"Sets ({self.sets.method.upper()}): {self.sets.coverage:.0%} of new photos have their class in the set; "
        )
        text += f"mean size here: {size:.2f} classes"
        if empty:
            text += f", {empty:.1%} empty"
            if self.ranks is None:
                text += " (these abstain)"
        lines.append(f"{text}.")
        if self.sets.method == "lac" and size <= 1:
            lines.append("Sets of at most one class are of little use; use --sets raps, or a higher --coverage.")
        if self.flag is not None:
            lines.append(self.flag.line())
        if self.ranks is not None and self.ranks_on_these is not None:
            lines += [self.ranks.promise, *self.ranks_on_these.lines()]
        return lines

    def _promise(self) -> str:
        control = self.error
        if control.threshold is None:
            if not self.enough:  # no risk helps, for no policy will be written
                return f"No threshold: {control.shortfall}."
            offer = "" if control.offered_risk is None else f" --risk {control.offered_risk:g} gives a threshold."
            return f"No threshold: {control.shortfall}. A policy without one keeps unsure predictions.{offer}"
        return (
            f"Threshold {control.threshold:.2%}: at most {100 * control.risk:.3g}% of the predictions at or above it "
            f"are wrong, with {control.certainty:.0%} certainty. It accepts {control.coverage:.0%} of these photos, "
            f"with {control.errors} errors in {control.accepted}; the bound on the error rate is {control.bound:.1%}."
        )


def check(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    risk: float = 0.05,
    certainty: float = 0.95,
    coverage: float = 0.9,
    method: str = "auto",
    in_list: ArrayLike | None = None,
    flag: float = 0.05,
    temperature: bool = False,
    taxonomy: Taxonomy | None = None,
    average: bool = False,
    bins: int = 20,
) -> Checked:
    """Check probabilities (samples, classes) against labels.

    method: of the sets; "auto" is RAPS if the mean confidence is at least the coverage, because sets of LAC have at
    most one class there, else LAC. The labels have no part in that choice, so the coverage holds.
    in_list: scores of the photos, for a none-of-these threshold that flags at most the share `flag` of such photos.
    average: promise the risk of a taxonomy's answers on average over draws of labels, not with `certainty`.
    temperature: fit one on a random half of the samples and use it for the other half, so that threshold and sets keep
    their guarantees.
    """
    table, truth, tau = np.asarray(probabilities, dtype=np.float64), np.asarray(labels), 1.0
    if temperature:
        if len(truth) < 2:
            raise InputError("A temperature needs at least two labelled photos.")
        first, rest = halves(len(truth))
        with np.errstate(divide="ignore"):
            logits = np.maximum(np.log(table[first]), -700.0)
        tau = fit_temperature(logits, truth[first])
        table, truth = tempered(table[rest], tau), truth[rest]
    confidence, prediction = top_label(table)
    correct = prediction == truth
    n, hits = len(truth), int(correct.sum())
    if method == "auto":
        method = "raps" if confidence.mean() >= coverage else "lac"
    sets = fit(table, truth, coverage, method=method)
    flagging = None if in_list is None else flag_members(in_list, flag, certainty)
    share = (hits + 1) / (n + 2)
    ranks, ranks_on_these = None, None
    if taxonomy is not None:
        ranks = RankRule.fit(taxonomy, table, truth, risk, None if average else certainty)
        ranks_on_these = evaluate_ranks(taxonomy, taxonomy.climb(table, ranks.threshold)[0], truth)
    return Checked(
        n=n, accuracy=hits / n, interval=binomial_interval(hits, n), mean_confidence=float(confidence.mean()),
        reliability=ece(confidence, correct, bins), chance=noise_floor(confidence)[1],
        needed=math.ceil(1.96**2 * share * (1 - share) / FIRM**2), temperature=tau,
        error=control_error(confidence, correct, risk, certainty), sets=sets,
        sets_on_these=evaluate(sets.decide(table), truth), flag=flagging, ranks=ranks, ranks_on_these=ranks_on_these,
    )  # fmt: skip
