"""Views in rounds: the rule that ends a photo, its encoder, and every door, against plain loops."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch
from support.images import grain, photo
from support.models import CLASSES, tiny
from support.serving import ask, client
from typer.testing import CliRunner

import cots
from cots import InputError, rounds
from cots.accelerate import Plain, using
from cots.adaptation import Pipeline
from cots.cli import app
from cots.photos import EncodedPhoto, PhotoEncoder, begin_predictions, encoder_for
from cots.views import ViewSettings, image_seed, make_views

IMAGES = [grain(40 + 3 * i, 50 + 5 * (i % 4), seed=i) for i in range(7)]


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    """Few views, and thresholds under which random weights end photos after every round."""
    monkeypatch.setattr(rounds, "ROUNDS", (2, 4, 8))
    monkeypatch.setattr(rounds, "SURE", 0.1)
    monkeypatch.setattr(rounds, "CLEAR", {4: 0.05})
    monkeypatch.setattr(rounds, "STEADY", 0.1)


def answer_of(features: np.ndarray, task: cots.Task) -> np.ndarray:
    """The untuned weak-strong ensemble of one photo, view by view."""
    text = task.text_features.double().numpy()
    table, entropies = [], []
    for view in features:
        z = task.logit_scale * (text @ view)
        p = np.exp(z - z.max())
        p /= p.sum()
        table.append(p)
        entropies.append(-(p * np.log(p)).sum())
    order = 1 + np.argsort(entropies[1:], kind="stable")
    chosen = order[: max(1, int(0.1 * (len(features) - 1)))]
    return task.alpha * table[0] + (1 - task.alpha) * np.mean([table[i] for i in chosen], axis=0)


def ends(now: np.ndarray, before: np.ndarray | None, views: int) -> bool:
    second, best = np.sort(now)[-2:]
    if best - second > rounds.SURE:
        return True
    if before is None or views not in rounds.CLEAR or best - second <= rounds.CLEAR[views]:
        return False
    return now.argmax() == before.argmax() and abs(now.max() - before.max()) <= rounds.STEADY


def views_needed(features: np.ndarray, task: cots.Task) -> int:
    before = None
    for views in rounds.ROUNDS[:-1]:
        now = answer_of(features[:views], task)
        if ends(now, before, views):
            return views
        before = now
    return rounds.ROUNDS[-1]


def encoder(backbone: cots.Backbone, at_once: int) -> PhotoEncoder:
    settings = ViewSettings.from_preprocess(backbone.preprocess, n=8)
    return PhotoEncoder(backbone, settings, at_once=at_once, rounds=rounds.ROUNDS)


def encoded(images: list, at_once: int, task: cots.Task | None) -> list[EncodedPhoto]:
    ours = encoder(tiny("vit"), at_once)
    return list(ours.encode(ours.read_all(lambda image: ours.read(image, 3), images), task))


@pytest.mark.parametrize("views", [2, 4])
@pytest.mark.parametrize("classes", [2, 3, 30])
def test_the_rule_against_a_loop(views, classes):
    rng = np.random.default_rng(classes)
    now = rng.dirichlet(np.full(classes, 0.5), size=400)
    now[:5] = now[:5].round(1)  # exact ties of the best two
    before = 0.7 * now + 0.3 * rng.dirichlet(np.full(classes, 0.5), size=400)
    got = rounds.enough(torch.from_numpy(now), torch.from_numpy(before), views)
    assert got.tolist() == [ends(a, b, views) for a, b in zip(now, before, strict=True)]
    first = rounds.enough(torch.from_numpy(now), None, views)
    assert first.tolist() == [ends(a, None, views) for a in now]
    assert 0 < first.sum() < got.sum() < 400 or views == 2


def test_one_class_needs_one_round():
    assert rounds.enough(torch.ones(3, 1), None, 2).all()


def test_photos_end_where_a_loop_ends_them_with_the_views_of_a_fixed_number():
    backbone = tiny("vit")
    task = cots.Task(backbone, CLASSES)
    settings = ViewSettings.from_preprocess(backbone.preprocess, n=8)
    wanted = []
    found = encoded(IMAGES, 3, task)
    for image, one in zip(IMAGES, found, strict=True):
        features = backbone.encode_images(make_views(image, settings, image_seed(image, 3)))
        assert one.features is not None
        torch.testing.assert_close(one.features, features[: len(one.features)], rtol=0, atol=2e-6)
        wanted.append(views_needed(features.double().numpy(), task))
    assert [one.views_used for one in found] == wanted
    assert len(set(wanted)) == 3, "photos end after each of the rounds"


@pytest.mark.parametrize("at_once", [1, 2, 9])
def test_neither_other_photos_nor_the_accelerator_change_the_views(at_once):
    task = cots.Task(tiny("vit"), CLASSES)
    together = encoded([*IMAGES, b"no image", *IMAGES[::-1]], at_once, task)
    assert together[7].error is not None
    with using(Plain()):
        alone = [encoded([image], 1, task)[0] for image in IMAGES]
    for one, same, other in zip(together[:7], alone, together[:7:-1], strict=True):
        assert one.views_used == same.views_used == other.views_used
        torch.testing.assert_close(one.features, same.features, rtol=0, atol=2e-6)


def test_without_a_task_all_views_are_encoded():
    assert [one.views_used for one in encoded(IMAGES[:2], 2, None)] == [8, 8]


def test_views_are_kept_as_far_as_they_were_drawn():
    backbone = tiny("vit")
    ours, task = encoder(backbone, 4), cots.Task(backbone, CLASSES)
    for one in ours.encode([ours.read(image, 0) for image in IMAGES], task, keep_views=True):
        assert one.views is not None
        assert one.features is not None
        assert len(one.views) == len(one.features) == one.views_used


def test_photos_with_different_numbers_of_views_are_predicted_as_alone():
    backbone = tiny("vit")
    task = cots.Task(backbone, CLASSES)
    photos = encoded([*IMAGES[:3], b"", *IMAGES[3:]], 3, task)
    pipeline = Pipeline(task, ["zeroshot", "tpt+ecots"], ranges=True)
    for method, together in begin_predictions(pipeline, photos)().items():
        for one, own in zip(photos, together, strict=True):
            (alone,) = begin_predictions(pipeline, [one])()[method]
            assert (own.label, own.views, own.views_used, own.error) == (
                alone.label, alone.views, alone.views_used, alone.error,
            )  # fmt: skip
            np.testing.assert_allclose(own.probabilities, alone.probabilities, rtol=0, atol=2e-6)
            assert own.views_used == one.views_used


def test_the_classifier_says_how_many_views_it_used():
    automatic = cots.Classifier(tiny("vit"), CLASSES, views="auto", augmix=False)
    found = automatic(IMAGES)
    assert len({one.views_used for one in found}) > 1
    for image, one in zip(IMAGES, found, strict=True):
        fixed = cots.Classifier(tiny("vit"), CLASSES, views=one.views_used, augmix=False)(image)
        assert (fixed.label, fixed.views, fixed.views_used) == (one.label, one.views, one.views_used)
        assert fixed.confidence == pytest.approx(one.confidence, abs=2e-6)
        assert one.to_dict(2)["views_used"] == one.views_used


@pytest.mark.parametrize(
    ("method", "setup", "used"),
    [("zeroshot", "auto", 1), ("tda", 8, 1), ("tda(ctpt)", 8, 8), ("ttl", 8, 8), ("mta", "auto", None)],
)
def test_which_methods_stop_early(method, setup, used):
    classifier = cots.Classifier(tiny("vit"), CLASSES, method, views="auto")
    assert classifier.setup.views == setup
    prediction = classifier(IMAGES[0])
    assert prediction.views_used == used or (used is None and prediction.views_used in rounds.ROUNDS)


@pytest.mark.parametrize("views", ["all", "64", "", 0, 2.5, True])
def test_other_values_are_refused(views):
    with pytest.raises(InputError, match="views must be a whole number >= 1"):
        cots.Classifier(tiny("vit"), CLASSES, views=views)


def test_a_server_and_its_answers_have_them():
    web = client(views="auto", augmix=False)
    image = photo(60, 80)
    answer = ask(web, _png(image), methods="zeroshot,tpt+ecots", thumbnails="true").json()
    expected = cots.Classifier(tiny("vit"), CLASSES, views="auto", augmix=False)(image)
    assert [one["views_used"] for one in answer["results"]] == [expected.views_used] * 2
    assert answer["results"][1]["confidence"] == pytest.approx(expected.confidence, abs=2e-6)
    assert max(one["view"] for one in answer["thumbnails"]) < expected.views_used
    weak = ask(web, _png(image), methods="zeroshot").json()
    assert weak["results"][0]["views_used"] == 1
    with pytest.raises(InputError, match="views must be a whole number"):
        client(views=0)


def test_the_command_takes_them(tmp_path):
    file = tmp_path / "photo.png"
    file.write_bytes(_png(photo(60, 80)))
    run = CliRunner().invoke(
        app, ["predict", str(file), "--classes", "cat,car", "--views", "auto", "--method", "zeroshot", "--json"]
    )
    assert json.loads(run.stdout)["views_used"] == 1
    wrong = CliRunner().invoke(app, ["predict", str(file), "--classes", "cat,car", "--views", "many"])
    assert wrong.exit_code == 2


def _png(image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_an_encoder_for_each_number_of_views():
    backbone = tiny("vit")
    assert encoder_for(backbone, "auto", True, 64).rounds == rounds.ROUNDS
    assert encoder_for(backbone, 5, True, 64).rounds == (5,)
    assert encoder_for(backbone, "auto", True, 1).at_once == 1
