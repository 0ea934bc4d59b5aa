"""Work that runs ahead in threads while its consumer is busy with the device."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# PIL gives up the interpreter's lock while it decodes, but not for the little before and after: on 16 cores, four
# threads read 384 photos a second, eight 292, sixteen 227 (docs/performance.md).
_THREADS = 4
_AHEAD = 2  # items a thread that wait for the consumer


def in_threads(work: Callable[[Item], Result], items: Iterable[Item], threads: int | None = None) -> Generator[Result]:
    """`work(item)` of every item, in order, some items ahead; an error is raised where its result would have come.

    >>> list(in_threads(str.upper, "abc"))
    ['A', 'B', 'C']
    """
    count = threads or min(_THREADS, os.cpu_count() or 1)
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(count, thread_name_prefix="cots-views") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > _AHEAD * count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            # A consumer that stops early does not wait for what nobody will take.
            for future in waiting:
                future.cancel()
