"""One signal: its bag of values, conformal p-values, and the capital of a bettor against "nothing has changed".

If the values are exchangeable, their p-values are independent and uniform, no bet on them gains on average, and by
Ville's inequality the capital ever reaches A with probability 1/A at most.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..metrics.inputs import Floats

JUMP = 0.01  # share of the capital that is redistributed among the three bets after each value
EXTREMES = 5  # photos to look at
_TITLES = {"agreement": "agreement of views", "in_list": "the match with the list"}
_BETS = np.array([-1.0, 0.0, 1.0])  # on lower values, on nothing, on higher values
_LARGEST = 3e38  # in float32
_HALF = 0x3F00  # upper 16 bits of 0.5 in float32


def levels_of(values: Any) -> NDArray[np.int32]:
    """The levels of values: the upper 16 bits of x in float32, or of 1 - x above 1/2, mirrored; they rise with x.

    Levels are 0.8% of x or 1 - x wide at most, fine near 0 and 1, where confidences crowd. They bound the bag: there
    are fewer than 100,000, and some thousands are in use. They are fixed, so the levels of exchangeable values are
    exchangeable too, and the p-values stay exact however long the stream is.
    """
    x = np.asarray(values, dtype=np.float64)
    y = np.where(x > 0.5, 1.0 - x, x)
    bits = np.minimum(np.abs(y), _LARGEST).astype(np.float32).view(np.int32) >> 16
    levels = np.where(y < 0, -bits, bits)
    return np.where(x > 0.5, 2 * _HALF - levels, levels)


@dataclass(kw_only=True)
class Bag:
    """How often each level has occurred, lowest level first."""

    levels: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    size: int = 0

    def add(self, level: int) -> tuple[int, int]:
        """Add a value; how many values of the bag are smaller, and how many equal, itself included."""
        at = bisect_left(self.levels, level)
        if at == len(self.levels) or self.levels[at] != level:
            self.levels.insert(at, level)
            self.counts.insert(at, 0)
        self.counts[at] += 1
        self.size += 1
        return sum(self.counts[:at]), self.counts[at]


def bet(capital: Any, p: Any, t: int) -> Floats:
    """The capital of the three bets (3, ...) after the p-value number t, counted from 1.

        C <- C + w_t / 3,   w_t = 1 / (t (t + 1))              restarts: part of the first coin is kept for later
        C_e <- (1 - J) C_e + J mean(C)                         jumps between the bets
        C_e <- C_e (1 + e (p - 1/2)),   e in {-1, 0, 1}        bets

    The simple jumper (Vovk et al. 2021) with weighted restarts; its sum starts below 1. The capital never falls below
    the last restart, and an alarm ends it from above, so it needs no logarithms.
    """
    capital = np.asarray(capital) + 1.0 / (3.0 * t * (t + 1.0))
    capital = (1.0 - JUMP) * capital + JUMP * capital.mean(0)
    bets = _BETS.reshape(3, *(1,) * np.ndim(p))
    return capital * (1.0 + bets * (np.asarray(p) - 0.5))


@dataclass(frozen=True, kw_only=True)
class Extreme:
    """A photo with an extreme value: its number in the stream, and its name, if it was given one."""

    value: float
    photo: int
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Alarm:
    """A signal has changed. at: the number of the photo that raised the alarm. since: about when the change began, an
    estimate without a guarantee. extremes: the photos since then with the most extreme values.
    """

    signal: str
    higher: bool
    since: int
    at: int
    extremes: tuple[Extreme, ...] = ()

    @property
    def text(self) -> str:
        shown = ", ".join(one.name or f"photo {one.photo:,}" for one in self.extremes)
        direction = "higher" if self.higher else "lower"
        when = f"since about photo {self.since:,} (noticed at photo {self.at:,})"
        return f"{_TITLES.get(self.signal, self.signal)} is {direction} {when}; look at {shown}"


@dataclass(kw_only=True)
class Trace:
    """When a change in one direction began: after the last minimum of the log capital of a bettor who always bets on
    that direction (CUSUM). evidence: the gain since then; since: the first photo of it; extremes: its extreme photos.
    """

    evidence: float = 0.0
    since: int = 0
    extremes: list[Extreme] = field(default_factory=list)

    def add(self, one: Extreme, gain: float, order: int) -> None:
        """order: 1 to keep the highest values, -1 the lowest."""
        self.evidence += gain
        if self.evidence <= 0.0:
            self.evidence, self.since, self.extremes = 0.0, one.photo + 1, []
        else:
            self.extremes = sorted([*self.extremes, one], key=lambda kept: -order * kept.value)[:EXTREMES]


@dataclass(kw_only=True)
class Process:
    """The state of one signal: its bag, the capital of the three bets, and traces of lower and of higher values."""

    bag: Bag = field(default_factory=Bag)
    capital: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    lower: Trace = field(default_factory=Trace)
    higher: Trace = field(default_factory=Trace)

    def add(self, one: Extreme, level: int, uniform: float, t: int) -> None:
        """Bet on the photo number t since the start; `uniform`: a random number in [0, 1) that breaks ties."""
        smaller, equal = self.bag.add(level)
        p = (smaller + uniform * equal) / self.bag.size
        self.capital = bet(self.capital, p, t).tolist()
        self.lower.add(one, math.log(1.5 - p), -1)
        self.higher.add(one, math.log(0.5 + p), 1)

    def alarm(self, signal: str, at: int) -> Alarm:
        higher = self.higher.evidence > self.lower.evidence
        trace = self.higher if higher else self.lower
        return Alarm(signal=signal, higher=higher, since=trace.since, at=at, extremes=tuple(trace.extremes))
