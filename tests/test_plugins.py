"""Plug-ins: files that register methods and metrics, in this process, on the command line, in runs and in workers."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from support.models import random_views, tiny_task
from support.runs import config, figures, photos, stop_at
from typer.testing import CliRunner

import cots
from cots import _registry, bench
from cots._registry import load_plugin
from cots.adapters import ADAPTERS
from cots.calibrators import CALIBRATORS
from cots.cli import app
from cots.metrics import METRICS

TEMPLATES = Path(__file__).parents[1] / "examples/plugins"
REGISTRIES = (ADAPTERS, CALIBRATORS, METRICS)
ADAPTER = """
import cots

@cots.adapter("mine")
def mine(batch, *, factor={factor}):
    return cots.Adapted(zero_shot_logits=batch.zero_shot, logits=factor * batch.zero_shot)
"""


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """Each test starts and ends without plug-ins."""
    monkeypatch.setattr(_registry, "_SOURCES", {})
    before = [set(registry._found) for registry in REGISTRIES]
    yield
    for registry, names in zip(REGISTRIES, before, strict=True):
        for name in set(registry._found) - names:
            registry.unregister(name)


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "mine.py"

    def write(factor=2.0):
        file.write_text(ADAPTER.format(factor=factor))
        return file

    return write


def test_a_plugin_runs_once_and_a_changed_one_replaces_it(mine):
    task = tiny_task("vit")
    for _ in range(2):
        load_plugin(mine())
    assert ADAPTERS.settings("mine") == {"factor": 2.0}
    assert len(ADAPTERS.info("mine").plugin) == 64
    with pytest.warns(
        UserWarning, match="adapter 'mine' was registered before; the new function replaces it"
    ) as caught:
        load_plugin(mine(3.0))
    assert Path(caught[0].filename).name == "mine.py", "the warning points at the line that registers"
    adapted = cots.adapt("mine", random_views(task), task)
    torch.testing.assert_close(adapted.logits, 3 * adapted.zero_shot_logits)


def test_built_in_functions_that_a_plugin_imports_first_are_not_its_own():
    registry = _registry.Registry("thing", "cots.nothing", _registry.Info)
    digest = "0" * 64
    registry.loading.append(digest)
    try:
        registry.register("built-in")(cots.adapters.adapt)
        assert digest not in registry.plugins
        registry.register("own")(lambda batch: batch)
    finally:
        registry.loading.remove(digest)
    assert digest in registry.plugins
    registry.plugins.remove(digest)
    assert (registry.info("built-in").plugin, registry.info("own").plugin) == ("", digest)


def test_what_is_wrong_with_a_plugin_is_said(mine, tmp_path):
    bad = tmp_path / "bad.py"
    for text, message in (
        ("x = 1\n", "registers nothing. Use @cots.adapter"),
        ("\nx = 1 / 0\n", r"bad.py, line 2: ZeroDivisionError"),
        ("def", r"bad.py: SyntaxError"),
        (ADAPTER.format(factor=1).replace('"mine"', '"tpt"'), "adapter 'tpt' is built in and cannot be replaced"),
    ):
        bad.write_text(text)
        with pytest.raises(cots.InputError, match=message):
            load_plugin(bad)
    with pytest.raises(cots.InputError, match=r"nowhere.py cannot be read"):
        load_plugin("nowhere.py")
    load_plugin(mine())
    other = tmp_path / "other" / "mine.py"
    other.parent.mkdir()
    other.write_text(ADAPTER)
    with pytest.raises(cots.InputError, match=r"Another plug-in is called mine.py"):
        load_plugin(other)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("data") / "photos", 6)


def test_a_run_records_the_plugin_and_refuses_another(mine, data, tmp_path):
    options = {"methods": ["zeroshot", "mine+cots"], "plugins": [mine()]}
    run = bench.run(config(data, tmp_path / "x", **options))
    assert run.manifest.plugins == {"adapter mine": ADAPTERS.info("mine").plugin}
    assert run.manifest.config.plugins == (str(mine()),)
    assert bench.plan(config(data, tmp_path / "x", **options)).run().complete
    options["plugins"] = [mine(3.0)]
    with pytest.warns(UserWarning, match="registered before"):
        changed = config(data, tmp_path / "x", **options)
    with pytest.raises(cots.InputError, match=r"factor of mine on photos: 2.0, now 3.0; plug-in of mine: [0-9a-f]{12}"):
        bench.run(changed)
    bench.run(config(data, tmp_path / "x", methods=["zeroshot", "tpt"]))  # which the plug-in does not touch


def test_templates_run_and_the_online_one_resumes_in_mid_stream(data, tmp_path):
    files = [TEMPLATES / f"{name}.py" for name in ("episodic_adapter", "online_adapter", "calibrator")]
    methods = ["agree", "means", "means+smoothed", "tpt+smoothed"]
    options = {"methods": methods, "plugins": files}
    whole = figures(bench.run(config(data, tmp_path / "whole", **options)))
    with pytest.raises(KeyboardInterrupt):
        bench.run(config(data, tmp_path / "parts", **options), stop_at(14 * len(methods)))
    assert list((tmp_path / "parts/state").rglob("*.safetensors"))
    assert figures(bench.run(config(data, tmp_path / "parts", **options))) == whole
    assert ADAPTERS.info("means").online
    assert not ADAPTERS.info("agree").online


def test_the_templates_compute_what_they_say():
    for name in ("episodic_adapter", "online_adapter", "calibrator", "metric"):
        load_plugin(TEMPLATES / f"{name}.py")
    task = tiny_task("vit")
    views = random_views(task)
    alone = torch.cat([cots.adapt("agree", views[i : i + 1], task).logits for i in range(len(views))])
    torch.testing.assert_close(cots.adapt("agree", views, task).logits, alone)
    state, steps = None, []
    for i in range(len(views)):
        adapted = cots.adapt("means", views[i : i + 1], task, state=state)
        state = adapted.state
        steps.append(adapted.logits)
    torch.testing.assert_close(cots.adapt("means", views, task).logits, torch.cat(steps))
    logits = np.array([[[3.0, 0.0]]])
    expected = 0.9 * np.exp(logits[0, 0]) / np.exp(logits[0, 0]).sum() + 0.05
    np.testing.assert_allclose(cots.calibrate(logits, logits, "smoothed").probabilities[0], expected)
    info, columns = METRICS.info("confident_errors"), {"confidence": [0.95, 0.95, 0.5], "correct": [True, False, False]}
    assert info(columns) == pytest.approx(1 / 3)
    np.testing.assert_allclose(info(columns, weights=np.array([[1.0, 1, 1], [0, 2, 0]])), [1 / 3, 1])


def test_every_command_takes_plugins(mine):
    import typer

    def commands(group):
        for command in group.commands.values():
            yield from commands(command) if hasattr(command, "commands") else [command]

    found = list(commands(typer.main.get_command(app)))
    assert len(found) > 10
    assert [c.name for c in found if "--plugin" not in [o for p in c.params for o in p.opts]] == []
    result = CliRunner().invoke(
        app, ["ls", "methods", "--plugin", str(mine()), "--plugin", str(TEMPLATES / "metric.py")]
    )
    assert "\nmine " in result.output
    assert "confident_errors" in METRICS


def test_replacing_in_a_notebook_warns_each_time():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for cell in range(3):
            exec(compile(ADAPTER.format(factor=2.0), f"<cell {cell}>", "exec"), {"__name__": "__main__"})
    assert [w.filename for w in caught] == ["<cell 1>", "<cell 2>"]
    with pytest.raises(cots.InputError, match="metric 'ece' is built in"):
        cots.metrics.metric("ece")
