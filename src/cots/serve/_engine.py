"""A bounded queue with one worker thread per device; requests with equal keys run as one batch."""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

log = logging.getLogger("cots.serve")

# From items with equal keys to their results; a result can be an exception.
Handler = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True, eq=False)
class Entry:
    """A waiting item, its future, and when it was submitted and must be done, by `time.perf_counter`."""

    item: Any
    future: Future[Any]
    submitted: float
    deadline: float

    @property
    def key(self) -> Any:
        return getattr(self.item, "key", None)


class Full(Exception):
    """The queue is full; the argument is the number of seconds after which to retry."""


class Late(Exception):
    """The item would not start in time; the argument is the number of seconds after which to retry."""


class Closed(Exception):
    """The engine accepts no more items."""


class Engine:
    """Runs items in order of arrival: `submit(item)` returns a future, and cancelled futures are skipped.

    An item is a function without arguments, which runs alone, or an object with a `key`: a handler takes up to
    `batch_size` items with equal keys at once, fewer where they would take longer than `batch_s` seconds.
    """

    def __init__(
        self,
        handlers: Sequence[Handler],
        *,
        capacity: int,
        batch_size: int,
        batch_s: float = math.inf,
        observe: Callable[[int], object] = lambda size: None,
    ) -> None:
        self._devices, self._capacity, self._observe = len(handlers), capacity, observe
        self._batch_size, self._batch_s = batch_size, batch_s
        self._idle: SimpleQueue[Handler] = SimpleQueue()
        for handler in handlers:
            self._idle.put(handler)
        self._threads = ThreadPoolExecutor(len(handlers), thread_name_prefix="cots-device")
        self._waiting: list[Entry] = []
        self._lock = threading.Lock()
        self.closed = False
        self._seconds = 0.0  # running mean per item with a key; 0 before the first batch

    def __len__(self) -> int:
        """Number of waiting items."""
        return len(self._waiting)

    def submit(self, item: Any, timeout_s: float = math.inf) -> Future[Any]:
        """The result of an item; refused if the items before it are expected to take longer than `timeout_s`."""
        future: Future[Any] = Future()
        with self._lock:
            if self.closed:
                raise Closed
            if len(self._waiting) >= self._capacity:
                self._waiting = [entry for entry in self._waiting if not entry.future.cancelled()]
            if len(self._waiting) >= self._capacity:
                raise Full(self.retry_s())
            if len(self._waiting) * self._seconds / self._devices > timeout_s:
                raise Late(self.retry_s())
            now = time.perf_counter()
            self._waiting.append(Entry(item, future, submitted=now, deadline=now + timeout_s))
            self._threads.submit(self._run_oldest)
        return future

    def retry_s(self) -> int:
        """Seconds until the waiting items are done, from 1 to 60."""
        return max(1, min(60, math.ceil(len(self._waiting) * (self._seconds or 1.0) / self._devices)))

    def close(self) -> None:
        """Accept no more items, finish those in the queue, and return when they are done."""
        with self._lock:
            self.closed = True
        self._threads.shutdown()

    def _run_oldest(self) -> None:
        with self._lock:
            batch = self._take()
        if not batch:  # this call's item has run in an earlier batch
            return
        handler, started = self._idle.get(), time.perf_counter()
        try:
            self._observe(len(batch))
            self._run(handler, batch)
        finally:
            self._idle.put(handler)
        if batch[0].key is not None:
            spent = (time.perf_counter() - started) / len(batch)
            self._seconds += (0.2 if self._seconds else 1.0) * (spent - self._seconds)

    def _take(self) -> list[Entry]:
        """The oldest item and the waiting items with its key, oldest first."""
        self._drop_late()
        if not self._waiting:
            return []
        # A response waits for its whole batch, so on a slow device large batches cost more than they save.
        most = 1
        if self._seconds and self._waiting[0].key is not None:
            most = int(max(1, min(self._batch_size, self._batch_s / self._seconds)))
        batch = [entry for entry in self._waiting if entry.key == self._waiting[0].key][:most]
        self._waiting = [entry for entry in self._waiting if entry not in batch]
        return [entry for entry in batch if entry.future.set_running_or_notify_cancel()]

    def _drop_late(self) -> None:
        """Drop the cancelled items, and refuse those that waited for long and would be done too late."""
        waiting, now = [], time.perf_counter()
        for entry in self._waiting:
            if now - entry.submitted > entry.deadline - now < self._seconds:
                if entry.future.set_running_or_notify_cancel():
                    entry.future.set_exception(Late(self.retry_s()))
            elif not entry.future.cancelled():
                waiting.append(entry)
        self._waiting = waiting

    def _run(self, handler: Handler, batch: list[Entry]) -> None:
        items = [entry.item for entry in batch]
        try:
            results = [items[0]()] if callable(items[0]) else handler(items)
        except Exception as error:
            if len(batch) == 1:
                batch[0].future.set_exception(error)
                return
            log.warning("a batch of %d failed (%r); running its requests one by one", len(batch), error)
            for entry in batch:
                self._run(handler, [entry])
            return
        for entry, result in zip(batch, results, strict=True):
            if isinstance(result, BaseException):
                entry.future.set_exception(result)
            else:
                entry.future.set_result(result)
