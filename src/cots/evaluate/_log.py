"""RunLog: the figures of a run, sent to Weights & Biases, MLflow or TensorBoard as its parts finish.

Each logger works in a thread of its own, so that a slow one does not delay the run, and one that fails is dropped with
a warning. `log-NAME.json` in the run folder has what was sent, so a resumed run sends the rest. The step is the seed.
"""

import itertools
import math
import queue
import threading
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from .._checked import read_json, write_json
from .._checkpoints import one_line
from .._errors import InputError
from ..bench import Run
from ._loggers import Logger, logger_of
from ._score import score

FIGURES = ("accuracy", "ece", "nll", "aurc")
_WAIT, _WAIT_INTERRUPTED = 60.0, 5.0  # seconds for a logger to send what is left

Part = tuple[str, int] | None  # dataset and seed that are done; None: the run has begun


class RunLog:
    """Pass it to `Plan.run`, to log what finishes:

        with cots.evaluate.RunLog(["tensorboard"]) as log:
            cots.bench.plan(config).run(finished=log)

    loggers: "wandb", "mlflow", "tensorboard", or objects with the methods of `Logger`.
    """

    def __init__(self, loggers: Iterable[str | Logger]) -> None:
        chosen = []
        for name in dict.fromkeys(loggers):
            chosen.append(logger_of(name) if isinstance(name, str) else name)
        self._workers = [_Worker(logger) for logger in chosen]

    def __call__(self, run: Run, part: Part = None) -> None:
        for worker in self._workers:
            worker.queue.put((run, part))
            worker.warn()

    def __enter__(self) -> Self:
        for worker in self._workers:
            worker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        for worker in self._workers:
            worker.queue.put(None)  # the end
        deadline = time.monotonic() + (_WAIT if kind is None else _WAIT_INTERRUPTED)
        for worker in self._workers:
            worker.join(max(0.0, deadline - time.monotonic()))
            worker.warn(ended=True)


class _Worker(threading.Thread):
    """The thread of one logger; a daemon, because a logger may hang."""

    def __init__(self, logger: Logger) -> None:
        super().__init__(name=f"cots-log-{logger.name}", daemon=True)
        self.logger = logger
        self.queue: queue.SimpleQueue[tuple[Run, Part] | None] = queue.SimpleQueue()
        self._problem = ""
        self._sent: _Sent | None = None

    def run(self) -> None:
        latest: Run | None = None
        try:
            while (item := self.queue.get()) is not None:
                latest, part = item
                self._send(latest, part)
            if latest is not None:
                self._send(latest, None)
                self.logger.close(latest.complete)
        except BaseException as error:  # packages of others raise anything, also SystemExit
            self._problem = f"{type(error).__name__}: {one_line(error)}"

    def warn(self, ended: bool = False) -> None:
        """Warn, once, if the logger has failed or, after the run has `ended`, still works."""
        if self._problem:
            problem, self._problem = f"failed ({self._problem})", ""
        elif ended and self.is_alive():
            problem = "does not answer"
        else:
            return
        name = self.logger.name
        warnings.warn(
            f"The logger {name} {problem}. The run is not affected; run the same command again to send the missing "
            "figures.",
            stacklevel=3,
        )

    def _send(self, run: Run, part: Part) -> None:
        if self._sent is None:
            self._sent = _Sent.read(run, self.logger.name)
            self._sent.where = self.logger.start(run, self._sent.where)
            self._sent.write(run)
        datasets, seeds = ((part[0],), (part[1],)) if part else (run.datasets, run.seeds)
        for dataset, method, seed in itertools.product(datasets, run.methods, seeds):
            self._send_cell(run, self._sent, dataset, method, seed)

    def _send_cell(self, run: Run, sent: "_Sent", dataset: str, method: str, seed: int) -> None:
        cell = f"{dataset}/{seed}/{method}"
        if sent.failed.get(cell) == 0:
            return
        try:
            records = run.records(dataset, method, seed)
        except InputError:  # not finished
            return
        if sent.failed.get(cell) == records.failed:
            return
        figures = {"failed": float(records.failed)}
        if len(records):
            scored = score(records, FIGURES)
            figures |= {**scored.values, "mean_confidence": scored.mean_confidence}
            figures |= {"tau": scored.tau, "milliseconds": scored.milliseconds, "encoding": scored.encoding}
        known = {name: value for name, value in figures.items() if math.isfinite(value)}
        self.logger.log(dataset, method, seed, known)
        sent.failed[cell] = records.failed
        sent.write(run)


@dataclass
class _Sent:
    """What a logger has of a run. failed: number of failed records by cell; those that had some are sent again."""

    name: str
    where: str = ""
    failed: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, run: Run, name: str) -> Self:
        file = run.folder / f"log-{name}.json"
        if not file.is_file():
            return cls(name)
        content = read_json(file, remedy="Delete it to send all figures again.")
        return cls(name, str(content["where"]), {str(key): int(value) for key, value in content["failed"].items()})

    def write(self, run: Run) -> None:
        write_json(run.folder / f"log-{self.name}.json", {"where": self.where, "failed": self.failed})
