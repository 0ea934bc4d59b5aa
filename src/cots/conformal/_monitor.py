"""The error rate of predictions that were acted on, from a trickle of labels, valid at every look."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from .._errors import InputError
from ._sequences import check_level, mean_interval, rate_interval

Verdict = Literal["open", "kept", "broken"]


@dataclass(frozen=True, kw_only=True)
class ErrorRate:
    """An interval of the error rate. acted: predictions acted on. checked, errors: of their labels. low, high: contain
    the error rate at all looks together with probability `level`. risk: the promised error rate, if any.
    """

    acted: int
    checked: int
    errors: int
    low: float
    high: float
    level: float
    risk: float | None = None

    @property
    def verdict(self) -> Verdict:
        """Whether the promise is kept (the whole interval is below it) or broken (above it), or still open."""
        if self.risk is None or self.low <= self.risk < self.high:
            return "open"
        return "kept" if self.high <= self.risk else "broken"

    @property
    def text(self) -> str:
        known = f"acted on {self.acted:,}, checked {self.checked:,}, error {self.low:.1%} to {self.high:.1%}"
        if self.risk is None:
            return known
        verdict = "still open" if self.verdict == "open" else self.verdict
        return f"{known}, promise {100 * self.risk:.3g}%: {verdict}"


class ErrorMonitor:
    """Predictions that were acted on, one by one, some of them with a label; the interval may be read at any time.

        monitor = ErrorMonitor(risk=0.05)
        monitor.add()                # acted on, not checked
        monitor.add(wrong=False)     # acted on, checked
        monitor.seen().text

    **Promise.** The intervals at all looks together contain the error rate with probability `level`: looking after
    every label, and stopping when one likes the result, voids nothing. **Assumption.** Each prediction acted on is
    wrong with the same probability, given those before it. **Labels.** Uniform, the default: any of the predictions,
    drawn without regard to the photo, and a label that never comes is missing for reasons that have nothing to do with
    the answer (`rate_interval`, in closed form). Weighted, with `least`: prediction i is drawn with a probability
    p_i >= least that was fixed before its label was known; all predictions are added in their order, those not drawn
    without a label. The bounds bet on wrong_i / p_i, each with half of 1 - level (`mean_interval`).

    risk: the promised error rate. least: the smallest probability of being drawn, for weighted labels.

    >>> monitor = ErrorMonitor(risk=0.05, acted=1200, checked=80, errors=2)
    >>> monitor.add(wrong=True)
    >>> monitor.seen().text
    'acted on 1,201, checked 81, error 0.2% to 14.9%, promise 5%: still open'
    """

    def __init__(
        self, risk: float | None = None, level: float = 0.95, *, least: float | None = None, acted: int = 0,
        checked: int = 0, errors: int = 0,
    ) -> None:  # fmt: skip
        check_level(level)
        for name, value in (("risk", risk), ("least", least)):
            if value is not None and not 0.0 < value <= 1.0:
                raise InputError(f"{name} must lie in (0, 1], such as 0.05, not {value!r}.")
        if not 0 <= errors <= checked <= acted or (least is not None and acted):
            raise InputError(
                "acted, checked and errors must be counts of uniform labels with errors <= checked <= acted."
            )
        self.risk, self.level, self.least = risk, level, least
        self._acted, self._checked, self._errors = acted, checked, errors
        self._values: Counter[float] = Counter()  # wrong / p of weighted labels

    def add(self, wrong: bool | None = None, asked_with: float | None = None) -> None:
        """Add a prediction that was acted on; wrong: its label, if it has one; asked_with: p_i, of weighted labels."""
        if self.least is None and asked_with is not None:
            raise InputError("asked_with is for weighted labels; pass least, the smallest of these probabilities.")
        if self.least is not None and wrong is not None:
            if asked_with is None or not self.least <= asked_with <= 1.0:
                raise InputError(f"asked_with must lie between least={self.least!r} and 1, not {asked_with!r}.")
            self._values[wrong / asked_with] += 1
        elif self.least is not None:
            self._values[0.0] += 1
        self._acted += 1
        self._checked += wrong is not None
        self._errors += bool(wrong)

    def seen(self) -> ErrorRate:
        """The interval after the predictions so far."""
        if self.least is None:
            low, high = rate_interval(self._errors, self._checked, self.level)
        else:
            values, counts = list(self._values), list(self._values.values())
            low, high = mean_interval(values, self.level, most=1.0 / self.least, counts=counts)
        return ErrorRate(
            acted=self._acted, checked=self._checked, errors=self._errors, low=low, high=min(1.0, high),
            level=self.level, risk=self.risk,
        )  # fmt: skip
