"""The queue on its own: order, batches, capacity, failures and closing."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import pytest
from support.serving import until

from cots.serve._engine import Closed, Engine, Full, Late


@dataclass
class Item:
    key: str
    value: object = None


class Block:
    """A function that runs until it is released."""

    def __init__(self) -> None:
        self.entered, self.release = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.entered.set()
        self.release.wait(60)
        return "released"


def test_order_batches_failures_and_close():
    block, seen = Block(), []

    def handler(items):
        values = [item.value for item in items]
        seen.append(values)
        if "poison" in values:
            raise ZeroDivisionError
        return [KeyError(value) if value == "fail" else value for value in values]

    engine = Engine([handler], capacity=7, batch_size=3)
    engine.submit(Item("first", 0)).result(60)
    held = engine.submit(block)
    assert block.entered.wait(60)
    given = [Item("a", 1), Item("b", 2), Item("a", "fail"), Item("a", "poison"), Item("a", 4), lambda: 5, lambda: 6]
    futures = [engine.submit(item) for item in given]
    with pytest.raises(Full):
        engine.submit(Item("a", 7))
    assert futures[6].cancel()
    last = engine.submit(Item("a", 8))  # a cancelled request frees its place
    stopper = threading.Thread(target=engine.close)
    stopper.start()
    until(lambda: engine.closed, "the engine to close")
    with pytest.raises(Closed):
        engine.submit(Item("a", 9))
    block.release.set()
    stopper.join(60)
    assert not stopper.is_alive()
    assert held.result(0) == "released"
    assert [futures[i].result(0) for i in (0, 1, 4, 5)] == [1, 2, 4, 5]
    assert last.result(0) == 8
    with pytest.raises(KeyError):
        futures[2].result(0)
    with pytest.raises(ZeroDivisionError):
        futures[3].result(0)
    assert seen == [[0], [1, "fail", "poison"], [1], ["fail"], ["poison"], [2], [4, 8]]


def test_slow_devices_take_smaller_batches(monkeypatch):
    """With a fake clock on which an item takes 0.4 s, two items fit into a second."""
    import cots.serve._engine as module

    clock, sizes, block = [0.0], [], Block()

    def handler(items):
        clock[0] += 0.4 * len(items)
        sizes.append(len(items))
        return items

    class Time:
        @staticmethod
        def perf_counter():
            return clock[0]

    monkeypatch.setattr(module, "time", Time)
    engine = Engine([handler], capacity=20, batch_size=8, batch_s=1.0)
    engine.submit(Item("a")).result(60)
    engine.submit(block)
    assert block.entered.wait(60)
    futures = [engine.submit(Item("a")) for _ in range(5)]
    block.release.set()
    for future in futures:
        future.result(60)
    engine.close()
    assert sizes == [1, 2, 2, 1]


def test_two_devices_share_the_queue():
    engine, meet = Engine([list, list], capacity=4, batch_size=1), threading.Barrier(2)
    futures = [engine.submit(lambda: meet.wait(60)) for _ in range(2)]
    assert sorted(future.result(60) for future in futures) == [0, 1], "each waits for the other, so both run at once"
    engine.close()


def test_items_that_would_start_too_late_are_refused():
    block = Block()
    engine = Engine([lambda items: [None] * len(items)], capacity=9, batch_size=1)
    engine._seconds = 2.0
    engine.submit(block)
    assert block.entered.wait(60)
    for _ in range(3):  # the third waits for two
        engine.submit(Item("a"), timeout_s=4.0)
    with pytest.raises(Late) as late:
        engine.submit(Item("a"), timeout_s=4.0)
    assert late.value.args == (6,)
    engine.submit(Item("a"), timeout_s=6.0)
    block.release.set()
    engine.close()


def test_an_item_that_waited_for_long_and_would_be_done_too_late_is_refused():
    block, seen = Block(), []
    engine = Engine([lambda items: seen.extend(items) or items], capacity=9, batch_size=1)
    engine._seconds = 0.5
    engine.submit(block)
    assert block.entered.wait(60)
    late, patient = engine.submit(Item("a"), timeout_s=0.2), engine.submit(Item("b"), timeout_s=60)
    time.sleep(0.15)
    block.release.set()
    with pytest.raises(Late):
        late.result(60)
    assert patient.result(60).key == "b"
    assert [item.key for item in seen] == ["b"], "no work is done for a response that nobody waits for"
    engine.close()
