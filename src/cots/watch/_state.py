"""What a monitor remembers, and a summary of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .._errors import InputError
from ._signal import Alarm, Process

WINDOW = 200  # photos that are collected before the first bet if there is no reference, and those of the means
KIND = "cots watch 1"


@dataclass(kw_only=True)
class State:
    """All that a monitor remembers. n: photos so far. start: the photo of the last start, 0 or that of an alarm.
    reference: values in the bags when betting began, 0 before. bets: since the last start. recent: the last values.
    note: see `Watch.note`.
    """

    kind: str = KIND
    signals: tuple[str, ...]
    false_alarms: float
    seed: int
    about: str = ""
    n: int = 0
    start: int = 0
    reference: int = 0
    bets: int = 0
    alarmed: int = 0
    processes: list[Process]
    alarms: list[Alarm] = field(default_factory=list)
    recent: list[list[float]] = field(default_factory=list)
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A summary. n: photos so far. means: of the signals over the last 200 photos, and of `none_of_these` if the photos
    are predictions. reference: number of values that the first bet since the last alarm was compared with, 0 while they
    are being collected. alarmed: number of alarms; alarms: the last ones. evidence: log capital over the log capital
    that raises an alarm, of the signal where it is largest.
    """

    n: int
    means: Mapping[str, float]
    reference: int
    false_alarms: float
    alarmed: int
    alarms: tuple[Alarm, ...]
    evidence: float


def checked_state(data: Mapping[str, Any]) -> State:
    """The state of `Watch.to_dict`, or an InputError."""
    if data.get("kind") != KIND:
        raise InputError(f"Its kind is not {KIND!r}.")
    state = msgspec.convert(data, State)
    bags = [process.bag for process in state.processes]
    sound = len(bags) == len(state.signals) > 0
    for bag in bags:
        sound &= len(bag.levels) == len(bag.counts) and sum(bag.counts) == bag.size
    for process in state.processes:
        sound &= len(process.capital) == 3
    if not sound:
        raise InputError("Its parts do not fit together.")
    return state
