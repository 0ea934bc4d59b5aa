"""The HTTP API: what it answers equals the library's results, alone and in a batch, and its routes keep their word."""

from __future__ import annotations

import base64
import io
import re
import threading

import numpy as np
import pytest
from PIL import Image
from support.models import CLASSES, tiny
from support.serving import VIEWS, ask, client, held_up, photo, until

import cots
from cots.serve import ServeSettings, create_app
from cots.serve._gate import POLICY
from cots.serve._predict import PredictItem, Predictor
from cots.serve._tasks import task_bytes

METHODS = ("zeroshot", "tpt", "tpt+cots", "tpt+ecots", "soc+ecots", "tps+sals")


def matches(result: dict, prediction: cots.Prediction) -> None:
    assert result["label"] == prediction.label
    assert result["confidence"] == pytest.approx(prediction.confidence, abs=1e-4)
    assert result["tau"] == pytest.approx(prediction.tau, rel=1e-3)
    assert result["alpha"] == prediction.alpha
    assert result["views"] == list(prediction.views)
    assert result["method"] == prediction.method
    top = prediction.top(len(result["top"]))
    assert [entry["class"] for entry in result["top"]] == [name for name, _ in top]
    np.testing.assert_allclose([entry["probability"] for entry in result["top"]], [p for _, p in top], atol=1e-4)


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
    """Eight requests of one class list wait together; the batch-size counter proves that they ran together."""
    ask(web)  # before the first answer nothing is known of the device's speed, and requests run alone
    wanted = [METHODS[i % 4 : i % 4 + 2] for i in range(8)]
    answers: list = [None] * 8

    def send(i: int) -> None:
        answers[i] = ask(web, photo(i), methods=",".join(wanted[i]), seed=i)

    with held_up(web) as engine:
        threads = [threading.Thread(target=send, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        until(lambda: len(engine) == 8, "eight requests in the queue")
    for thread in threads:
        thread.join(60)
    for i, answer in enumerate(answers):
        assert answer.status_code == 200
        for result, method in zip(answer.json()["results"], wanted[i], strict=True):
            matches(result, expected(method, photo(i), seed=i))
    batches = dict(re.findall(r'cots_batch_size_bucket\{le="(\S+)"\} (\d+)', web.get("/metrics").text))
    assert int(batches["8"]) == int(batches["4"]) + 1


def test_one_bad_image_in_a_batch_fails_alone():
    handler = Predictor(tiny("vit"), ServeSettings(views=VIEWS), 2**30)
    cut = photo(1, (64, 64), "JPEG")[:700]
    methods = (cots.parse_method("tpt+cots"),)

    def item(image: bytes) -> PredictItem:
        return PredictItem(image=image, name="x", classes=tuple(CLASSES), template="a photo of a {}.", methods=methods)

    good, bad, other = handler([item(photo(0)), item(cut), item(photo(2))])
    assert (bad.status, bad.field) == (415, "image")
    matches(good["results"][0], expected("tpt+cots", photo(0)))
    matches(other["results"][0], expected("tpt+cots", photo(2)))


def test_two_devices_share_the_queue():
    app = create_app([tiny("vit"), tiny("vit")], ServeSettings(views=VIEWS))
    engine = app.state.engine
    meet = threading.Barrier(2)
    from cots.serve._predict import CallItem

    futures = [engine.submit(CallItem(function=lambda: meet.wait(60))) for _ in range(2)]
    assert sorted(future.result(60) for future in futures) == [0, 1], "both waited for each other, so both ran"
    engine.close()


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


def test_untrained_words_are_told_in_the_answer():
    with client(views=2) as web:
        assert ask(web, classes="cat").json()["warnings"] == [
            "With one class its probability is always 1; give the classes it could be mistaken for."
        ]
    with pytest.warns(cots.UntrainedWordWarning):
        cots.Task(cots.load("mini", device="cpu"), ["cat", "zyzzyva"])
    from fastapi.testclient import TestClient

    mini = TestClient(create_app(cots.load("mini", device="cpu"), ServeSettings(views=2)))
    warned = ask(mini, classes="cat\nzyzzyva", methods="zeroshot").json()["warnings"]
    assert len(warned) == 1
    assert "'zyzzyva'" in warned[0]


def test_calibrate_is_cots_calibrate(web):
    rng = np.random.default_rng(0)
    zero_shot = rng.normal(size=(4, 6, 3))
    adapted = 3 * zero_shot + rng.normal(size=zero_shot.shape)
    text = rng.normal(size=(3, 5))
    body = {"adapted": adapted.tolist(), "zero_shot": zero_shot.tolist(), "method": "ecots", "labels": [0, 1, 2, 0]}
    answer = web.post("/v1/calibrate", json={**body, "text_features": text.tolist()})
    assert answer.status_code == 200, answer.text
    result = cots.calibrate(adapted, zero_shot, method="ecots", alpha=cots.mean_similarity(text))
    found = answer.json()
    np.testing.assert_allclose(found["probabilities"], result.probabilities, atol=1e-9)
    np.testing.assert_allclose([row["tau"] for row in found["results"]], result.tau, rtol=1e-6)
    before = cots.calibrate(adapted, zero_shot, method="none")
    for name, part in (("before", before), ("after", result)):
        correct = part.prediction == np.array([0, 1, 2, 0])
        assert found["metrics"][name]["accuracy"] == correct.mean()
        assert found["metrics"][name]["ece"] == pytest.approx(float(cots.metrics.ece(part.confidence, correct)))
    flat = web.post("/v1/calibrate", json={"adapted": [[4, 0]], "zero_shot": [[2, 0]]}).json()
    assert flat["metrics"] is None
    assert flat["results"][0]["confidence"] == pytest.approx(
        float(cots.calibrate(np.array([[4.0, 0]]), np.array([[2.0, 0]])).confidence)
    )


def test_what_there_is(web):
    models = web.get("/v1/models").json()["models"]
    assert models == [
        {
            "name": "tiny-vit",
            "weights_hash": tiny("vit").weights_hash,
            "device": "cpu",
            "image_size": [32, 32],
            "default": True,
        }
    ]
    methods = web.get("/v1/methods").json()
    adapters = {entry["name"] for entry in methods["adapters"]}
    assert {"zeroshot", "tpt", "ctpt", "tps"} <= adapters
    assert not {"tda", "ttl"} & adapters
    assert all(entry["description"] for entry in methods["adapters"] + methods["calibrators"])
    answer = ask(web, methods=",".join(methods["suggested"]))
    assert [result["method"] for result in answer.json()["results"]] == methods["suggested"]
    assert web.get("/healthz").json() == {"status": "ok", "model": "tiny-vit", "queue": 0, "version": "0.1.0"}
    for adapter in adapters:
        assert ask(web, methods=adapter).status_code == 200, adapter


def test_the_page_and_its_files_are_served_and_nothing_else(web):
    for address, kind in (("/", "text/html"), ("/docs", "text/html"), ("/static/style.css", "text/css")):
        answer = web.get(address)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
        assert answer.headers["content-security-policy"] == POLICY
    for address in (
        "/static/%2e%2e%2f_app.py",
        "/static/..%5c_app.py",
        "/static/",
        "/static/%2fetc%2fpasswd",
        "/_app.py",
    ):
        answer = web.get(address)
        assert answer.status_code == 404, address
        assert answer.json()["error"]["code"] == "not_found"


def test_metrics_are_prometheus_text(web):
    ask(web)
    web.get("/no/such/place")
    web.request("BREW", "/v1/predict")
    answer = web.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    typed, rows = {}, {}
    for line in answer.text.splitlines():
        if line.startswith("#"):
            word, name, rest = re.fullmatch(r"# (HELP|TYPE) ([a-z_:]+) (.+)", line).groups()
            typed.setdefault(name, {})[word] = rest
        else:
            name, labels, value = re.fullmatch(r"([a-z_:]+)(?:\{(.*)\})? (\S+)", line).groups()
            pairs = re.findall(r'([a-z]+)="((?:[^"\\\n]|\\.)*)"', labels or "")
            assert ",".join(f'{key}="{text}"' for key, text in pairs) == (labels or "")
            key = name, tuple(pairs)
            assert key not in rows, "a series appears once"
            rows[key] = float(value)
            family = re.sub(r"_(bucket|sum|count)$", "", name)
            assert name in typed or typed[family]["TYPE"] == "histogram"
    assert {entry["TYPE"] for entry in typed.values()} == {"counter", "gauge", "histogram"}
    for (name, pairs), value in rows.items():
        if name.endswith("_bucket") and dict(pairs)["le"] == "+Inf":
            base = name.removesuffix("_bucket")
            others = [v for (n, p), v in rows.items() if n == name and p[:-1] == pairs[:-1]]
            assert others == sorted(others)
            assert value == rows[f"{base}_count", pairs[:-1]]
    assert rows["cots_requests_total", (("method", "GET"), ("route", "other"), ("code", "404"))] >= 1
    assert rows["cots_requests_total", (("method", "other"), ("route", "/v1/predict"), ("code", "405"))] >= 1
    assert rows["cots_task_cache_bytes", ()] > 0
    assert rows["cots_requests_in_flight", ()] == 1, "the request for the metrics itself"


def test_the_task_cache_stays_within_its_bytes():
    lists = [f"cat\nthing {i}" for i in range(12)]
    whole = client()
    for names in lists:
        assert ask(whole, classes=names, methods="tpt").status_code == 200

    def cache(web) -> tuple[int, int]:
        text = web.get("/metrics").text
        return tuple(int(re.search(rf"cots_task_cache_{what} (\d+)", text)[1]) for what in ("bytes", "tasks"))

    size, count = cache(whole)
    assert count == 12
    small = client(task_cache_bytes=size // 3)
    for names in lists:
        assert ask(small, classes=names, methods="tpt").status_code == 200
    size_small, count_small = cache(small)
    assert 0 < size_small <= size // 3
    assert 2 <= count_small <= 4
    engine = small.app.state.engine
    tasks = engine._handlers[0].tasks
    assert list(tasks._tasks)[-1][0] == ("cat", "thing 11"), "the last one used is kept"
    # A list that does not fit by itself is answered all the same, and neither kept nor a reason to drop others.
    before = list(tasks._tasks)
    assert ask(small, classes="\n".join(f"thing {i}" for i in range(60)), methods="tpt").status_code == 200
    assert list(tasks._tasks) == before


@pytest.mark.parametrize("count", [1, 60])
def test_what_tuning_keeps_counts(count):
    task = cots.Task(tiny("vit"), [f"some thing {i}" for i in range(count)])
    weights = {t.untyped_storage().data_ptr() for t in tiny("vit").model.state_dict().values()}
    before = task_bytes(task, weights)
    cots.adapt("tpt", np.eye(12, dtype=np.float32)[:8], task)
    reckoned = task.tower.tokens_per_sample * task.tower.bytes_a_token
    assert 0.8 < (task_bytes(task, weights) - before) / reckoned < 2
