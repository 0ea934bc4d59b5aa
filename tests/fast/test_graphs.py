"""Recordings without a GPU: a fake recorder shows that no setting and no task ever meets the recording of another."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest
import torch
from support.models import CLASSES, NEEDS, random_views, tiny
from torch.utils._python_dispatch import TorchDispatchMode

import cots
from cots.accelerate import Plain, accelerator, using
from cots.adapters import ADAPTERS
from cots.calibrators import CALIBRATORS
from cots.fast import graphs
from cots.fast.graphs import Changeable, key_of
from cots.fast.text_tower import FastText

# Other values than the defaults, each with an effect on the samples below.
OTHER: dict[str, Any] = {
    "steps": 2, "lr": 0.02, "rho": 0.4, "weight": 3.0, "neighbours": 3, "temperature": 0.5, "reselect": False,
    "affinity": 1.0, "spread": 0.5, "positive": (1.0, 3.0), "negative": (0.5, 2.0), "cache_from": "confident",
    "shots": 4, "sharpness": 2.0, "gamma": 0.5, "extra": 0, "length": 5, "alpha": 0.3, "beta": 0.9, "dual_lr": 5.0,
    "proxy_lr": 0.1, "output": "share", "views": "all_strong", "k": 2, "loss": "l1", "t0": 3.0, "directions": 2,
    "delta": 0.3, "lambda_": 0.2, "reliability": 3.0, "zeta": 0.5, "words": 1, "double_softmax": True,
}  # fmt: skip
SKIPPED = {"state", "seed", "solver", "huber_delta", "text_features", "tuned_features", "threshold"}
PAPER = {"form": "paper", "delta": 0.2, "lambda_": 5.0}
WITH = {"reselect": {"steps": 3}, ("tda", "rho"): {"cache_from": "confident"}}


# Operations for which a GPU waits, or that copy a value of the host to it: they cannot be recorded.
aten = torch.ops.aten
WAITING = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten._unique2, aten.equal, aten.lift_fresh}


class Capture(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in WAITING:
            raise RuntimeError(f"{func} cannot be recorded")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def recorder(monkeypatch):
    """Record on this machine; a replay runs the function that was recorded, and is counted."""
    replays = []

    class Replay:
        def __init__(self, function, inputs):
            self.function = function
            function(*(tensor.clone() for tensor in inputs))
            with Capture():
                function(*(tensor.clone() for tensor in inputs))

        def replay(self, inputs):
            replays.append(self.function)
            return self.function(*inputs)

    monkeypatch.setattr(graphs, "on_gpu", lambda tensor: True)
    monkeypatch.setattr(graphs, "record", Replay)
    monkeypatch.setattr(FastText, "compiles", True)
    return replays


def settings_of(registry, name: str) -> list[dict[str, Any]]:
    """The method's defaults, then each setting changed."""
    base = {"length": 20} if "length" in registry.settings(name) else {}
    found = [base]
    for setting in registry.settings(name).keys() - SKIPPED:
        if setting == "form":
            found.append(PAPER if name == "soc" else {"form": "softmax"})
            continue
        others = WITH.get(setting, WITH.get((name, setting), {}))
        if setting == "neighbours" and name == "mta":
            others = {"neighbours": 0.6}
        if setting == "rho" and "cache_from" in registry.settings(name):
            others = {"cache_from": "confident"}
        if setting == "rho" and name == "zero":
            others = {"rho": 0.8}
        if name == "soc" and setting in PAPER:
            others = {**PAPER, setting: OTHER[setting]}
        found += [{**base, **others}] if others else []
        found.append({**base, setting: OTHER[setting], **others})
    return found


OF_FEATURES = [info.name for info in ADAPTERS.infos() if info.takes == "features"]


@pytest.mark.parametrize("name", OF_FEATURES)
def test_an_adapter_never_meets_the_recording_of_other_settings(name, recorder):
    needs = NEEDS.get(name, {})
    task = cots.Task(tiny("vit"), CLASSES, **needs)
    views = random_views(task, samples=3, views=12)
    for settings in settings_of(ADAPTERS, name):
        with using(Plain()):
            expected = cots.adapt(name, views, cots.Task(tiny("vit"), CLASSES, **needs), **settings).logits
        for _ in range(4):
            found = cots.adapt(name, views, task, **settings).logits
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-3 * float(expected.abs().max()))
    assert recorder, "later calls are replays"


@pytest.mark.parametrize("name", [name for name in CALIBRATORS if name not in {"dac", "pseudocal"}])
def test_a_calibrator_never_meets_the_recording_of_other_settings(name, recorder):
    generator = torch.Generator().manual_seed(0)
    zero_shot = 2 * torch.randn(3, 20, 7, generator=generator)
    adapted = 1.5 * zero_shot + 0.5 * torch.randn(3, 20, 7, generator=generator)
    alpha = {"alpha": 0.7} if "alpha" in CALIBRATORS.settings(name) else {}
    for settings in settings_of(CALIBRATORS, name):
        run = functools.partial(cots.calibrate, adapted, zero_shot, name, **{**alpha, **settings})
        with using(Plain()):
            expected = run()
        for _ in range(4):
            found = run()
            assert torch.equal(found.probabilities, expected.probabilities)
            assert found.alpha == expected.alpha
    assert recorder


@pytest.mark.parametrize("name", ["tpt", "soc", "tps", "tda", "dmn"])
def test_a_task_never_meets_the_recording_of_another(name, recorder):
    other = ["tabby dog", "silver_retriever", "bus", "sea-covered mountain peak", "bush"]
    for classes in (CLASSES, other, CLASSES[::-1]):
        task = cots.Task(tiny("vit"), classes)
        views = random_views(task, samples=3, views=12)
        with using(Plain()):
            expected = cots.adapt(name, views, cots.Task(tiny("vit"), classes)).logits
        for _ in range(4):
            torch.testing.assert_close(cots.adapt(name, views, task).logits, expected, rtol=1e-3, atol=2e-3)
    assert recorder


def test_replays_count_towards_the_jacobian(recorder, monkeypatch):
    monkeypatch.setattr("cots.fast.text_tower.LINEARISE_FROM", 20)
    monkeypatch.setattr(FastText, "_linearise", lambda self: setattr(self, "linear", True))
    task = cots.Task(tiny("vit", torch.float64), CLASSES)
    views = random_views(task, samples=3)
    first = cots.adapt("tpt", views, task).logits
    for _ in range(8):
        torch.testing.assert_close(cots.adapt("tpt", views, task).logits, first, rtol=0, atol=1e-9)
    assert task.tower.linear  # pyright: ignore
    task = cots.Task(tiny("vit", torch.float64), CLASSES)
    task.expect(3, exactly=True)
    for _ in range(8):
        cots.adapt("tpt", views, task)
    assert not task.tower.linear  # pyright: ignore


def test_no_recording_contains_a_new_jacobian(recorder, monkeypatch):
    monkeypatch.setattr("cots.fast.text_tower.LINEARISE_FROM", 8)
    monkeypatch.setattr(FastText, "_linearise", lambda self: setattr(self, "linear", True))
    task = cots.Task(tiny("vit"), CLASSES)
    views = random_views(task, samples=3)
    for _ in range(2):
        cots.adapt("tpt", views, task)
    assert not task.tower.linear  # pyright: ignore
    cots.adapt("tpt", views, task)  # recorded: three more samples, however often the function runs
    assert task.tower.linear  # pyright: ignore
    for _ in range(4):
        cots.adapt("tpt", views, task)
    assert recorder


def test_what_cannot_be_recorded_runs_as_it_is(recorder, monkeypatch):
    monkeypatch.setattr(graphs, "record", lambda function, inputs: None)
    run = accelerator().compiled(lambda x: (2 * x,))
    assert [float(run(torch.ones(()))[0]) for _ in range(5)] == [2.0] * 5
    assert not recorder


def test_recordings_belong_to_their_owner(recorder):
    task = cots.Task(tiny("vit"), CLASSES)
    run = accelerator().compiled(lambda x: (2 * x,), task)
    for _ in range(4):
        run(torch.ones(3))
    assert len(recorder) == 2
    assert len(vars(task)["_recordings"]) == 1


@dataclasses.dataclass(frozen=True)
class Setting:
    value: float


def function_of(value: Any):
    return lambda x: (x, value)


def test_keys_tell_values_apart():
    same = [
        (0.5, 0.5),
        ("a", "a"),
        ((1, 2.0), (1, 2.0)),
        ([1], [1]),
        ({"a": 1}, {"a": 1}),
        (Setting(1.0), Setting(1.0)),
    ]
    for one, other in same:
        assert key_of(function_of(one)) == key_of(function_of(other))
    different = [(1, 1.0), (True, 1), (0.0, -0.0), ((1, 2), [1, 2]), (Setting(1.0), Setting(2.0)), (object(), object())]
    for one, other in different:
        assert key_of(function_of(one)) != key_of(function_of(other))
    assert key_of(functools.partial(max, default=1)) != key_of(functools.partial(max, default=2))
    assert key_of(lambda x, scale=1.0: x) != key_of(lambda x, scale=2.0: x)
    assert key_of(function_of(function_of(1))) != key_of(function_of(function_of(2)))


@pytest.mark.parametrize("value", [torch.ones(2), {1}, bytearray(b"a")])
def test_values_that_can_change_have_no_key(value):
    with pytest.raises(Changeable):
        key_of(function_of(value))
