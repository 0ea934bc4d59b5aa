"""A bounded queue with one worker thread for each device; requests of the same kind are handed over together."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

log = logging.getLogger("cots.serve")


class Item(Protocol):
    """Something to be done; items of an equal `key` that is not None can be done together."""

    @property
    def key(self) -> Hashable: ...


# Items in, for each its result or the exception that is its result.
Handler = Callable[[list[Any]], Sequence[Any]]


class Full(Exception):
    """The queue is full; `retry_s` is when to come again."""

    def __init__(self, retry_s: int) -> None:
        super().__init__(f"queue full, retry in {retry_s} s")
        self.retry_s = retry_s


class Closed(Exception):
    """The engine takes no more."""


class Engine:
    """`submit(item)` gives a future; a cancelled future is not worked on. `close` finishes what is queued.

    At most `batch_size` items go to a handler together, fewer where they would take it longer than `batch_s` seconds.
    """

    def __init__(
        self,
        handlers: Sequence[Handler],
        *,
        capacity: int,
        batch_size: int,
        batch_s: float = math.inf,
        observe: Callable[[int], None] = lambda size: None,
    ) -> None:
        self._handlers, self._capacity, self._observe = handlers, capacity, observe
        self._batch_size, self._batch_s = batch_size, batch_s
        self._waiting: deque[tuple[Any, Future[Any]]] = deque()
        self._ready = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._seconds = 0.0  # of work for one item with a key, a running mean; 0 before the first

    def __len__(self) -> int:
        """Items that wait."""
        return len(self._waiting)

    def submit(self, item: Item) -> Future[Any]:
        future: Future[Any] = Future()
        with self._ready:
            if self._closed:
                raise Closed
            if len(self._waiting) >= self._capacity:
                # Whoever gave up waiting holds no place.
                self._waiting = deque(entry for entry in self._waiting if not entry[1].cancelled())
            if len(self._waiting) >= self._capacity:
                raise Full(self._retry_s())
            if not self._threads:
                self._start()
            self._waiting.append((item, future))
            self._ready.notify()
        return future

    def close(self) -> None:
        """Take nothing more, do what is queued, and wait until it is done."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def _start(self) -> None:
        for number, handler in enumerate(self._handlers):
            # Daemons: a program that forgets to close the engine must still be able to end.
            thread = threading.Thread(target=self._work, args=(handler,), name=f"cots-device-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self, handler: Handler) -> None:
        while True:
            with self._ready:
                while not self._waiting and not self._closed:
                    self._ready.wait()
                if not self._waiting:
                    return
                batch = self._take()
            if not batch:
                continue
            started = time.perf_counter()
            self._observe(len(batch))
            self._run(handler, batch)
            if batch[0][0].key is not None:
                spent = (time.perf_counter() - started) / len(batch)
                self._seconds += (0.2 if self._seconds else 1.0) * (spent - self._seconds)

    def _take(self) -> list[tuple[Any, Future[Any]]]:
        """The oldest item and those of its key, in order; nobody is overtaken by another key's later item for long."""
        # All of a batch are answered when its last is done: on a slow device waiting costs more than sharing saves.
        most = max(1, min(self._batch_size, int(min(1e9, self._batch_s / self._seconds)))) if self._seconds else 1
        batch: list[tuple[Any, Future[Any]]] = []
        left: deque[tuple[Any, Future[Any]]] = deque()
        while self._waiting:
            item, future = self._waiting.popleft()
            fits = not batch or (item.key is not None and item.key == batch[0][0].key)
            if len(batch) == most or not fits:
                left.append((item, future))
            elif future.set_running_or_notify_cancel():
                batch.append((item, future))
        self._waiting = left
        return batch

    def _run(self, handler: Handler, batch: list[tuple[Any, Future[Any]]]) -> None:
        try:
            results = handler([item for item, _ in batch])
        except Exception as error:
            if len(batch) == 1:
                batch[0][1].set_exception(error)
                return
            log.warning("a batch of %d failed (%r); its requests are run one by one", len(batch), error)
            for entry in batch:
                self._run(handler, [entry])
            return
        for (_, future), result in zip(batch, results, strict=True):
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

    def _retry_s(self) -> int:
        return max(1, min(60, math.ceil(len(self._waiting) * (self._seconds or 1.0) / len(self._handlers))))
