"""Milliseconds of each method: its own time and that of the shared work that it uses."""

import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch

from ..adaptation import Outcome, Pipeline
from ..adapters import Adapted, Batch
from ..calibrators import Calibrated
from ..methods import Method
from ..prompts import Task

T = TypeVar("T")


class TimedBatch(Batch):
    """A batch with the `seconds` of its shared work, and the keys of what was `used` since it was last cleared."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.seconds: dict[Hashable, float] = {}
        self.used: set[Hashable] = set()

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def once(self, key: Hashable, compute: Callable[..., T], *arguments: Any) -> T:
        self.used.add(key)
        if key in self.seconds:
            return super().once(key, compute, *arguments)
        began, others = now(self.task), self.total
        value = super().once(key, compute, *arguments)
        self.seconds[key] = now(self.task) - began - (self.total - others)
        return value


class TimedPipeline(Pipeline):
    """A pipeline that also measures the milliseconds per sample of each method: in the last run, and in all of them.

    A method's time is its own and that of the shared work that it uses, so it depends neither on the other methods nor
    on their order. Methods of one adapter share the time of its one pass. Reading the clock waits for a GPU.
    """

    batch = TimedBatch
    milliseconds: dict[Method, float]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._samples, self._spent = 0, dict.fromkeys(self.methods, 0.0)

    @property
    def mean_milliseconds(self) -> dict[Method, float]:
        """Of all samples so far."""
        return {method: spent / max(1, self._samples) for method, spent in self._spent.items()}

    def run(self, *arguments: Any, **options: Any) -> dict[Method, Outcome]:
        self._adapting: dict[str, float] = {}
        self._calibrating: dict[Method, float] = {}
        outcomes = super().run(*arguments, **options)
        self.milliseconds = {}
        samples = max((len(outcome.agreement) for outcome in outcomes.values()), default=0)
        self._samples += samples
        for method in outcomes:
            seconds = self._adapting[method.base] + self._calibrating[method]
            self.milliseconds[method] = 1000 * seconds / max(1, samples)
            self._spent[method] += 1000 * seconds
        return outcomes

    def adapt(self, name: str, batch: Batch) -> Adapted:
        assert isinstance(batch, TimedBatch)
        batch.used.clear()
        began, shared = now(self.task), batch.total
        adapted = super().adapt(name, batch)
        own = now(self.task) - began - (batch.total - shared)
        spent = own + sum(batch.seconds[key] for key in batch.used)
        self._adapting[name] = self._adapting.get(name, 0.0) + spent
        return adapted

    def calibrate(self, method: Method, adapted: Adapted) -> Calibrated:
        began = now(self.task)
        calibrated = super().calibrate(method, adapted)
        # An adapter alone has no calibrator, and every calibrator includes its softmax. So two methods of one pass
        # differ by the time of the calibrator, which is never negative.
        self._calibrating[method] = 0.0 if method.calibrator == "none" else now(self.task) - began
        return calibrated


def now(task: Task) -> float:
    """Seconds of a clock that waits for the task's GPU."""
    if task.device.type == "cuda":
        torch.cuda.synchronize(task.device)
    return time.perf_counter()
