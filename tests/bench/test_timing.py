"""A method's milliseconds: its own time and that of the shared work it uses, by a clock that methods move."""

from __future__ import annotations

import itertools

import pytest
import torch
from support.models import random_views, tiny_task

import cots
from cots.adaptation import Pipeline
from cots.adapters import ADAPTERS
from cots.bench import TimedPipeline


@pytest.mark.parametrize("order", list(itertools.permutations(["dear", "cheap", "alone+cots"])))
def test_milliseconds_do_not_depend_on_the_order_of_methods(order, monkeypatch):
    seconds = [0.0]

    def spend(some):
        seconds[0] += some

    monkeypatch.setattr("cots.bench._timing.now", lambda task: seconds[0])

    def register(name, own, shared):
        @cots.adapter(name)
        def function(batch):
            if shared:
                batch.once("work", lambda: spend(10))
            spend(own)
            return cots.Adapted(zero_shot_logits=batch.zero_shot, logits=batch.zero_shot.clone())

    register("dear", 3, True)
    register("cheap", 1, True)
    register("alone", 2, False)
    task = tiny_task("vit")
    try:
        pipeline = TimedPipeline(task, order)
        pipeline.run(random_views(task, samples=2, seed=7))
    finally:
        for name in ("dear", "cheap", "alone"):
            ADAPTERS.unregister(name)
    spent = {str(method): milliseconds for method, milliseconds in pipeline.milliseconds.items()}
    assert spent == {"dear": 6500.0, "cheap": 5500.0, "alone+cots": 1000.0}


@pytest.mark.parametrize("order", [["tpt", "tpt+cots", "tpt+sals"], ["tpt+sals", "tpt+cots", "tpt"]])
def test_a_calibrator_adds_its_own_time_however_slow_the_softmax_of_the_adapter_alone_was(order, monkeypatch):
    """The first softmax of a process takes longest: here every reading of the clock takes half as long as the last."""
    clock = itertools.accumulate(1000 * 0.5**i for i in range(1000))
    monkeypatch.setattr("cots.bench._timing.now", lambda task: next(clock))
    task = tiny_task("vit")
    pipeline = TimedPipeline(task, order)
    pipeline.run(random_views(task, samples=2, seed=7))
    spent = {str(method): milliseconds for method, milliseconds in pipeline.milliseconds.items()}
    assert spent["tpt"] < min(spent["tpt+cots"], spent["tpt+sals"])


@pytest.mark.parametrize("read_between", [True, False])
def test_the_mean_is_over_the_samples_of_all_runs(read_between, monkeypatch):
    """Also if nobody asks before the end: with waits=False, asking is what waits for a GPU."""
    clock = itertools.count()
    monkeypatch.setattr("cots.bench._timing.mark", lambda task: float(next(clock)))
    task = tiny_task("vit")
    pipeline = TimedPipeline(task, ["zeroshot", "zeroshot+cots"], waits=False)
    for samples in (3, 1):
        pipeline.run(random_views(task, samples=samples))
        if read_between:
            assert pipeline.milliseconds
    spent = {str(method): milliseconds for method, milliseconds in pipeline.mean_milliseconds.items()}
    # Each run: the pass with the zero-shot logits in it, 3 ticks, and the calibrator, 1.
    assert spent == {"zeroshot": 1500.0, "zeroshot+cots": 2000.0}
    assert {str(m): ms for m, ms in pipeline.milliseconds.items()} == {"zeroshot": 3000.0, "zeroshot+cots": 4000.0}


def test_timing_changes_no_result():
    task = tiny_task("vit")
    features, methods = random_views(task, samples=2), ["tpt+ecots", "soc", "tda+cots"]
    timed, plain = TimedPipeline(task, methods, ranges=True), Pipeline(task, methods, ranges=True)
    for _ in range(2):
        outcomes = timed.run(features)
        for method, expected in plain.run(features).items():
            assert torch.equal(outcomes[method].calibrated.probabilities, expected.calibrated.probabilities)
            assert timed.milliseconds[method] > 0
