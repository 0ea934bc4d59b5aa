"""The monitor: several signals of a stream of photos, its alarms, and its state as a file."""

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np

from .._checked import read_json, write_json
from .._errors import InputError, whole_number
from ..methods import Prediction
from ._predictions import SIGNALS, check_frozen
from ._signal import Alarm, Extreme, Process, levels_of
from ._state import WINDOW, Seen, State, checked_state

FALSE_ALARMS = 0.01  # probability of a false alarm ever
ALARMS = 20  # alarms that are kept


class Watch:
    """Compares each photo's signals with those of all photos before it, and raises an alarm when they have changed.

        watch = Watch(reference=policy.signals)
        watch.add(prediction, "photo.jpg")
        watch.alarms

    **Promise.** A false alarm ever, over the whole life of the monitor, has probability `false_alarms` at most, all
    signals together. **Assumption.** Until something changes, the values of each signal are exchangeable with each
    other and with the reference. Online methods (their answers depend on earlier photos), bursts, duplicates, and day
    and night cycles break it.

    For each signal, values become randomised conformal p-values against a growing bag, p = (number smaller + U * number
    equal) / size, and a simple jumper with weighted restarts bets on them (`cots.watch._signal`). An alarm is raised
    when any of J signals reaches the capital J / alpha. After alarm i - 1, the monitor starts anew with what follows,
    at alpha = false_alarms * 6 / (pi^2 i^2), so that all starts together spend false_alarms.

    signals: their names. reference: values of each signal from unchanged photos, a *random* sample of them; default:
    the first 200 photos, and those after an alarm. seed: of the random numbers that break ties. about: what is watched;
    `load` refuses the state of something else. Thread-safe.
    """

    def __init__(
        self,
        signals: Sequence[str] = SIGNALS,
        reference: Mapping[str, Any] | None = None,
        false_alarms: float = FALSE_ALARMS,
        seed: int = 0,
        about: str = "",
    ) -> None:
        if not signals or len(set(signals)) < len(signals):
            raise InputError(f"signals must be one or more different names, not {signals!r}.")
        if not 0.0 < false_alarms < 1.0:
            raise InputError(f"false_alarms must lie between 0 and 1, such as 0.01, not {false_alarms!r}.")
        self._state = State(
            signals=tuple(signals), false_alarms=false_alarms, seed=whole_number("seed", seed), about=about,
            processes=[],
        )  # fmt: skip
        self._lock = threading.Lock()
        self._start(reference)

    def add(self, values: Mapping[str, float] | Prediction, name: str = "") -> Alarm | None:
        """Add a photo's values, or its Prediction; the alarm, if it raises one.

        name: what the photo is called in an alarm. Predictions with an error are ignored, and so are their signals that
        are NaN: methods with one view have no agreement.
        """
        further = []
        if isinstance(values, Prediction):
            if values.error is not None:
                return None
            check_frozen(values.method)
            further = [float(values.none_of_these)]
            row = [float(getattr(values, signal)) for signal in self._state.signals]
        else:
            row = _row(values, self._state.signals)
        with self._lock:
            return self._add(row, further, name)

    def _add(self, row: list[float], further: list[float], name: str) -> Alarm | None:
        state = self._state
        state.n += 1
        state.recent = [*state.recent[1 - WINDOW :], row + further]
        levels = levels_of(row).tolist()
        if not state.reference:
            for value, process, level in zip(row, state.processes, levels, strict=True):
                if not math.isnan(value):
                    process.bag.add(level)
            if state.n - state.start == WINDOW:
                self._begin(WINDOW)
            return None
        state.bets += 1
        # Seeded by position, so that the state needs no generator.
        uniform = np.random.default_rng((state.seed, state.n)).random(len(row)).tolist()
        for j, process in enumerate(state.processes):
            if not math.isnan(row[j]):
                process.add(Extreme(value=row[j], photo=state.n, name=name), levels[j], uniform[j], state.bets)
        if self._evidence() < 1.0:
            return None
        at = int(np.argmax([sum(process.capital) for process in state.processes]))
        alarm = state.processes[at].alarm(state.signals[at], state.n)
        state.alarmed += 1
        state.alarms = [*state.alarms[1 - ALARMS :], alarm]
        self._start(None)
        return alarm

    def _start(self, reference: Mapping[str, Any] | None) -> None:
        state = self._state
        state.processes = [Process() for _ in state.signals]
        state.start, state.reference, state.bets = state.n, 0, 0
        if reference is None:
            return
        columns = _reference_columns(reference, state.signals)
        for process, column in zip(state.processes, columns, strict=True):
            for level in levels_of(column).tolist():
                process.bag.add(level)
        self._begin(len(columns[0]))

    def _begin(self, reference: int) -> None:
        self._state.reference = reference
        for process in self._state.processes:
            process.lower.since = process.higher.since = self._state.n + 1

    def _evidence(self) -> float:
        """Log capital over the log capital that raises an alarm; of the signal where it is largest."""
        state = self._state
        alpha = state.false_alarms * 6 / (math.pi * (state.alarmed + 1)) ** 2
        most = max(sum(process.capital) for process in state.processes)
        return math.log(most) / math.log(len(state.signals) / alpha) if most > 1.0 else 0.0

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """The last alarms, oldest first."""
        with self._lock:
            return tuple(self._state.alarms)

    @property
    def note(self) -> str:
        """Any text that is kept with the state, such as which photos were added."""
        return self._state.note

    @note.setter
    def note(self, text: str) -> None:
        self._state.note = text

    def seen(self) -> Seen:
        with self._lock:
            state, names = self._state, [*self._state.signals, "none_of_these"]
            means = np.full(len(names), np.nan)
            if state.recent:
                columns = np.array(state.recent, dtype=float).T
                for j, column in enumerate(columns):
                    known = column[~np.isnan(column)]
                    means[j] = known.mean() if len(known) else np.nan
            return Seen(
                n=state.n, means=dict(zip(names, means.tolist(), strict=True)), reference=state.reference,
                false_alarms=state.false_alarms, alarmed=state.alarmed, alarms=tuple(state.alarms),
                evidence=self._evidence(),
            )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The whole state, in JSON types."""
        with self._lock:
            return asdict(self._state)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """A monitor that goes on where the one whose `to_dict` this is was."""
        watch = cls.__new__(cls)
        watch._state, watch._lock = checked_state(data), threading.Lock()
        return watch

    def save(self, file: str | Path) -> None:
        """Write the state as JSON with a checksum, atomically."""
        write_json(Path(file), self.to_dict())

    @classmethod
    def load(cls, file: str | Path, about: str | None = None) -> Self:
        """Read a state that `save` wrote; the monitor continues as if it had never stopped."""
        try:
            watch = cls.from_dict(read_json(Path(file), remedy="Delete it to start a new monitor."))
        except (FileNotFoundError, msgspec.ValidationError, InputError) as error:
            reason = str(error).rstrip(".")
            raise InputError(f"{file} is not the state of a monitor ({reason}); name another file.") from None
        if about is not None and about != watch._state.about:
            raise InputError(
                f"{file} is the state of a monitor with another model, method, class list or policy. Name another file "
                "or delete it to start a new monitor."
            )
        return watch


def _row(values: Mapping[str, float], signals: Sequence[str]) -> list[float]:
    try:
        row = [float(values[signal]) for signal in signals]
    except KeyError as error:
        raise InputError(f"The signal {error} is missing; pass all of {', '.join(signals)}.") from None
    if not all(map(math.isfinite, row)):
        raise InputError(f"The signals must be finite, not {dict(zip(signals, row, strict=True))}.")
    return row


def _reference_columns(reference: Mapping[str, Any], signals: Sequence[str]) -> list[np.ndarray]:
    columns = [np.asarray(reference.get(signal, ()), dtype=np.float64) for signal in signals]
    size = columns[0].size
    if not size or any(column.shape != (size,) or not np.isfinite(column).all() for column in columns):
        names = ", ".join(signals)
        raise InputError(f"The reference needs the same number of finite values, at least one, of each of {names}.")
    return columns
