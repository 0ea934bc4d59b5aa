"""Predictions for other tools: what their documentation asks for, read back as they would read it."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import numpy as np
import pytest

import cots
from cots import exchange

CLASSES = ("cat", "dog & co", 'a "car"')


def prediction(best: int = 0, **changes) -> cots.Prediction:
    p = np.array([0.2, 0.2, 0.2])
    p[best] = 0.6
    given = {"label": CLASSES[best], "confidence": 0.6, "probabilities": p, "classes": CLASSES, "method": "tpt+cots"}
    return cots.Prediction(**{**given, "tau": 1.5, "in_list": 0.9, "agreement": 0.75, **changes})


def failed() -> cots.Prediction:
    return prediction(label=None, confidence=float("nan"), probabilities=np.full(3, np.nan), error="not an image")


def test_a_label_studio_task_refers_to_its_configuration(tmp_path):
    view = ElementTree.fromstring(exchange.label_studio_config(CLASSES))
    image, choices = view.find("Image"), view.find("Choices")
    assert [choice.get("value") for choice in choices.findall("Choice")] == list(CLASSES)
    file = tmp_path / "a photo#1.jpg"
    task = exchange.label_studio_task(file, prediction(1, label=None, abstained=True), reason="asked")
    assert image.get("value") == "$image", "the key of the task's data"
    address = urlsplit(task["data"]["image"])
    assert address.path == "/data/local-files/"
    assert "/" + parse_qs(address.query)["d"][0] == str(file)
    assert (task["data"]["reason"], task["data"]["abstained"]) == ("asked", True)
    (given,) = task["predictions"]
    (result,) = given["result"]
    assert (
        (result["from_name"], result["to_name"]) == (choices.get("name"), choices.get("toName")) == ("class", "image")
    )
    assert (image.get("name"), result["type"]) == ("image", "choices")
    assert result["value"]["choices"] == ["dog & co"], "the candidate of an abstained prediction is there to review"
    assert (given["score"], given["model_version"]) == (0.6, "cots tpt+cots")
    json.dumps(task, allow_nan=False)
    assert "predictions" not in exchange.label_studio_task(file, failed())
    assert "predictions" not in exchange.label_studio_task(file)


def test_fiftyone_finds_the_labels_of_its_photos(tmp_path):
    """As FiftyOneImageClassificationDataset reads them: files below data_path without their endings."""
    files = [tmp_path / "in" / name for name in ("a.jpg", "deep/b.c.png", "broken.gif")]
    found = dict(zip(files, [prediction(0), prediction(2, abstained=True, label=None), failed()], strict=True))
    read = json.loads(json.dumps(exchange.fiftyone_labels(found), allow_nan=False))
    folder = Path(exchange.common_folder(files))
    assert folder == tmp_path / "in"
    by_name = {str(file.relative_to(folder).with_suffix("")): file for file in files}
    assert {by_name[name] for name in read["labels"]} == set(files)
    targets = {name: target and read["classes"][target["label"]] for name, target in read["labels"].items()}
    assert targets == {"a": "cat", "deep/b.c": 'a "car"', "broken": None}
    assert read["labels"]["a"]["confidence"] == 0.6
    attributes = {"method": "tpt+cots", "abstained": False, "none_of_these": False, "in_list": 0.9}
    assert read["labels"]["a"]["attributes"] == attributes | {"agreement": 0.75, "tau": 1.5}
    assert read["labels"]["deep/b.c"]["attributes"]["abstained"]
    with pytest.raises(cots.InputError, match="another photo has this name"):
        exchange.fiftyone_labels({Path("x/a.jpg"): prediction(), Path("x/a.png"): prediction()})


def test_parquet_has_a_row_per_photo_and_typed_columns(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = []
    for one in (prediction(views=(3, 1), label_set=("cat",), warnings=("blank",)), failed()):
        rows.append({"file": f"{len(rows)}.jpg", **one.to_dict(2)})
    exchange.write_parquet(rows, tmp_path / "out.parquet")
    assert parquet.read_table(tmp_path / "out.parquet").to_pylist() == rows
    exchange.write_parquet(rows[1:], tmp_path / "null.parquet")
    kinds = parquet.read_schema(tmp_path / "null.parquet")
    assert str(kinds.field("confidence").type) == "double", "also where every value is missing"
    assert set(kinds.names) == set(rows[0]), "every key of a prediction has a type"


def test_parquet_without_its_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(cots.CotsError, match=r"Parquet files need pyarrow: .*--extra parquet"):
        exchange.require_pyarrow()
