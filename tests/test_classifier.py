"""From a photo to a label and a confidence: every kind of input, bad photos, names of methods."""

from __future__ import annotations

import io
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image
from support.models import CLASSES, tiny

import cots
from cots.adaptation import Pipeline
from cots.adapters import ADAPTERS
from cots.calibrators import CALIBRATORS
from cots.views import image_seed


def photo(seed: int = 0, size: tuple[int, int] = (50, 40)) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (size[1] // 5, size[0] // 5, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


def classifier(method: str = "tpt+ecots", kind: str = "vit", **options) -> cots.Classifier:
    return cots.Classifier(tiny(kind), CLASSES, method, views=options.pop("views", 10), **options)


def same(a: cots.Prediction, b: cots.Prediction) -> None:
    assert (a.label, a.views) == (b.label, b.views)
    np.testing.assert_allclose(a.probabilities, b.probabilities, rtol=0, atol=2e-6, err_msg="the documentation's bound")
    assert a.tau == pytest.approx(b.tau, rel=1e-3)


def test_a_prediction_is_what_the_stages_give():
    ours = classifier()(photo())
    backbone = tiny("vit")
    task = cots.Task(backbone, CLASSES)
    view_settings = cots.ViewSettings.from_preprocess(backbone.preprocess, n=10, augmix=True)
    views = cots.make_views(photo(), view_settings, image_seed(photo(), 0))
    adapted = cots.adapt("tpt", backbone.encode_images(views), task)
    expected = cots.calibrate(adapted.logits, adapted.zero_shot_logits, "ecots", alpha=task.alpha, rows="views")
    np.testing.assert_allclose(ours.probabilities, expected.probabilities, atol=1e-5)
    assert ours.label == CLASSES[int(expected.prediction)].replace("_", " ")
    assert ours.confidence == pytest.approx(float(expected.probabilities.max()), abs=1e-6)
    assert ours.tau == pytest.approx(float(expected.tau), rel=1e-4)
    assert ours.alpha == task.alpha
    assert ours.views == tuple(expected.views.tolist())
    assert ours.method == "tpt+ecots"
    assert ours.error is None


def test_methods_that_use_the_weak_view_encode_one(monkeypatch):
    encoded, encode = [], cots.Backbone.encode_images
    monkeypatch.setattr(
        cots.Backbone, "encode_images", lambda self, views: encoded.append(views.shape[-4]) or encode(self, views)
    )
    task = cots.Task(tiny("vit"), CLASSES)
    for method in ("zeroshot", "zeroshot+sals", "tda", "dpe+dac", "tda(positive=[1,2])"):
        (ours,) = classifier(method, views=6, ranges=True)([photo()])
        assert encoded.pop() == 1
        settings = cots.ViewSettings.from_preprocess(tiny("vit").preprocess, n=6, augmix=True)
        views = cots.make_views(photo(), settings, image_seed(photo(), 0))
        (pipeline_result,) = Pipeline(task, [method]).run(encode(tiny("vit"), views[None])).values()
        expected = pipeline_result.calibrated.probabilities[0]
        np.testing.assert_allclose(ours.probabilities, expected, rtol=0, atol=2e-6, err_msg="the documented bound")
        assert np.isnan(ours.agreement)
        assert ours.confidence_range is None
        assert ours.to_dict()["agreement"] is None
    encoded.clear()
    for method in ("tpt", "zeroshot+cots", "tda(cache_from=confident)", "dmn"):
        assert not np.isnan(classifier(method, views=6)(photo()).agreement)
        assert encoded.pop() == 6
    setting = {"adapter_settings": {"cache_from": "confident"}}
    classifier("tda", views=6, **setting)(photo())
    assert encoded.pop() == 6


def test_every_kind_of_input_gives_the_same_result(tmp_path):
    predict, image = classifier("zeroshot+ecots", views=4), photo()
    file, buffer = tmp_path / "photo.png", io.BytesIO()
    image.save(file)
    image.save(buffer, "PNG")
    expected = predict(image)
    for source in (file, str(file), buffer.getvalue(), np.asarray(image), buffer, buffer):
        same(predict(source), expected)
    with open(file, "rb") as opened:
        same(predict(opened), expected)
        same(predict([opened])[0], expected)
    with open(file, encoding="latin-1") as text, pytest.raises(cots.InputError, match="Open the file with mode 'rb'"):
        predict(text)


def test_a_list_gives_a_list_whatever_the_order_or_the_batch():
    predict = classifier(batch_size=2)
    images = [photo(seed) for seed in range(3)]
    alone = [predict(image) for image in images]
    for a, b in zip(predict(images), alone, strict=True):
        same(a, b)
    for a, b in zip(predict(iter(reversed(images))), reversed(alone), strict=True):
        same(a, b)
    assert predict([]) == []


def test_one_bad_photo_never_ends_a_run(tmp_path):
    (tmp_path / "text.jpg").write_text("not a photo")
    predict = classifier(batch_size=2)
    sources = [photo(0), tmp_path / "missing.jpg", photo(1), tmp_path / "text.jpg", b"", photo(2)]
    results = predict(sources)
    assert [r.error is None for r in results] == [True, False, True, False, False, True]
    assert "missing.jpg" in results[1].error
    assert "text.jpg" in results[3].error
    assert results[1].label is None
    assert np.isnan(results[1].confidence)
    for result, place in ((results[0], 0), (results[2], 1), (results[5], 2)):
        same(result, predict(photo(place)))
    with pytest.raises(cots.InputError, match=r"missing\.jpg"):
        predict(tmp_path / "missing.jpg")


@pytest.mark.parametrize("calibrator", ["none", "sals", "cor", "cots", "ecots", "ensemble", "zero", "ts"])
def test_every_calibrator_gives_probabilities(calibrator):
    check_probabilities(f"tpt+{calibrator}")


@pytest.mark.parametrize("adapter", ["zeroshot", "tpt", "soc", "tps", "tda", "ttl"])
def test_every_kind_of_adapter_gives_probabilities(adapter):
    check_probabilities(f"{adapter}+ecots")


def check_probabilities(method):
    result = classifier(method, views=11)([photo(0), photo(1)])
    for prediction in result:
        assert prediction.probabilities.sum() == pytest.approx(1, abs=1e-5)
        assert prediction.label in prediction.classes
        assert prediction.top(1)[0] == (prediction.label, pytest.approx(prediction.confidence))
        assert [p for _, p in prediction.top(9)] == sorted(prediction.probabilities.tolist(), reverse=True)


@pytest.mark.parametrize(("kind", "views"), [("vit", 12), ("resnet", 5), ("siglip", 2), ("vit", 1)])
def test_temperature_never_changes_the_class(kind, views):
    images = [photo(seed) for seed in range(2 if kind == "vit" else 1)]
    expected = [one.label for one in classifier("tpt", kind, views=views)(images)]
    for method in ("tpt+cots", "tpt+sals"):
        assert [one.label for one in classifier(method, kind, views=views)(images)] == expected


def test_online_methods_carry_their_state():
    images = [photo(seed) for seed in range(3)]
    together = classifier("tda")
    whole = together(images)
    one_by_one = classifier("tda", batch_size=1)
    for image, expected in zip(images, whole, strict=True):
        same(one_by_one(image), expected)
    assert torch.equal(one_by_one.state.positive_entropy, together.state.positive_entropy)
    episodic = classifier("tpt")
    episodic(images)
    assert episodic.state is None


def test_settings_reach_both_stages():
    image = photo()
    base = classifier("ctpt+cots")(image)
    unweighted = classifier("ctpt+cots", adapter_settings={"weight": 0.0})(image)
    adam = classifier("ctpt+cots", solver="adam")(image)
    same = classifier("ctpt+cots", calibrator_settings={"solver": "adam"})(image)
    few = classifier("ctpt+cots", calibrator_settings={"steps": 50})
    fixed = classifier("tpt+ecots", calibrator_settings={"alpha": 0.6})(image)
    assert not np.allclose(base.probabilities, unweighted.probabilities)
    assert (same.tau, few(image).tau, few.setup.solver) == (adam.tau, adam.tau, "adam")
    assert fixed.alpha == 0.6
    assert classifier(seed=1)(image).views != classifier(seed=2)(image).views


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: classifier("tpt+cotss"), "Unknown calibrator 'cotss'. Did you mean 'cots'"),
        (lambda: classifier("tptt+cots"), "Unknown adapter 'tptt'. Did you mean 'tpt'"),
        (lambda: classifier("cots"), "'cots' is a calibrator; put an adapter before it, such as tpt\\+cots"),
        (lambda: classifier("tpt+cots+zero"), "written as adapter or adapter\\+calibrator"),
        (lambda: classifier("tpt+"), "written as adapter or adapter\\+calibrator"),
        (lambda: classifier(adapter_settings={"stepz": 2}), "Did you mean 'steps'"),
        (lambda: classifier(calibrator_settings={"lose": 2}), "Did you mean 'loss'"),
        (lambda: classifier(batch_size=0), "batch_size must be a whole number >= 1"),
        (lambda: classifier(views=0), "views must be a whole number >= 1"),
        (lambda: classifier(precision="bfloat16"), "pass them to cots.load"),
        (lambda: cots.Classifier(tiny("vit"), ["cat", "dog", "cat "]), r"'cat' appears twice \(names 1 and 3 of"),
        (lambda: cots.Classifier(tiny("vit"), ["cat", "CAT"]), r"'cat' and 'CAT' are one class \(names 1 and 2 of"),
        (lambda: cots.Classifier(tiny("vit"), []), "classes is empty"),
        (lambda: cots.Classifier("nonsense", ["cat"]), "Unknown model 'nonsense'"),
    ],
)
def test_bad_settings_are_named(call, message):
    with pytest.raises(cots.InputError, match=message):
        call()


def test_duplicates_one_class_and_one_view_when_asked_for():
    twice = cots.Classifier(tiny("vit"), ["cat", "cat", "dog"], views=1, allow_duplicates=True)
    assert np.isfinite(twice(photo()).probabilities).all()
    with pytest.warns(UserWarning, match="With one class its probability is always 1"):
        alone = cots.Classifier(tiny("vit"), ["cat"], views=3)
    assert alone(photo()).confidence == pytest.approx(1)


def test_methods_are_parsed_and_written_back():
    assert str(cots.parse_method("tpt + cots")) == "tpt+cots"
    assert str(cots.parse_method("zeroshot+none")) == "zeroshot"
    online = {"tda", "onzeta", "dmn", "boostadapter", "dpe", "ecalp", "reta"}
    online |= {f"tda({tuner})" for tuner in ("ctpt", "otpt", "atpt", "soc", "penalty")}
    tuners = {"tpt", "rtpt", "ctpt", "otpt", "atpt", "soc", "penalty", "zsnorm", "dtpt", "tps", "sts", "tca"}
    assert set(ADAPTERS) == {"zeroshot", "mta", "ttl", *tuners, *online}
    assert {info.name for info in ADAPTERS.infos() if info.kind == "online"} == online
    calibrators = {"none", "sals", "cor", "cots", "ecots", "ensemble", "zero", "ts", "pseudocal", "dac"}
    assert set(CALIBRATORS) == calibrators
    assert "16 classes" not in repr(classifier())
    assert "5 classes, method='tpt+ecots'" in repr(classifier())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"classes": ["cat", "dog", "cat"]}, "'cat' appears twice"),
        ({"classes": ["cat", " "]}, "empty name"),
        ({"method": "tppt"}, "Did you mean 'tpt'"),
        ({"template": "no braces"}, "exactly once"),
        ({"context": "nowhere.pt"}, "does not exist"),
        ({"renderer": "crayon"}, "renderer"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_bad_input_is_refused_before_a_model_is_loaded(change, named, monkeypatch):
    monkeypatch.setattr("cots.classifier.load", lambda *_, **__: pytest.fail("a model was loaded"))
    with pytest.raises(cots.InputError, match=named):
        cots.Classifier("mini", **{"classes": ["cat", "dog"], **change})


@pytest.fixture(scope="module")
def small():
    return cots.Classifier("mini", ["cat", "dog", "car"], "tpt+cots", views=4, device="cpu", abstain=0.99)


def test_a_pickled_classifier_gives_the_same(small):
    pickled = pickle.dumps(small)
    assert len(pickled) < 10_000, "its weights stay where they are"
    again = pickle.loads(pickled)
    first, second = small(photo()), again(photo())
    np.testing.assert_array_equal(first.probabilities, second.probabilities)
    assert (first.label, first.abstained) == (second.label, second.abstained)
    assert (repr(again), again.abstain) == (repr(small), 0.99)


def test_a_spawned_process_and_joblib_take_a_classifier(small):
    image = photo()
    expected = small(image).probabilities
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(small, image).result()
    np.testing.assert_allclose(found.probabilities, expected, atol=1e-6)
    joblib = pytest.importorskip("joblib")
    file = io.BytesIO()
    joblib.dump(small, file)
    file.seek(0)
    np.testing.assert_array_equal(joblib.load(file)(image).probabilities, expected)


def test_online_state_and_reference_travel_with_the_classifier():
    one = cots.Classifier(tiny("vit"), iter(CLASSES), "tda", views=4, reference=[photo(i) for i in range(6)])
    one([photo(i) for i in range(3)])
    other = pickle.loads(pickle.dumps(one))
    assert other.none_below == one.none_below
    np.testing.assert_array_equal(other(photo(9)).probabilities, one(photo(9)).probabilities)


def parts_of(backbone):
    return backbone.model, backbone.tokenizer, backbone.preprocess


def test_other_weights_than_those_pickled_are_refused(small, monkeypatch):
    pickled = pickle.dumps(small)
    monkeypatch.setattr("cots.backbones._load.mini_parts", lambda folder: parts_of(tiny("vit")))
    with pytest.raises(cots.InputError, match="has other weights here than where it was pickled"):
        pickle.loads(pickled)
