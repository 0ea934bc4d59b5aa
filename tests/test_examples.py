"""The examples run, and show what they claim."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
import types
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
import torch

import cots
from cots.adapters import ADAPTERS
from cots.demo import read_photos

EXAMPLES = Path(__file__).parents[1] / "examples"


def load_file(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def plug():
    module = load_file(EXAMPLES / "plug_in_your_method.py")
    yield module
    ADAPTERS.unregister("pull")


def rows(text: str) -> dict[str, list[float]]:
    """Method and its figures, from lines that end in numbers."""
    found = (re.match(r"(\S.*?)\s\s+([\d. ]+)$", line) for line in text.splitlines())
    return {match[1]: [float(word) for word in match[2].split()] for match in found if match}


def test_a_method_of_ones_own_is_calibrated_in_both_ways(plug, capsys):
    plug.main(photos=24)
    shown = rows(capsys.readouterr().out)
    assert list(shown) == ["zeroshot", "pull", "pull+cots", "pull+ecots", "its logits alone, cots"]
    assert shown["pull+cots"] == shown["its logits alone, cots"]
    right, sure = 0, 1
    assert shown["pull"][sure] > shown["zeroshot"][sure] + 5, "it is there to be over-confident"
    assert shown["pull+cots"][right] == shown["pull"][right]
    assert abs(shown["pull+cots"][sure] - shown["zeroshot"][sure]) < shown["pull"][sure] - shown["zeroshot"][sure]


def test_the_example_method_is_a_method_like_any_other(plug):
    pets = read_photos()[0].take(range(3))
    task = cots.Task(cots.load("mini"), pets.classes)
    features = pets.features.float()
    whole = cots.adapt("pull", features, task)
    alone = [cots.adapt("pull", features[i : i + 1], task).logits for i in range(3)]
    torch.testing.assert_close(torch.cat(alone), whole.logits, rtol=1e-4, atol=1e-4)
    still = cots.adapt("pull", features, task, rate=0.0)
    torch.testing.assert_close(still.logits, still.zero_shot_logits, rtol=1e-4, atol=1e-4)


def test_the_notebook_runs_from_photo_to_diagram(monkeypatch, tmp_path):
    notebook = nbformat.read(EXAMPLES / "photo_to_reliability.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code"), "commit it without outputs"
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    outputs = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    text = {name: "".join(out.get("text", "") for out in found) for name, found in outputs.items()}
    assert re.findall(r"^(\S+) +(?:\w+ cat)", text["photo"], re.M) == ["zeroshot", "tpt", "tpt+cots", "tpt+ecots"]
    figures = {m: [float(x) for x in re.findall(r"([\d.]+)%", line)] for m, line in _lines(text["features"]).items()}
    assert figures["tpt+cots"][0] == figures["tpt"][0] > 80
    assert figures["zeroshot"][1] < figures["tpt+cots"][1] < figures["tpt"][1], "CoTS lies between"
    assert any("image/png" in out.get("data", {}) for out in outputs["plot"])
    assert set(_lines(text["decide"])) == set(figures)


def _lines(text: str) -> dict[str, str]:
    return {line.split()[0]: line for line in text.splitlines() if line.strip()}


class Stub(types.ModuleType):
    """Stands in for gradio: keeps how each part was made."""

    class Error(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("gradio")
        self.made: list[tuple[str, tuple, dict]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def make(*args: Any, **options: Any) -> types.SimpleNamespace:
            self.made.append((name, args, options))
            return types.SimpleNamespace(kind=name, args=args, **options)

        return make


@pytest.fixture
def space(monkeypatch):
    stub = Stub()
    monkeypatch.setitem(sys.modules, "gradio", stub)
    return load_file(EXAMPLES / "space" / "app.py"), stub


def test_the_space_classifies_through_its_interface(space, recwarn, monkeypatch):
    module, stub = space
    # Few views: what is tested here is the app.
    monkeypatch.setattr(cots, "Classifier", functools.partial(cots.Classifier, views=8, augmix=False))
    assert [name for name, *_ in stub.made][-1] == "Interface"
    interface = stub.made[-1][2]
    assert interface["fn"] is module.classify
    assert [part.kind for part in interface["inputs"]] == ["Image", "Textbox", "Radio"]
    assert [part.kind for part in interface["outputs"]] == ["Label", "Markdown"]
    assert not recwarn.list, "a word of its list is unknown to its model"
    data = pytest.importorskip("skimage.data")
    picture, names, method = data.chelsea(), interface["inputs"][1].args[0], interface["inputs"][2].value
    shown, told = module.classify(picture, names, method)
    expected = cots.Classifier(module.MODEL, names.splitlines(), method)(picture)
    assert shown == dict(expected.top(5))
    assert next(iter(shown)) == "cat"
    assert f"**{round(100 * expected.confidence)}**" in told
    for bad in ((None, names), (picture, " \n ")):
        with pytest.raises(stub.Error, match="Give a photo and at least one class name"):
            module.classify(*bad, method)
    with pytest.raises(stub.Error, match="Unknown adapter"):
        module.classify(picture, names, "tptt")


def test_the_space_is_short_and_names_what_it_needs():
    assert len((EXAMPLES / "space" / "app.py").read_text().splitlines()) <= 50
    needs = (EXAMPLES / "space" / "requirements.txt").read_text().split()
    assert [re.split(r"[<>=]", line)[0] for line in needs] == ["cots", "gradio"]


def test_the_readme_names_every_example():
    text = (EXAMPLES / "README.md").read_text()
    files = [p for p in EXAMPLES.rglob("*") if p.is_file() and "__pycache__" not in p.parts and p.name != "README.md"]
    assert len(files) == 4
    for file in files:
        assert f"({file.relative_to(EXAMPLES).as_posix()})" in text
