"""The examples run and show what they claim."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import mini
from support.scripts import load_script

import cots
from cots.adapters import ADAPTERS
from cots.demo import read_photos

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module", autouse=True)
def load_once():
    """Every example loads the same model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cots, "load", {"mini": mini()}.__getitem__)
        yield


@pytest.fixture
def plug():
    module = load_script(EXAMPLES / "plug_in_your_method.py", "example")
    yield module
    ADAPTERS.unregister("pull")


def test_your_own_method_is_calibrated_in_both_ways(plug, capsys):
    plug.main(photos=24)
    found = (re.match(r"(\S.*?)\s\s+([\d. ]+)$", line) for line in capsys.readouterr().out.splitlines())
    rows = {match[1]: [float(word) for word in match[2].split()] for match in found if match}
    assert list(rows) == ["zeroshot", "pull", "pull+cots", "pull+ecots", "logits only, cots"]
    assert rows["pull+cots"] == rows["logits only, cots"]
    accuracy, confidence = ({method: row[i] for method, row in rows.items()} for i in (0, 1))
    assert confidence["pull"] > confidence["zeroshot"] + 5, "the example method should be over-confident"
    assert accuracy["pull+cots"] == accuracy["pull"]
    more = accuracy["pull"] - accuracy["zeroshot"]
    assert confidence["pull"] - confidence["zeroshot"] > 2 * more, "as it prints"
    assert confidence["zeroshot"] > accuracy["zeroshot"], "as it prints"
    assert abs(confidence["pull+cots"] - confidence["zeroshot"]) < confidence["pull"] - confidence["zeroshot"]


def test_dense_predictions_are_calibrated_place_by_place(capsys):
    dense = load_script(EXAMPLES / "dense_prediction.py", "dense_example")
    dense.main()
    out = capsys.readouterr().out
    assert "probabilities (1, 4, 6, 6), confidence (1, 6, 6), tau (1, 6, 6), views (1, 1, 6, 6)" in out
    before, after = dense.synthetic().values()
    assert before[0] == after[0], "CoTS keeps every pixel's class"
    assert after[2] < before[2] / 2


def test_the_example_method_treats_samples_independently(plug):
    photos = read_photos()[0].take(range(3))
    task = cots.Task(cots.load("mini"), photos.classes)
    features = photos.features
    whole = cots.adapt("pull", features, task)
    alone = [cots.adapt("pull", features[i : i + 1], task).logits for i in range(3)]
    torch.testing.assert_close(torch.cat(alone), whole.logits, rtol=1e-4, atol=1e-4)
    unmoved = cots.adapt("pull", features, task, rate=0.0)
    torch.testing.assert_close(unmoved.logits, unmoved.zero_shot_logits, rtol=1e-4, atol=1e-4)


def test_the_notebook_runs_from_photo_to_diagram():
    """Its cells run in this process: a kernel of its own would spend most of the time importing torch again."""
    matplotlib = pytest.importorskip("matplotlib")
    pytest.importorskip("skimage")
    matplotlib.use("agg")
    cells = json.loads((EXAMPLES / "photo_to_reliability.ipynb").read_text())["cells"]
    namespace: dict[str, Any] = {}
    printed = {}
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        assert not cell["outputs"], "commit it without outputs"
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile("".join(cell["source"]), cell["id"], "exec"), namespace)
        printed[cell["id"]] = {line.split()[0]: line for line in out.getvalue().splitlines()}
    methods = ["zeroshot", "tpt", "tpt+cots", "tpt+ecots"]
    assert [list(printed[name]) for name in ("photo", "features", "decide")] == [methods] * 3
    assert all(" cat: confidence" in line for line in printed["photo"].values())
    accuracy, confidence = (
        {method: float(re.findall(r"([\d.]+)%", line)[i]) for method, line in printed["features"].items()}
        for i in (0, 1)
    )
    assert accuracy["tpt+cots"] == accuracy["tpt"] > 40
    assert confidence["zeroshot"] < confidence["tpt+cots"] < confidence["tpt"]
    assert len(namespace["figure"].axes) == len(methods)
    assert all(len(axis.patches) > 5 for axis in namespace["figure"].axes)


class Stub(types.ModuleType):
    """Stands in for gradio and records how each component is made."""

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


def test_the_space_classifies_through_its_interface(recwarn, monkeypatch):
    stub = Stub()
    monkeypatch.setitem(sys.modules, "gradio", stub)
    module = load_script(EXAMPLES / "space" / "app.py", "example")
    assert not recwarn.list, "the model does not know a word of the default class list"
    # Few views: the subject is the app.
    monkeypatch.setattr(cots, "Classifier", functools.partial(cots.Classifier, views=8, augmix=False))
    kind, _, interface = stub.made[-1]
    assert (kind, interface["fn"]) == ("Interface", module.classify)
    assert [part.kind for part in interface["inputs"]] == ["Image", "Textbox", "Radio"]
    assert [part.kind for part in interface["outputs"]] == ["Label", "Markdown"]
    data = pytest.importorskip("skimage.data")
    picture, names, method = data.chelsea(), interface["inputs"][1].args[0], interface["inputs"][2].value
    shown, message = module.classify(picture, names, method)
    expected = cots.Classifier(module.backbone, names.splitlines(), method)(picture)
    assert shown == dict(expected.top(5))
    assert next(iter(shown)) == "cat"
    assert f"**{round(100 * expected.confidence)}**" in message
    for bad in ((None, names), (picture, " \n ")):
        with pytest.raises(stub.Error, match="Give a photo and at least one class name"):
            module.classify(*bad, method)
    with pytest.raises(stub.Error, match="Unknown adapter"):
        module.classify(picture, names, "tptt")


def test_the_space_is_short_and_names_its_requirements():
    assert len((EXAMPLES / "space" / "app.py").read_text().splitlines()) <= 50
    needs = (EXAMPLES / "space" / "requirements.txt").read_text().split()
    assert [re.split(r"[<>=]", line)[0] for line in needs] == ["cots", "gradio"]


def test_the_readme_names_every_example():
    text = (EXAMPLES / "README.md").read_text()
    apart = {"__pycache__", "photos", "browser", "README.md"}  # these folders have pages of their own
    files = [p for p in EXAMPLES.rglob("*") if p.is_file() and not apart & {*p.parts}]
    assert len(files) == 9
    for file in files:
        assert f"({file.relative_to(EXAMPLES).as_posix()})" in text
    assert {"(photos)", "(browser/README.md)"} <= {*re.findall(r"\([\w/.]+\)", text)}


def test_every_photo_is_small_and_has_an_author_and_a_licence():
    readme = (EXAMPLES / "photos" / "README.md").read_text()
    rows = {match[1]: match[2] for match in re.finditer(r"^\| `(\w+\.jpg)` (.+)$", readme, re.M)}
    assert set(rows) == {file.name for file in (EXAMPLES / "photos").glob("*.jpg")}
    assert all(re.search(r"\| (CC0 1\.0|public domain) \|$", row) for row in rows.values())
    assert all((EXAMPLES / "photos" / name).stat().st_size <= 60_000 for name in rows)
