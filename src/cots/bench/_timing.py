"""Milliseconds of each method: its own time and that of the shared work that it uses."""

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from ..adaptation import Outcome, Pipeline
from ..adapters import Adapted, Batch
from ..calibrators import Calibrated
from ..methods import Method
from ..prompts import Task

T = TypeVar("T")
Instant = float | torch.cuda.Event


@dataclass(frozen=True, eq=False)
class Span:
    """Time from `begin` to `end`, without that of the spans inside."""

    begin: Instant
    end: Instant
    inside: "Sequence[Span]" = ()

    @property
    def seconds(self) -> float:
        """Waits for a GPU to reach the end."""
        return _elapsed(self.begin, self.end) - sum(span.seconds for span in self.inside)


def _elapsed(begin: Instant, end: Instant) -> float:
    if isinstance(begin, float) and isinstance(end, float):
        return end - begin
    assert isinstance(begin, torch.cuda.Event)
    assert isinstance(end, torch.cuda.Event)
    end.synchronize()
    return begin.elapsed_time(end) / 1000


class TimedBatch(Batch):
    """A batch with the `spans` of its shared work, and the keys of what was `used` since it was last cleared."""

    def __init__(self, *arguments: Any, clock: Callable[[Task], Instant], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.clock = clock
        self.spans: dict[Hashable, Span] = {}
        self.used: set[Hashable] = set()

    def since(self, count: int) -> list[Span]:
        """The spans after the first `count`."""
        return list(self.spans.values())[count:]

    def once(self, key: Hashable, compute: Callable[..., T], *arguments: Any) -> T:
        self.used.add(key)
        if key in self.spans:
            return super().once(key, compute, *arguments)
        before, began = len(self.spans), self.clock(self.task)
        value = super().once(key, compute, *arguments)
        self.spans[key] = Span(began, self.clock(self.task), self.since(before))
        return value


class TimedPipeline(Pipeline):
    """A pipeline that also measures the milliseconds per sample of each method: in the last run, and in all of them.

    A method's time is its own and that of the shared work that it uses, so it depends neither on the other methods nor
    on their order. Methods of one adapter share the time of its one pass.

    waits: whether reading the clock waits for a GPU. If not, `run` never waits, and a method's time is that between
    its first and its last work on the GPU, with what other threads have it do in between.
    """

    def __init__(self, *arguments: Any, waits: bool = True, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._clock = now if waits else mark
        self._samples, self._spent = 0, dict.fromkeys(self.methods, 0.0)
        self._unread: list[tuple[int, dict[Method, list[Span]]]] = []  # samples and spans of runs
        self._last: dict[Method, float] = {}

    def batch(self, *arguments: Any, **options: Any) -> TimedBatch:
        return TimedBatch(*arguments, clock=self._clock, **options)

    @property
    def milliseconds(self) -> dict[Method, float]:
        """Of the last run; waits for it."""
        self._read_spans()
        return self._last

    @property
    def mean_milliseconds(self) -> dict[Method, float]:
        """Of all samples so far; waits for the last run."""
        self._read_spans()
        return {method: spent / max(1, self._samples) for method, spent in self._spent.items()}

    def run(self, *arguments: Any, **options: Any) -> dict[Method, Outcome]:
        self._adapting: dict[str, list[Span]] = {}
        self._calibrating: dict[Method, list[Span]] = {}
        outcomes = super().run(*arguments, **options)
        spans = {method: [*self._adapting[method.base], *self._calibrating[method]] for method in outcomes}
        samples = max((len(outcome.agreement) for outcome in outcomes.values()), default=0)
        self._unread.append((samples, spans))
        return outcomes

    def adapt(self, name: str, batch: Batch) -> Adapted:
        assert isinstance(batch, TimedBatch)
        batch.used.clear()
        before, began = len(batch.spans), self._clock(self.task)
        adapted = super().adapt(name, batch)
        own = Span(began, self._clock(self.task), batch.since(before))
        self._adapting.setdefault(name, []).extend([own, *(batch.spans[key] for key in batch.used)])
        return adapted

    def calibrate(self, method: Method, adapted: Adapted) -> Calibrated:
        began = self._clock(self.task)
        calibrated = super().calibrate(method, adapted)
        # An adapter alone has no calibrator, and every calibrator includes its softmax. So two methods of one pass
        # differ by the time of the calibrator, which is never negative.
        self._calibrating[method] = [] if method.calibrator == "none" else [Span(began, self._clock(self.task))]
        return calibrated

    def _read_spans(self) -> None:
        for samples, spans in self._unread:
            self._last = {}
            for method, own in spans.items():
                milliseconds = 1000 * sum(span.seconds for span in own)
                self._last[method] = milliseconds / max(1, samples)
                self._spent[method] += milliseconds
            self._samples += samples
        self._unread = []


def now(task: Task) -> float:
    """Seconds of a clock that waits for the task's GPU."""
    if task.device.type == "cuda":
        torch.cuda.synchronize(task.device)
    return time.perf_counter()


def mark(task: Task) -> Instant:
    """Now, or the point that the task's GPU has reached when it gets here."""
    if task.device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(task.device))
    return event
