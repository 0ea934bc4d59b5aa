"""Answers equal the library's results, alone and in a batch; class lists are cached within their limit."""

from __future__ import annotations

import base64
import io
import json
import platform
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image
from support.models import CLASSES, mini, tiny
from support.serving import VIEWS, ask, blocked, client, photo, samples, until

import cots
from cots import conformal
from cots.serve import ServeSettings, _tasks, create_app
from cots.serve._predict import Predictor
from cots.serve._requests import PredictFields, PredictRequest
from cots.serve._tasks import QuietTokenizer, task_bytes

METHODS = ("zeroshot", "tpt", "tpt+cots", "tpt+ecots", "soc+ecots", "tps+sals")


def matches(result: dict, prediction: cots.Prediction) -> None:
    assert result["label"] == prediction.label
    assert result["confidence"] == pytest.approx(prediction.confidence, rel=0, abs=2e-6)  # as documented
    assert result["tau"] == pytest.approx(prediction.tau, rel=1e-3)
    assert result["alpha"] == prediction.alpha
    assert tuple(result["views"]) == prediction.views
    assert result["method"] == prediction.method
    top = prediction.top(len(result["top"]))
    names, probabilities = zip(*top, strict=True)
    assert tuple(entry["class"] for entry in result["top"]) == names
    found = [entry["probability"] for entry in result["top"]]
    np.testing.assert_allclose(found, probabilities, rtol=0, atol=2e-6, err_msg="the documentation's bound")


def expected(method: str, image: bytes, seed: int = 0, **options) -> cots.Prediction:
    return cots.Classifier(tiny("vit"), CLASSES, method, views=VIEWS, seed=seed, **options)(image)


@pytest.fixture(scope="module")
def web():
    return client()


def test_an_answer_is_what_the_classifier_gives(web):
    image = photo(3, (64, 48), "JPEG")
    answer = ask(web, image, methods=",".join(METHODS), seed=7, top=3)
    assert answer.status_code == 200
    body = answer.json()
    assert body["image"] == {"name": "photo.png", "width": 64, "height": 48}
    assert body["model"] == {"name": "tiny-vit", "weights_hash": tiny("vit").weights_hash}
    assert (body["classes"], body["seed"], body["thumbnails"]) == (5, 7, [])
    assert [result["method"] for result in body["results"]] == list(METHODS)
    for result, method in zip(body["results"], METHODS, strict=True):
        assert len(result["top"]) == 3
        matches(result, expected(method, image, seed=7))
    assert body["agree"] == (len({result["label"] for result in body["results"]}) == 1)


def test_other_requests_in_the_batch_change_nothing(web):
    """Eight waiting requests with equal classes and methods run as one batch; other methods run apart."""
    ask(web)  # requests run alone until the speed of the device is known
    wanted = [METHODS[:2]] * 8 + [METHODS[2:4]]
    answers: list = [None] * 9

    def send(i: int) -> None:
        answers[i] = ask(web, photo(i), methods=",".join(wanted[i]), seed=i)

    with blocked(web) as engine:
        threads = [threading.Thread(target=send, args=(i,)) for i in range(9)]
        for thread in threads:
            thread.start()
        until(lambda: len(engine) == 9, "nine requests in the queue")
        before = samples(web)
    for thread in threads:
        thread.join(60)
    for i, answer in enumerate(answers):
        assert answer.status_code == 200
        for result, method in zip(answer.json()["results"], wanted[i], strict=True):
            matches(result, expected(method, photo(i), seed=i))
    after = samples(web)
    grown = {
        n: after["cots_batch_size_bucket", (("le", n),)] - before["cots_batch_size_bucket", (("le", n),)]
        for n in ("1.0", "4.0", "8.0")
    }
    assert grown == {"1.0": 1, "4.0": 1, "8.0": 2}


def test_one_bad_image_in_a_batch_fails_alone():
    handler = Predictor(tiny("vit"), ServeSettings(views=VIEWS), 2**30)
    cut = photo(1, (64, 64), "JPEG")[:700]
    methods = (cots.parse_method("tpt+cots"),)

    fields = PredictFields(classes=tuple(CLASSES), methods=methods)
    good, bad, other = handler([PredictRequest(image=data, fields=fields) for data in (photo(0), cut, photo(2))])
    assert (bad.status_code, bad.field) == (415, "image")
    matches(json.loads(good.to_json())["results"][0], expected("tpt+cots", photo(0)))
    matches(json.loads(other.to_json())["results"][0], expected("tpt+cots", photo(2)))


def test_batches_that_share_a_device_change_nothing(monkeypatch):
    """Each waits inside the launch of another: for an answer after a round, and for its results."""
    handler = Predictor(tiny("vit"), ServeSettings(views="auto", augmix=False), 2**28)
    lists, photos = (tuple(CLASSES), tuple(reversed(CLASSES))), [photo(i, (64, 48)) for i in range(6)]
    batches = []
    for names in lists:
        fields = PredictFields(classes=names, methods="tpt+ecots,zeroshot")
        batches += [[PredictRequest(image=image, fields=fields) for image in photos[i:]] for i in range(3)]
    other = Predictor(tiny("vit"), ServeSettings(views="auto", augmix=False), 2**28)
    alone = [[answer.predictions for answer in other(batch)] for batch in batches]
    meeting = threading.Barrier(len(batches), timeout=30)
    met = threading.local()

    @contextmanager
    def all_at_once():
        handler._device.release()
        if not hasattr(met, "once"):
            met.once = meeting.wait()
        handler._device.acquire()
        yield

    monkeypatch.setattr(handler, "_released", all_at_once)
    with ThreadPoolExecutor(len(batches)) as pool:
        together = [[answer.predictions for answer in answers] for answers in pool.map(handler, batches)]
    assert not meeting.broken
    for one, same in zip(chain(*alone), chain(*together), strict=True):
        for first, second in zip(one, same, strict=True):
            assert (first.label, first.views_used, first.method) == (second.label, second.views_used, second.method)
            np.testing.assert_allclose(first.probabilities, second.probabilities, rtol=0, atol=1e-6)


def test_requests_for_weak_view_methods_encode_one_view(web, monkeypatch):
    encoded, encode = [], cots.Backbone.encode_images
    monkeypatch.setattr(
        cots.Backbone, "encode_images", lambda self, views: encoded.append(views.shape[1]) or encode(self, views)
    )
    both = {}
    for methods, views in (("zeroshot,zeroshot+sals", 1), ("zeroshot,tpt", VIEWS)):
        answer = ask(web, photo(4), methods=methods, ranges="true", thumbnails="true").json()
        assert encoded.pop() == views
        both[methods] = answer["results"][0]
        assert (both[methods]["agreement"], both[methods]["confidence_range"]) == (None, None)
        assert [one["view"] for one in answer["thumbnails"]] == [0]
    alone, beside = both.values()
    assert alone["confidence"] == pytest.approx(beside["confidence"], rel=0, abs=2e-6)


def test_thumbnails_show_the_selected_views(web):
    image = Image.new("RGB", (80, 60), (250, 20, 20))
    file = io.BytesIO()
    image.save(file, "PNG")
    body = ask(web, file.getvalue(), methods="tpt+cots,zeroshot", thumbnails="true").json()
    chosen = sorted({0, *(view for result in body["results"] for view in result["views"])})
    assert [entry["view"] for entry in body["thumbnails"]] == chosen
    assert len(chosen) > 1
    head, _, data = body["thumbnails"][0]["src"].partition(",")
    assert head == "data:image/jpeg;base64"
    shown = Image.open(io.BytesIO(base64.b64decode(data)))
    assert shown.size == (96, 96)
    assert np.abs(np.asarray(shown)[48, 48].astype(int) - (250, 20, 20)).max() < 12, "the weak view in its own colours"


def test_class_names_are_read_as_people_write_them(web):
    body = ask(web, classes="\ufefftabby_cat\r\n\r\n  car  \r\n").json()
    assert body["classes"] == 2
    assert {entry["class"] for entry in body["results"][0]["top"]} == {"tabby cat", "car"}
    body = ask(web, classes="tabby cat, car,golden retriever\n").json()
    assert {entry["class"] for entry in body["results"][0]["top"]} == {"tabby cat", "car", "golden retriever"}
    assert body["warnings"] == []
    (warned,) = ask(web, classes="tabby cat, car\ntree").json()["warnings"]
    assert (
        warned
        == "'tabby cat, car' counts as one class, because it is one of several lines; write one class name per line."
    )


def test_the_answer_warns_of_untrained_words(web):
    (warned,) = ask(web, classes="cat").json()["warnings"]
    assert "one class" in warned.lower()
    embedded = TestClient(create_app(mini(), ServeSettings(views=2)))
    (warned,) = ask(embedded, classes="cat\nzyzzyva", methods="zeroshot").json()["warnings"]
    assert "'zyzzyva'" in warned
    assert ask(embedded, classes="cat\ndog", methods="zeroshot").json()["warnings"] == []


def test_the_task_cache_stays_within_its_bytes(monkeypatch):
    methods, returned = (cots.parse_method("tpt"),), []
    monkeypatch.setattr(_tasks, "return_memory", lambda: returned.append(True))

    def handle(handler: Predictor, *classes: str) -> None:
        fields = PredictFields(classes=classes, methods=methods)
        (answer,) = handler([PredictRequest(image=photo(), fields=fields)])
        assert answer.predictions[0].classes == classes

    whole = Predictor(tiny("vit"), ServeSettings(views=2), 2**30)
    for i in range(9):
        handle(whole, "cat", f"thing {i}")
    assert len(whole.tasks) == 9
    assert not returned, "nothing was dropped"
    limit = whole.tasks.bytes // 3
    small = Predictor(tiny("vit"), ServeSettings(views=2), limit)
    for i in range(9):
        handle(small, "cat", f"thing {i}")
    assert 0 < small.tasks.bytes <= limit
    assert 2 <= len(small.tasks) <= 3
    assert 6 <= len(returned) <= 7, "each of these tasks is more than a 32nd of the cache"
    kept = list(small.tasks._tasks)
    assert kept[-1][0] == ("cat", "thing 8"), "the most recently used list is kept"
    # A list larger than the cache is answered too, but neither kept nor a reason to drop others.
    handle(small, *(f"thing {i}" for i in range(60)))
    assert list(small.tasks._tasks) == kept


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator of glibc")
def test_memory_between_tensors_is_returned():
    def resident_mib() -> float:
        return int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024

    tensors = [torch.ones(25_000) for _ in range(1000)]  # 95 MiB in pieces that come from the heap
    before = resident_mib()
    kept = tensors[::10]
    del tensors
    _tasks.return_memory()
    assert before - resident_mib() > 60
    assert len(kept) == 100


@pytest.mark.parametrize("count", [1, 60])
def test_activations_kept_for_tuning_are_counted(count):
    task = cots.Task(tiny("vit"), [f"some thing {i}" for i in range(count)])
    weights = {t.untyped_storage().data_ptr() for t in tiny("vit").model.state_dict().values()}
    before = task_bytes(task, weights)
    cots.adapt("tpt", np.eye(12, dtype=np.float32)[:8], task)
    reckoned = task.tower.tokens_per_sample * task.tower.bytes_per_token
    assert 0.8 < (task_bytes(task, weights) - before) / reckoned < 2


def test_the_word_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(_tasks, "MAX_WORDS", 50)
    base = open_clip.SimpleTokenizer()
    quiet = QuietTokenizer(base)
    words = ["q" + chr(97 + i // 26) + chr(97 + i % 26) + "x" for i in range(120)]
    plain = [base([f"a {word} photo"]) for word in words]
    assert len(base.cache) > 120
    for word, ids in zip(words, plain, strict=True):
        assert (quiet([f"a {word} photo"]) == ids).all()
    assert len(base.cache) < 120


def test_keys_and_meaning_are_those_of_python():
    """One result is `Prediction.to_dict(top)` plus its time; the server abstains as the classifier does."""
    web = client(views=8)
    for settings in ({}, {"abstain": 1.0}, {"none_of_these": True}):
        (result,) = ask(web, classes="\n".join(CLASSES), top=2, **settings).json()["results"]
        classifier = cots.Classifier(tiny("vit"), CLASSES, views=8, **settings)
        expected = classifier(photo()).to_dict(2)
        assert set(result) == set(expected) - {"error", "presence"} | {"milliseconds", "under_policy", "id", "ask"}
        assert (result["label"], result["abstained"]) == (expected["label"], expected["abstained"])
        assert result["in_list"] == pytest.approx(expected["in_list"], abs=1e-4)
        assert result["abstained"] == ("abstain" in settings or (result["none_of_these"] and bool(settings)))
    refused = ask(web, classes="\n".join(CLASSES), abstain=70)
    assert refused.json()["error"]["field"] == "abstain"


def test_a_policy_without_a_threshold_says_so_in_each_answer():
    """Only where the policy applies: with its classes and its method."""
    confidence, correct = np.linspace(0.5, 1, 210), np.arange(210) % 8 > 0
    error = conformal.control_error(confidence, correct, risk=0.05)
    assert error.threshold is None
    classes = ("cat", "car", "tree")
    policy = conformal.Policy(
        model="tiny-vit", weights_hash=tiny("vit").weights_hash, classes=classes, method="tpt", views=VIEWS, n=210,
        template="a photo of a {}.", accuracy=0.9, mean_confidence=0.9, error=error,
    )  # fmt: skip
    without = client(policy=policy)
    suggested = client(policy=replace(policy, method="ctpt+cots")).get("/v1/methods").json()["suggested"]
    assert suggested == ["zeroshot", "tpt", "tpt+cots", "tpt+ecots", "ctpt+cots"], "the page requests its method too"

    def warnings(web, **fields):
        return ask(web, **{"classes": "\n".join(classes), "methods": "tpt", **fields}).json()["warnings"]

    said = [f"The policy has no threshold, so it keeps unsure predictions: {error.shortfall}."]
    assert warnings(without, methods="zeroshot,tpt") == said
    assert warnings(without, methods="zeroshot") == []
    assert warnings(without, classes="cat\ncar") == []
    (seed,) = warnings(without, seed=3)[1:]
    assert seed.startswith("The policy was made with seed 0, not 3")
    assert warnings(client(policy=replace(policy, error=replace(error, threshold=0.1)))) == []
