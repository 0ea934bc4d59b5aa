"""Request bodies: every invalid field gets its own code and is named."""

from __future__ import annotations

import base64
import io
import json
import re
import threading

import numpy as np
import pytest
from PIL import Image, ImageFile
from support.models import tiny
from support.serving import ask, bomb, client, photo, refused

from cots.classes import class_list, class_lists, read_classes
from cots.methods import Prediction
from cots.prompts import ONE_CLASS
from cots.serve import _requests
from cots.serve._predict import PhotoAnswer
from cots.serve._requests import PredictFields, PredictRequest
from cots.serve._schemas import Thumbnail

LONG = "word " * 60
JSON = {"content-type": "application/json"}


def described(cat, dog):
    """Fields of a request with descriptions."""
    return {"classes": "cat\ndog", "descriptions": json.dumps({"cat": cat, "dog": dog})}


@pytest.fixture(scope="module")
def web():
    return client(augmix=False)


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"classes": None}, "no_classes", "classes"),
        ({"classes": " \n\r\n"}, "no_classes", "classes"),
        ({"classes": "\n".join(f"thing {i}" for i in range(5001))}, "too_many_classes", "classes"),
        ({"classes": "cat\ndog\n cat"}, "duplicate_class", "classes"),
        ({"classes": "cat\ndog\nCat"}, "duplicate_class", "classes"),
        ({"classes": "cat\n" + "x" * 201}, "name_too_long", "classes"),
        ({"classes": "cat\n" + "a b c d " * 24}, "bad_classes", "classes"),
        ({"descriptions": "cats purr"}, "bad_descriptions", "descriptions"),
        ({"descriptions": "[1]"}, "bad_descriptions", "descriptions"),
        (described("Purrs.", "Barks."), "bad_descriptions", "descriptions"),
        (described(["Purrs."], []), "bad_descriptions", "descriptions"),
        (described(["Purrs."], ["Barks."]) | {"classes": "cat\ncow"}, "bad_descriptions", "descriptions"),
        (described(["Purrs."], ["a b " * 60]), "bad_descriptions", "descriptions"),
        (described(["Purrs."], ["Barks."] * 5000), "too_many_descriptions", "descriptions"),
        (described(["Purrs."], ["Barks."]), "bad_methods", "methods"),  # tpt
        ({"methods": ""}, "no_methods", "methods"),
        ({"methods": "tptt"}, "bad_method", "methods"),
        ({"methods": "cots"}, "bad_method", "methods"),
        ({"methods": "tpt+cots+cots"}, "bad_method", "methods"),
        ({"methods": "tpt+cots(kk=2)"}, "bad_method", "methods"),
        ({"methods": "tpt(steps=11)"}, "not_offered", "methods"),
        ({"methods": "tpt+cots(steps=201)"}, "not_offered", "methods"),
        ({"methods": "tda"}, "not_offered", "methods"),
        ({"methods": "ttl+cots"}, "not_offered", "methods"),
        ({"methods": ",".join(["tpt"] * 9)}, "too_many_methods", "methods"),
        ({"template": "a photo"}, "bad_template", "template"),
        ({"template": "{} and {}"}, "bad_template", "template"),
        ({"template": "{}{0}"}, "bad_template", "template"),
        ({"template": "{}."}, "bad_template", "template"),  # nothing before {} to tune
        ({"template": LONG + "{}"}, "template_too_long", "template"),
        ({"template": "a b c d e f g h " * 10 + "{}"}, "bad_template", "template"),
        ({"top": "0"}, "bad_top", "top"),
        ({"top": "five"}, "bad_top", "top"),
        ({"seed": "-1"}, "bad_seed", "seed"),
        ({"seed": str(2**64)}, "bad_seed", "seed"),
        ({"seed": "9" * 5000}, "bad_seed", "seed"),
        ({"thumbnails": "perhaps"}, "bad_thumbnails", "thumbnails"),
        ({"clases": "cat"}, "unknown_field", "clases"),
    ],
)
def test_a_wrong_field_is_named(web, fields, code, field):
    refused(ask(web, **fields), 422, code, field)


def test_messages_say_how_to_fix_it(web):
    assert "Did you mean 'tpt'?" in refused(ask(web, methods="tptt"), 422, "bad_method", "methods")
    assert "'cat'" in refused(ask(web, classes="cat\ncat"), 422, "duplicate_class", "classes")
    assert "5000" in ask(web, classes="\n".join(map(str, range(5001)))).json()["error"]["message"]
    assert "77" in refused(ask(web, classes="cat\n" + "a b c d " * 24), 422, "bad_classes", "classes")
    few = client(max_classes=20)
    assert ask(few, classes="\n".join(f"thing {i}" for i in range(20)), methods="zeroshot").status_code == 200
    refused(ask(few, classes="\n".join(f"thing {i}" for i in range(21))), 422, "too_many_classes", "classes")
    assert ask(web, template="{}.", methods="zeroshot").status_code == 200


def test_images_that_cannot_be_used(web):
    refused(ask(web, files={}), 415, "not_multipart", None)  # without a file the client sends another type
    refused(ask(web, files={"other": ("a", b"x")}), 422, "unknown_field", "other")
    refused(ask(web, b""), 415, "not_an_image", "image")
    refused(ask(web, b"<svg>no</svg>"), 415, "not_an_image", "image")
    refused(ask(web, photo(0, (90, 90), "JPEG")[:900]), 415, "not_an_image", "image")
    refused(ask(web, files={"image": (None, "text")}), 422, "not_a_file", "image")
    both = {"image": ("a.png", photo()), "classes": ("c", b"cat")}
    refused(ask(web, files=both, classes=None), 422, "not_text", "classes")
    answer = web.post("/v1/predict", content=b"x", headers={"content-type": "image/png"})
    refused(answer, 415, "not_multipart", None)
    answer = web.post("/v1/predict", content=b"nonsense", headers={"content-type": "multipart/form-data; boundary=x"})
    refused(answer, 400, "bad_form", None)
    answer = web.post("/v1/predict", content=b"nonsense", headers={"content-type": "multipart/form-data"})
    refused(answer, 400, "bad_form", None)
    twice = {"classes": ["cat", "dog"]}
    answer = web.post("/v1/predict", data=twice, files={"image": ("a.png", photo())})
    refused(answer, 422, "repeated_field", "classes")


def in_base64(**changes) -> dict:
    text = base64.b64encode(photo()).decode()
    return {"image": text, "classes": ["cat", "dog"], "methods": ["zeroshot"], **changes}


def test_methods_with_settings_are_methods_of_their_own(web):
    """In a form, commas within parentheses do not separate methods; two settings give two results."""
    text = "tpt+cots, tpt(steps=2)+cots(k=1,loss=l1),tpt+ecots(alpha=0.5)"
    found = ask(web, classes="cat\ndog", methods=text).json()["results"]
    assert [one["method"] for one in found] == ["tpt+cots", "tpt(steps=2)+cots(k=1,loss=l1)", "tpt+ecots(alpha=0.5)"]
    assert (len(found[1]["views"]), found[2]["alpha"]) == (1, 0.5)


def test_json_is_the_same_request_as_a_form(web):
    form = ask(web, classes="cat\ndog", methods="zeroshot,tpt", seed="3").json()
    for classes, methods in ((["cat", "dog"], ["zeroshot", "tpt"]), ("cat,dog", "zeroshot,tpt")):
        found = web.post("/v1/predict", json=in_base64(classes=classes, methods=methods, seed=3)).json()
        for a, b in zip(form["results"], found["results"], strict=True):
            assert (a["label"], a["confidence"]) == (b["label"], pytest.approx(b["confidence"], abs=1e-6))
    url = f"data:image/png;base64,{in_base64()['image']}"
    assert web.post("/v1/predict", json=in_base64(image=url)).status_code == 200


@pytest.mark.parametrize("name", ["everyday", " Everyday\n", "imagenet_a"])
def test_a_single_name_can_be_a_known_list(web, name):
    names = read_classes(name)  # the rule of the command line
    assert len(names) > 1
    expected = ask(web, classes="\n".join(names), methods="zeroshot", top="3").json()
    form = ask(web, classes=name, methods="zeroshot", top="3").json()
    body = web.post("/v1/predict", json=in_base64(classes=name, top=3)).json()
    data = {"classes": name, "methods": "zeroshot", "top": "3"}
    batch = web.post("/v1/predict/batch", data=data, files=[("images", ("photo.png", photo()))]).json()
    for found in (form, body, batch["photos"][0]["answer"]):
        assert found["classes"] == len(names)
        assert found["results"][0]["top"] == expected["results"][0]["top"]
    refused(ask(client(max_classes=5), classes=name), 422, "too_many_classes", "classes")


@pytest.mark.parametrize("classes", ["sunset", ["everyday"]])
def test_another_single_name_is_one_class(web, classes):
    answer = web.post("/v1/predict", json=in_base64(classes=classes)).json()
    assert (answer["classes"], ONE_CLASS in answer["warnings"]) == (1, True)
    assert web.post("/v1/predict", json=in_base64(classes="everyday,pets")).json()["classes"] == 2


@pytest.mark.parametrize("classes", ["imagnet", __file__.replace(".py", ".txt")])
def test_a_near_miss_and_a_file_name_are_refused(web, classes):
    refused(web.post("/v1/predict", json=in_base64(classes=classes)), 422, "bad_classes", "classes")


def test_a_path_is_never_read_from_a_request(web):
    answer = web.post("/v1/predict", json=in_base64(classes=__file__)).json()
    assert answer["results"][0]["top"][0]["class"] == " ".join(__file__.replace("_", " ").split())


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"image": "not base64!"}, "not_base64", "image"),
        ({"image": None}, "not_base64", "image"),
        ({"image": []}, "missing_image", "image"),
        ({"classes": []}, "no_classes", "classes"),
        ({"classes": ["cat", 3]}, "not_text", "classes"),
        ({"classes": ["x" * 201]}, "name_too_long", "classes"),
        ({"methods": ["tptt"]}, "bad_method", "methods"),
        ({"top": [1]}, "not_text", "top"),
        ({"images": []}, "unknown_field", "images"),
        ({"classes": ["\ud800", "cat"]}, "bad_json", None),
    ],
)
def test_a_wrong_field_of_json_is_named(web, changes, code, field):
    refused(web.post("/v1/predict", content=json.dumps(in_base64(**changes)), headers=JSON), 422, code, field)


@pytest.mark.parametrize("body", [b"", b"[", b"[" * 100_000, b"null", b"[]", b"\xff"])
def test_predict_takes_only_json_objects(web, body):
    refused(web.post("/v1/predict", content=body, headers=JSON), 422, "bad_json", None)


@pytest.mark.parametrize("size", [(8000, 8000), (60_000, 60_000)])
def test_bombs_are_refused_before_decoding(web, size, monkeypatch):
    def decode(self):
        raise AssertionError("decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", decode)
    message = refused(ask(web, bomb(*size)), 413, "too_many_pixels", "image")
    assert "50000000" in message


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"adapted": [[1, 2]]}, "zero_shot"),
        ({"adapted": [[[1, 2]]], "zero_shot": [[[1, 2, 3]]]}, "zero_shot"),
        ({"adapted": [[1, 2], [1]], "zero_shot": [[1, 2], [1, 2]]}, "adapted"),
        ({"adapted": [], "zero_shot": []}, "adapted"),
        ({"adapted": [[]], "zero_shot": [[]]}, "adapted"),
        ({"adapted": [["a", "b"]], "zero_shot": [[1, 2]]}, "adapted"),
        ({"adapted": [[1, 1e999]], "zero_shot": [[1, 2]]}, "adapted"),
        ({"adapted": [[[1, 2]]], "zero_shot": [[[1, 2]]], "labels": [2]}, "labels"),
        ({"adapted": [[[1, 2]]], "zero_shot": [[[1, 2]]], "labels": []}, "labels"),
        ({"adapted": [[[1, 2]]], "zero_shot": [[[1, 2]]], "labels": [2**70]}, "labels"),
        ({"adapted": [[[1, 2]]], "zero_shot": [[[1, 2]]], "method": "cotss"}, "method"),
        ({"adapted": [[[1, 2]]], "zero_shot": [[[1, 2]]], "method": "ecots"}, "alpha"),
        ({"adapted": [[[1, 2]]], "zero_shot": [[[1, 2]]], "method": "ecots", "alpha": 3}, "alpha"),
        ({"adapted": [[[1, 2]]], "zero_shot": [[[1, 2]]], "text_features": [[1, 0]]}, "text_features"),
        ({"adapted": [[[1, 2]]], "zero_shot": [[[1, 2]]], "text_features": [[0, 0], [1, 0]]}, "text_features"),
        ({"adapted": [[[1, 2]]], "zero_shot": [[[1, 2]]], "alpha": 0.5, "text_features": [[1, 0], [0, 1]]}, "alpha"),
        ({"adapted": [[[1, 2]]], "zero_shot": [[[1, 2]]], "methd": "cots"}, "methd"),
        ({"adapted": [[1, 2]], "zero_shot": [[1, 2]]}, "rows"),
        ({"adapted": [[1, 2]], "zero_shot": [[1, 2]], "rows": "row"}, "rows"),
        ({"adapted": [[[1, 2]]], "zero_shot": [[[1, 2]]], "rows": "views"}, "rows"),
    ],
)
def test_calibrate_names_the_field(web, body, field):
    answer = web.post("/v1/calibrate", content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["field"] == field


@pytest.mark.parametrize("body", [b"", b"[", b"[" * 100_000, b"null", b"\xff", b"1" * 5000])
def test_calibrate_takes_only_json_objects(web, body):
    answer = web.post("/v1/calibrate", content=body, headers={"content-type": "application/json"})
    refused(answer, 422, "bad_json", None)
    refused(web.post("/v1/calibrate", content=body), 415, "not_json", None)


def test_only_common_image_formats_are_accepted(web):
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"):
        assert ask(web, photo(0, kind=kind), methods="zeroshot").status_code == 200, kind
    for kind in ("EPS", "PCX", "TGA"):
        file = io.BytesIO()
        Image.new("RGB", (20, 20)).save(file, kind)
        refused(ask(web, file.getvalue()), 415, "not_an_image", "image")


def test_descriptions_change_the_prediction_in_a_form_and_in_json(web):
    sentences = {"cat": ["It purrs.", "A small animal."], "dog": ["It barks."]}
    fields = {"classes": "cat\ndog", "methods": "zeroshot"}
    plain, form = (
        ask(web, **fields, **more).json()["results"][0]["confidence"]
        for more in ({}, {"descriptions": json.dumps(sentences)})
    )
    body = {"image": base64.b64encode(photo()).decode(), "descriptions": sentences, **fields}
    answer = web.post("/v1/predict", content=json.dumps(body), headers=JSON).json()["results"][0]["confidence"]
    assert answer == form != plain


@pytest.mark.parametrize("known", class_lists())
def test_every_known_list_is_taken(known):
    """Also ImageNet's, which has a name twice."""
    with client() as own:
        answer = ask(own, classes=known, methods="zeroshot").json()
        assert answer["classes"] == len(class_list(known))
        names = "\n".join([*class_list(known), class_list(known)[0]])
        refused(ask(own, classes=names, methods="zeroshot"), 422, "duplicate_class", "classes")


def test_a_text_of_classes_is_read_once(web, monkeypatch):
    texts, read = [], _requests.read_classes
    monkeypatch.setattr(_requests, "read_classes", lambda text, **options: texts.append(text) or read(text, **options))
    _requests._kept_names.cache_clear()
    once, wrong, long = "cat\nonce", "cat\n" + "x" * 201, "cat\n" + "\n" * _requests.KEPT_TEXT + "far"
    for classes in (once, wrong, long) * 2:
        ask(web, classes=classes, methods="zeroshot")
    assert sorted(texts, key=len) == [once, wrong, wrong, long, long]
    assert 16 * _requests.KEPT_TEXT * _requests.KEPT < 2**24, "bytes of names"


def jpeg() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (30, 20), "red").save(file, "JPEG")
    return file.getvalue()


def test_a_header_that_takes_long_to_read_does_not_delay_other_requests(monkeypatch):
    """PIL reads it in Python: thousands of segments take seconds."""
    loop_threads = set()
    checked = _requests.check_image
    monkeypatch.setattr(
        _requests, "check_image", lambda *given: loop_threads.add(threading.current_thread().name) or checked(*given)
    )
    with client() as own:
        own.get("/healthz")
        assert ask(own, jpeg(), methods="zeroshot").status_code == 200
    assert loop_threads
    assert all("AnyIO worker" in name for name in loop_threads), "not on the event loop"


def test_where_an_answer_is_written_changes_nothing(web, monkeypatch):
    images = [jpeg(), jpeg()[:-50], large_jpeg()]
    answers = {}
    for quick in (True, False):
        monkeypatch.setattr(PhotoAnswer, "quick", quick)
        answers[quick] = [untimed(ask(web, image, methods="zeroshot,tpt")) for image in images]
    assert answers[True] == answers[False]
    assert {status for status, _ in answers[True]} == {200, 413, 415}


def large_jpeg() -> bytes:
    """A JPEG whose header declares 65,000 x 65,000 pixels."""
    data = jpeg()
    start = data.index(b"\xff\xc0") + 5
    return data[:start] + b"\xfd\xe8\xfd\xe8" + data[start + 4 :]


def untimed(answer) -> tuple[int, bytes]:
    return answer.status_code, re.sub(rb'"milliseconds":[^,}]*', b"", answer.content)


@pytest.mark.parametrize(
    ("changes", "quick"),
    [({}, True), ({"top": 201}, False), ({"thumbnails": True}, False), ({"classes": 10_001}, False)],
)
def test_only_small_answers_are_written_on_the_event_loop(changes, quick):
    names = tuple(f"class {i}" for i in range(changes.pop("classes", 3)))
    fields = PredictFields(classes=names, **changes)
    prediction = Prediction(label=names[0], confidence=1.0, probabilities=np.ones(len(names)), classes=names)
    answer = PhotoAnswer(
        request=PredictRequest(image=b"", fields=fields), size=(1, 1), backbone=tiny("vit"), predictions=[prediction],
        milliseconds=[1.0], warnings=[], thumbnails=[Thumbnail(view=0, src="")] if fields.thumbnails else [],
    )  # fmt: skip
    assert answer.quick is quick
