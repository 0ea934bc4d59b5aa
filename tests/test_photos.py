"""The stream from photos to predictions: order, errors, how far it reads ahead, and one decoding per photo."""

from __future__ import annotations

import io
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image
from support.images import grain, photo
from support.models import CLASSES, tiny

import cots
from cots import InputError
from cots.adaptation import Pipeline
from cots.methods import parse_method
from cots.photos import PhotoEncoder, batches, begin_predictions
from cots.views import ViewSettings, image_seed, make_views, read_image

IMAGES = [grain(40, 50, seed=0), b"no image", grain(30, 60, seed=1), grain(50, 30, seed=2), b""]


def encoder(**options) -> PhotoEncoder:
    backbone = tiny("vit")
    return PhotoEncoder(backbone, ViewSettings.from_preprocess(backbone.preprocess, n=3), **options)


def test_a_photo_is_decoded_once_under_the_limit_that_was_given(monkeypatch):
    stream, calls = io.BytesIO(), []
    photo(40, 60).save(stream, "PNG")
    opened = Image.open
    monkeypatch.setattr(Image, "open", lambda *given, **named: calls.append(given) or opened(*given, **named))
    monkeypatch.setitem(read_image.__kwdefaults__, "max_pixels", 1000)
    assert encoder().read(stream.getvalue(), 0, max_pixels=2400).size == (60, 40)
    assert len(calls) == 1
    with pytest.raises(InputError, match="max_pixels = 1000"):
        encoder().read(stream.getvalue(), 0)


@pytest.mark.parametrize("at_once", [1, 2, 9])
def test_features_are_those_of_the_stages_in_order(at_once):
    ours = encoder(at_once=at_once)
    photos = list(ours.encode(ours.read_all(lambda image: ours.read(image, 7), IMAGES)))
    assert [photo.error is None for photo in photos] == [True, False, True, True, False]
    assert "not an image" in str(photos[1].error)
    assert "no data" in str(photos[4].error)
    for image, encoded in zip(IMAGES, photos, strict=True):
        if encoded.error is None:
            expected = ours.backbone.encode_images(make_views(image, ours.maker.settings, image_seed(image, 7)))
            torch.testing.assert_close(encoded.features, expected, rtol=0, atol=2e-6)
            assert encoded.size == image.size
            assert encoded.views is None


def test_others_may_use_the_device_while_the_host_waits_for_an_answer():
    entered = []

    @contextmanager
    def waiting():
        entered.append("in")
        yield
        entered.append("out")

    backbone = tiny("vit")
    task = cots.Task(backbone, CLASSES)
    settings = ViewSettings.from_preprocess(backbone.preprocess, n=8)
    for rounds in ((), (2, 4, 8)):
        ours = PhotoEncoder(backbone, settings, rounds=rounds)
        groups = ours.render([ours.read(IMAGES[0], 0)])
        (encoded,) = ours.encode_rendered(groups, task, waiting=waiting)
        asked = [views for views in rounds[:-1] if views <= encoded.views_used]
        assert entered == ["in", "out"] * len(asked)


def test_views_are_kept_for_those_who_need_them():
    ours = encoder()
    (kept,) = ours.encode([ours.read(IMAGES[0], 0)], keep_views=True)
    expected = make_views(IMAGES[0], ours.maker.settings, image_seed(IMAGES[0], 0))
    assert torch.equal(kept.views, expected)
    assert len(kept.features) == 3
    pixels = encoder(pixels=True)
    (kept,) = pixels.encode([pixels.read(IMAGES[0], 0)])
    assert torch.equal(kept.views, expected)
    assert len(kept.features) == 1  # the weak view, for `in_list`


def test_the_stream_reads_no_further_than_it_is_asked():
    ours, asked = encoder(at_once=2), []

    def read(image):
        asked.append(image)
        return ours.read(image, 0)

    stream = ours.encode(ours.read_all(read, iter(IMAGES)))
    next(stream)
    assert len(asked) == 2
    assert list(map(len, batches(range(7), 3))) == [3, 3, 1]


def test_errors_that_are_no_input_errors_are_not_swallowed():
    ours = encoder()

    def read(image):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(ours.encode(ours.read_all(read, IMAGES)))


def test_predictions_of_several_methods_are_the_classifiers():
    ours, names = encoder(), ("zeroshot", "tpt+ecots(solver=exact)")  # the classifier's default
    task = cots.Task(ours.backbone, CLASSES)
    photos = list(ours.encode(ours.read_all(lambda image: ours.read(image, 0), IMAGES)))
    found = begin_predictions(Pipeline(task, names), photos, none_below=0.5)()
    for name in names:
        classifier = cots.Classifier(ours.backbone, CLASSES, name, views=3, augmix=False)
        for one, expected in zip(found[parse_method(name)], classifier(IMAGES), strict=True):
            assert (one.error, one.label) == (expected.error, expected.label)
            np.testing.assert_allclose(one.probabilities, expected.probabilities, rtol=0, atol=2e-6)
            assert one.none_of_these == (one.in_list < 0.5)


def test_a_batch_of_errors_alone():
    ours = encoder()
    photos = list(ours.encode(ours.read_all(lambda image: ours.read(image, 0), [b"", b"no image"])))
    (found,) = begin_predictions(Pipeline(cots.Task(ours.backbone, CLASSES), ["tpt+cots"]), photos)().values()
    assert [bool(prediction.error) for prediction in found] == [True, True]
    assert found[0].method == "tpt+cots"
    assert np.isnan(found[0].probabilities).all()
