"""Whole exports of small models: every file, the policy, the temperature, and what is refused."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
import sys
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from support.images import grain, photo
from support.models import CLASSES, THREE, random_pixels, tiny
from typer.testing import CliRunner

import cots
from cots import conformal
from cots.cli import app
from cots.export import INPUT, OUTPUTS, export_classifier
from cots.export._frozen import FrozenClassifier

FILES = {
    "model.onnx", "model.pt2", "config.json", "preprocessor_config.json", "labels.txt", "README.md",
    "LICENSE-weights.txt",
}  # fmt: skip


def policy(method="zeroshot", kind="vit", **changes):
    classifier = cots.Classifier(tiny(kind), CLASSES, method, views=4)
    error = conformal.ErrorControl(risk=0.05, certainty=0.95, threshold=0.25, n=210, accepted=150, errors=1)
    made = conformal.Policy(
        **vars(classifier.setup), n=210, accuracy=0.9, mean_confidence=0.91, error=error, none_below=0.4, flag=0.05,
        temperature=1.5,
    )  # fmt: skip
    return replace(made, **changes)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for seed in range(7):
        grain(40 + 9 * seed, 64, seed).save(folder / f"{seed}.png")
    return folder


def cli(*words):
    result = CliRunner().invoke(app, ["export", *map(str, words)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def exact(tmp_path_factory, photos):
    """The folder of a zero-shot policy with a temperature, and what the command printed."""
    folder = tmp_path_factory.mktemp("exact")
    policy().save(folder / "policy.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cots.classifier.load", lambda name, **options: tiny(name.removeprefix("tiny-")))
        printed = cli(folder / "policy.json", "--photos", photos, "--int8", "-o", folder / "out")
    return folder / "out", printed


def test_the_graph_is_the_classifier_with_its_policy(exact, photos):
    folder, _ = exact
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    assert (given.name, given.shape[1:], given.type) == (INPUT, [3, 32, 32], "tensor(float)")
    assert isinstance(given.shape[0], str)
    assert [output.name for output in session.get_outputs()] == list(OUTPUTS)
    classifier = cots.Classifier(tiny("vit"), CLASSES, "zeroshot", views=4, policy=policy())
    settings = cots.ViewSettings.from_preprocess(tiny("vit").preprocess, n=1)
    files = sorted(photos.iterdir())
    pixels = torch.cat([cots.make_views(file, settings, 0) for file in files]).numpy()
    logits, probabilities, in_list, features = map(np.asarray, session.run(None, {INPUT: pixels}))
    for row, prediction in enumerate(classifier(files)):
        np.testing.assert_allclose(probabilities[row], prediction.probabilities, atol=1e-6)
        np.testing.assert_allclose(in_list[row], prediction.in_list, atol=1e-5)
        assert prediction.abstained == (probabilities[row].max() < 0.25)
    powers = np.exp(logits - logits.max(1, keepdims=True))
    np.testing.assert_allclose(probabilities, powers / powers.sum(1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, atol=1e-5)
    # Another class list needs the features alone.
    other = features @ cots.Task(tiny("vit"), ["cup", "book"]).text_features.numpy().T * tiny("vit").logit_scale
    expected = cots.Classifier(tiny("vit"), ["cup", "book"], "zeroshot+ts(temperature=1.0)")(files[0])
    powers = np.exp(other[0] - other[0].max())
    np.testing.assert_allclose(powers / powers.sum(), expected.probabilities, atol=1e-5)


def test_the_program_of_torch_is_the_same_network(exact):
    folder, _ = exact
    program = torch.export.load(folder / "model.pt2").module()
    network = FrozenClassifier(cots.Task(tiny("vit"), CLASSES), 1.5)
    views = random_pixels(tiny("vit"))
    pixels = views.reshape(-1, *views.shape[2:])
    for count in (1, 5):
        for found, expected in zip(program(pixels[:count]), network(pixels[:count]), strict=True):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_the_folder_describes_the_graph(exact):
    folder, printed = exact
    assert {file.name for file in folder.iterdir()} == FILES | {"policy.json", "model_int8.onnx"}
    config = json.loads((folder / "config.json").read_text())
    names = (folder / "labels.txt").read_text().splitlines()
    assert names == list(policy().classes) == [config["id2label"][str(k)] for k in range(len(CLASSES))]
    assert [config["label2id"][name] for name in names] == list(range(len(CLASSES)))
    about = config["cots"]
    assert (about["temperature"], about["exact"], about["in_list_threshold"]) == (1.5, True, 0.4)
    assert about["policy"] == {"threshold": 0.25, "risk": 0.05, "certainty": 0.95, "n": 210}
    assert conformal.Policy.load(folder / "policy.json") == policy()
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["names"]) == config["id2label"]
    assert json.loads(metadata["policy"]) == about["policy"]
    assert float(metadata["temperature"]) == 1.5
    lines = printed.splitlines()
    assert lines[0] == "Temperature 1.5."
    assert re.match(r"The original and the export on 7 photos: same class 100.0%, confidence differs by 0.00", lines[1])
    assert re.match(r"model.onnx: as cots on 7 photos in batches of 1 and 5: logits within [\d.]+e-0\d", lines[2])
    assert lines[-1] == f"Written: {folder}"


def test_the_code_of_the_readme_classifies_a_photo(exact, photos, tmp_path, monkeypatch):
    folder, _ = exact
    text = (folder / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    for name in ("model.onnx", "labels.txt"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    photo().save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, {})
    rules = policy(error=None)
    with pytest.warns(UserWarning, match="no threshold"):
        expected = cots.Classifier(tiny("vit"), CLASSES, "zeroshot", views=4, policy=rules)(tmp_path / "photo.jpg")
    shown = f"{expected.label}: confidence {expected.confidence:.1%}, in the list {expected.in_list:.1%}\n"
    assert out.getvalue() == shown
    assert "at most 5.0% of the predictions at or above it are wrong" in text


def test_int8_is_smaller_and_its_change_is_printed(exact, photos):
    folder, printed = exact
    nodes = onnx.load(folder / "model_int8.onnx").graph.node
    assert sum(node.op_type == "MatMulInteger" for node in nodes) > 4
    assert [node.op_type for node in nodes if "image_features" in node.input] == ["MatMul", "MatMul"]
    sizes = {name: (folder / name).stat().st_size for name in ("model.onnx", "model_int8.onnx")}
    assert sizes["model_int8.onnx"] < sizes["model.onnx"]
    sessions = [onnxruntime.InferenceSession(folder / name) for name in sizes]
    settings = cots.ViewSettings.from_preprocess(tiny("vit").preprocess, n=1)
    apart = []
    for file in photos.iterdir():
        pixels = cots.make_views(file, settings, 0).numpy()
        before, after = (np.asarray(session.run(["probabilities"], {INPUT: pixels})[0]).max() for session in sessions)
        apart.append(abs(before - after))
    line = next(line for line in printed.splitlines() if line.startswith("model_int8.onnx"))
    found = re.search(r"on 7 photos: .* differs by ([\d.]+) points on average and ([\d.]+) at most", line)
    assert float(found[1]) == pytest.approx(100 * np.mean(apart), abs=0.006)
    assert float(found[2]) == pytest.approx(100 * max(apart), abs=0.06)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """An export in place of tpt+cots under a policy, from PIL images, one of which cannot be read."""
    rules = policy("tpt+cots", "siglip", temperature=1.0)
    classifier = cots.Classifier(tiny("siglip"), CLASSES, "tpt+cots", views=4, policy=rules)
    images = [grain(50 + 7 * seed, 60, seed) for seed in range(9)]
    folder = tmp_path_factory.mktemp("tuned") / "new" / "out"
    with pytest.warns(UserWarning, match="no data"):
        done = export_classifier(classifier, folder, [*images[:4], b"", *images[4:]])
    return done, classifier, images


def test_a_tuned_method_becomes_zero_shot_with_its_mean_confidence(tuned):
    done, classifier, images = tuned
    assert not done.exact
    # Of ten photos, those at even places fit the temperature, and the others are compared. The fifth is unreadable.
    fitted, compared = [images[i] for i in (0, 2, 5, 7)], [images[i] for i in (1, 3, 4, 6, 8)]
    target = np.mean([one.confidence for one in classifier(fitted)])
    plain = cots.Classifier(tiny("siglip"), CLASSES, f"zeroshot+ts(temperature={done.temperature!r})")
    assert np.mean([one.confidence for one in plain(fitted)]) == pytest.approx(target, abs=1e-6)
    before, after = classifier(compared), plain(compared)
    apart = [abs(a.confidence - b.confidence) for a, b in zip(before, after, strict=True)]
    assert (done.distance.n, done.onnx.n, done.pt2.n) == (5, 5, 5)
    assert done.distance.mean == pytest.approx(np.mean(apart), abs=1e-6)
    assert done.distance.largest == pytest.approx(max(apart), abs=1e-6)
    assert "4 unlabelled photos have the mean confidence of tpt+cots" in done.fitted


def test_a_policy_of_a_tuned_method_keeps_only_its_threshold_of_in_list(tuned):
    done, *_ = tuned
    assert not (done.folder / "policy.json").exists()
    about = json.loads((done.folder / "config.json").read_text())["cots"]
    assert about["policy"] is None
    assert about["in_list_threshold"] == 0.4
    text = (done.folder / "README.md").read_text()
    assert "none that holds for these confidences" in text
    assert f"cots check LABELLED --method 'zeroshot+ts(temperature={done.temperature!r})'" in text
    assert "tpt+cots cannot be exported" in text
    assert "\n".join(done.notes) in "\n".join(done.lines())


def test_labels_fit_the_temperature_of_any_method(monkeypatch, tmp_path):
    """Only the temperature and the notes are of interest: no graph is written."""
    seen = {}

    def write(classifier, facts, *rest):
        seen["facts"] = facts
        return None, None, None

    monkeypatch.setattr("cots.export._export._write", write)
    backbone = tiny("vit")
    images = [grain(40, 40 + seed, seed) for seed in range(30)]
    labels = [seed % 3 for seed in range(30)]
    classifier = cots.Classifier(backbone, CLASSES, "zeroshot", template=THREE, policy=None)
    done = export_classifier(classifier, tmp_path / "out", images, labels=labels)
    settings = cots.ViewSettings.from_preprocess(backbone.preprocess, n=1)
    features = torch.cat([backbone.encode_images(cots.make_views(image, settings, 0)) for image in images[::2]])
    logits = backbone.logit_scale * features @ classifier.task.text_features.T
    assert done.temperature == pytest.approx(cots.fit_temperature(logits, labels[::2]), rel=1e-4)
    assert done.fitted == "fitted on 15 labelled photos"
    assert not seen["facts"].exact


def test_what_cannot_be_exported_is_refused(tmp_path, monkeypatch):
    backbone, images = tiny("vit"), [photo()]
    zero_shot = cots.Classifier(backbone, CLASSES, "zeroshot")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(cots.InputError, match="exists and is not empty"):
        export_classifier(zero_shot, tmp_path / "full", images)
    out = tmp_path / "out"
    with pytest.raises(cots.InputError, match="two photos or more"):
        export_classifier(cots.Classifier(backbone, CLASSES, "tpt+cots", views=4), out, images)
    with pytest.raises(cots.InputError, match="could be read"), pytest.warns(UserWarning, match="no data"):
        export_classifier(zero_shot, out, [b""])
    with pytest.warns(UserWarning, match="labels"):
        present = cots.Classifier(backbone, CLASSES, mode="present")
    with pytest.warns(UserWarning, match="With one class"):
        alone = cots.Classifier(backbone, ["cat"], "zeroshot")
    with pytest.raises(cots.InputError, match="mode='present'"):
        export_classifier(present, out, images)
    with pytest.raises(cots.InputError, match="With one class"):
        export_classifier(alone, out, images)
    half = replace(backbone, precision="bfloat16")
    with pytest.raises(cots.InputError, match="computes in float32"):
        export_classifier(cots.Classifier(half, CLASSES, "zeroshot"), out, images)
    monkeypatch.setattr("cots.export._graph._LARGEST", 1000)
    with pytest.raises(cots.InputError, match="one ONNX file holds 2"):
        export_classifier(zero_shot, out, images)
    assert [file.name for file in tmp_path.iterdir()] == ["full"]


def test_a_missing_package_names_the_extra(monkeypatch, tmp_path):
    before = importlib.import_module

    def import_module(name, *rest):
        if name == "onnxscript":
            raise ImportError(name)
        return before(name, *rest)

    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(cots.InputError, match=r"needs the package onnxscript: .*uv sync --extra export"):
        cli("--classes", "cat,dog", "-o", tmp_path / "out")
    assert "onnxscript" in sys.modules or not (tmp_path / "out").exists()


def test_the_command_refuses_what_has_no_effect(tmp_path, monkeypatch):
    policy("tpt+cots").save(tmp_path / "policy.json")
    monkeypatch.setattr("cots.classifier.load", lambda name, **options: tiny("vit"))
    for words, message in [
        ([], "--classes is missing"),
        ([tmp_path / "policy.json", "--method", "zeroshot"], "The policy decides method; omit --method"),
        (["--classes", "cat,dog", "--photos", tmp_path, "--labelled", "x"], "not both"),
        ([tmp_path / "policy.json"], r"tpt\+cots cannot be exported, only zero-shot .* Pass --photos"),
        (["--classes", "cat,dog", "--method", "tppt"], "Did you mean 'tpt'"),
    ]:
        with pytest.raises(cots.InputError, match=message):
            cli(*words, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_labelled_photos_of_other_classes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("cots.classifier.load", lambda name, **options: tiny("vit"))
    photo().save(tmp_path / "a.png")
    (tmp_path / "list.csv").write_text("path,label\na.png,horse\n")
    with pytest.raises(cots.InputError, match="The label 'horse' is none of the classes"):
        cli("--classes", "cat,dog", "--labelled", tmp_path / "list.csv", "-o", tmp_path / "out")
