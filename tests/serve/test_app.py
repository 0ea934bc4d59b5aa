"""The routes: what they return, and one response for each way a request can fail inside."""

from __future__ import annotations

import base64
import threading

import numpy as np
import pytest
from fastapi.testclient import TestClient
from support.models import tiny
from support.serving import ask, blocked, client, photo, refused, samples, until

import cots
from cots.serve import ServeSettings, create_app
from cots.serve._predict import Predictor


@pytest.fixture(scope="module")
def web():
    return client(augmix=False)


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
    plain = cots.calibrate(zero_shot, zero_shot, method="none")
    for name, part in (("zero_shot", plain), ("before", before), ("after", result)):
        correct = part.prediction == np.array([0, 1, 2, 0])
        assert found["metrics"][name]["accuracy"] == correct.mean()
        assert found["metrics"][name]["ece"] == pytest.approx(float(cots.metrics.ece(part.confidence, correct)))
    assert found["warnings"] == []
    flat = web.post("/v1/calibrate", json={"adapted": [[4, 0]], "zero_shot": [[2, 0]], "rows": "samples"}).json()
    assert flat["metrics"] is None
    assert flat["results"][0]["confidence"] == pytest.approx(
        float(cots.calibrate(np.array([[4.0, 0]]), np.array([[2.0, 0]]), rows="samples").confidence[0])
    )
    refused(web.post("/v1/calibrate", json={"adapted": [[4, 0]], "zero_shot": [[2, 0]]}), 422, "bad_rows", "rows")


@pytest.mark.filterwarnings("ignore:The rows of")
def test_calibrate_warns_of_probabilities(web):
    answer = web.post("/v1/calibrate", json={"adapted": [[0.5, 0.5]], "zero_shot": [[2, 0]], "rows": "views"})
    (message,) = answer.json()["warnings"]
    assert message.startswith("The rows of adapted sum to one")


def test_models_methods_and_health(web):
    (model,) = web.get("/v1/models").json()["models"]
    assert (model["name"], model["weights_hash"]) == ("tiny-vit", tiny("vit").weights_hash)
    assert (model["device"], model["image_size"], model["default"]) == ("cpu", [32, 32], True)
    methods = web.get("/v1/methods").json()
    adapters = {entry["name"] for entry in methods["adapters"]}
    assert {"zeroshot", "tpt", "ctpt", "tps"} <= adapters
    assert not {"tda", "ttl", "tca"} & adapters
    assert all(entry["description"] for entry in methods["adapters"] + methods["calibrators"])
    answer = ask(web, methods=",".join(methods["suggested"]))
    assert [result["method"] for result in answer.json()["results"]] == methods["suggested"]
    assert web.get("/readyz").json() == {"status": "ready", "model": "tiny-vit"}
    assert web.get("/healthz").json() == {"status": "ok", "model": "tiny-vit", "queue": 0, "version": "0.1.0"}
    for adapter in adapters:
        assert ask(web, methods=adapter).status_code == 200, adapter


def test_a_served_photo_has_only_the_servers_limit(monkeypatch):
    monkeypatch.setitem(cots.read_image.__kwdefaults__, "max_pixels", 100)
    assert ask(client(max_pixels=2000), photo(size=(50, 40))).status_code == 200
    refused(ask(client(max_pixels=1999), photo(size=(50, 40))), 413, "too_many_pixels", "image")


def test_the_description_asks_for_a_token_only_if_there_is_one(web):
    api = web.get("/openapi.json").json()
    assert "securitySchemes" not in api["components"]
    assert not any("security" in item or "401" in item["responses"] for item in api["paths"]["/v1/predict"].values())
    api = client(token="secret").get("/openapi.json").json()
    assert api["components"]["securitySchemes"] == {"HTTPBearer": {"type": "http", "scheme": "bearer"}}
    for path, method in (("/v1/predict", "post"), ("/v1/models", "get")):
        assert api["paths"][path][method]["security"] == [{"HTTPBearer": []}]
        assert "401" in api["paths"][path][method]["responses"]
    assert "401" in api["paths"]["/metrics"]["get"]["responses"]


def test_the_page_and_its_files_are_served_and_nothing_else(web):
    for address, kind in (("/", "text/html"), ("/docs", "text/html"), ("/static/style.css", "text/css")):
        answer = web.get(address)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
    for address in (
        *("/static/%2e%2e%2f_app.py", "/static/..%5c_app.py", "/static/", "/static/%2fetc%2fpasswd", "/_app.py"),
        *("/v1/", "/docs/oauth2-redirect", "/redoc"),
    ):
        refused(web.get(address), 404, "not_found")
    refused(web.get("/v1/predict"), 405, "method_not_allowed")
    refused(web.delete("/v1/runs"), 405, "method_not_allowed")


def test_a_full_queue_says_when_to_retry():
    web = client(queue=2)
    answers = []
    with blocked(web) as engine:
        threads = [threading.Thread(target=lambda i=i: answers.append(ask(web, photo(i)))) for i in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: len(engine) == 2, "two requests in the queue")
        answer = ask(web)
        refused(answer, 429, "queue_full")
        assert 1 <= int(answer.headers["retry-after"]) <= 60
    for thread in threads:
        thread.join(60)
    assert [answer.status_code for answer in answers] == [200, 200], "the waiting requests were answered"
    assert ask(web).status_code == 200


def test_a_request_that_never_starts_is_retried_later():
    web = client(timeout_s=0.2, queue=1)
    with blocked(web) as engine:
        for _ in range(2):  # the first one frees its place
            answer = ask(web)
            refused(answer, 503, "busy")
            assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert len(engine) == 1


def test_a_request_that_takes_too_long_times_out(monkeypatch):
    web, release = client(timeout_s=0.5), threading.Event()
    monkeypatch.setattr(Predictor, "__call__", lambda self, items: release.wait(60) and [])
    refused(ask(web), 504, "timeout")
    release.set()


def test_requests_beyond_what_can_be_answered_in_time_are_refused_at_once():
    """All clients of a crowd get an answer or, at once, the time to retry after; none waits for a timeout."""
    web = client(timeout_s=60, queue=200)
    answers = []
    with blocked(web) as engine:
        engine._seconds = 9.0  # per request, as on a slow device
        threads = [threading.Thread(target=lambda i=i: answers.append(ask(web, photo(i)))) for i in range(20)]
        for thread in threads:
            thread.start()
        until(lambda: len(engine) + len(answers) == 20, "all to be queued or refused")
        assert len(engine) == 7
        for answer in list(answers):
            refused(answer, 503, "busy")
            assert int(answer.headers["retry-after"]) == 60
    for thread in threads:
        thread.join(60)
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [503] * 13


def test_a_stopped_server_says_so():
    app = create_app(tiny("vit"), ServeSettings(views=2))
    with TestClient(app) as web:
        assert ask(web).status_code == 200
    refused(ask(TestClient(app)), 503, "stopping")


def test_internal_errors_reveal_nothing(monkeypatch, caplog):
    web = client()
    monkeypatch.setattr(Predictor, "_encode", lambda *args: 1 / 0)
    assert "zero" not in refused(ask(web), 500, "internal")
    assert "division by zero" in caplog.text, "the log has the reason"
    monkeypatch.setattr(Predictor, "_encode", lambda *args: (_ for _ in ()).throw(MemoryError()))
    refused(ask(web), 503, "no_memory")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"queue": 0}, "queue"),
        ({"max_body": 1.5}, "max_body"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"token": "a b"}, "token"),
    ],
)
def test_settings_are_checked(changes, named):
    with pytest.raises(cots.InputError, match=named):
        ServeSettings(**changes)


def several(web: TestClient, photos: list[bytes], **fields):
    files = [("images", (f"{place}.png", data)) for place, data in enumerate(photos)]
    return web.post("/v1/predict/batch", data={"classes": "cat,dog", "methods": "tpt+ecots", **fields}, files=files)


def test_a_batch_answers_each_photo_by_itself(web):
    found = several(web, [photo(0), b"no photo", photo(1), b""]).json()["photos"]
    assert [one["name"] for one in found] == ["0.png", "1.png", "2.png", "3.png"]
    for place, seed in ((0, 0), (2, 1)):
        alone = ask(web, photo(seed), classes="cat,dog", methods="tpt+ecots").json()
        assert found[place]["error"] is None
        assert found[place]["answer"]["image"] == {"name": f"{place}.png", "width": 50, "height": 40}
        a, b = found[place]["answer"]["results"][0], alone["results"][0]
        assert (a["label"], a["confidence"]) == (b["label"], pytest.approx(b["confidence"], abs=1e-5))
    for place in (1, 3):
        assert found[place]["answer"] is None
        assert found[place]["error"]["code"] == "not_an_image"
    encoded = [base64.b64encode(data).decode() for data in (photo(0), b"no photo")]
    body = {"images": encoded, "classes": ["cat", "dog"]}
    assert [one["error"] is None for one in web.post("/v1/predict/batch", json=body).json()["photos"]] == [True, False]


def test_a_batch_that_cannot_be_read_at_all(web):
    answer = several(web, [photo()], classes="cat,cat").json()
    assert answer["photos"][0]["error"]["code"] == "duplicate_class"
    refused(several(web, [photo()], methods="nothing"), 422, "bad_method", "methods")
    refused(several(web, [photo()] * 33), 422, "too_many_images", "images")
    refused(several(web, [], images=""), 415, "not_multipart", None)
    refused(web.post("/v1/predict/batch", json={"classes": ["cat", "dog"]}), 422, "missing_images", "images")
    both = [("image", ("a.png", photo())), ("images", ("b.png", photo()))]
    refused(web.post("/v1/predict/batch", data={"classes": "cat,dog"}, files=both), 422, "unknown_field", "image")
    full = client(queue=1)
    with blocked(full):
        refused(several(full, [photo(0), photo(1), photo(2)]), 429, "queue_full")


def test_a_stopping_server_is_not_ready():
    web = client()
    web.app.state.engine.close()
    refused(web.get("/readyz"), 503, "stopping")
    assert web.get("/healthz").status_code == 200


def test_other_origins_only_where_allowed(web):
    asks = {"origin": "https://example.org", "access-control-request-method": "POST"}
    preflight = {**asks, "access-control-request-headers": "authorization,content-type"}
    assert "access-control-allow-origin" not in web.get("/healthz", headers=asks).headers
    assert web.options("/v1/predict", headers=preflight).status_code == 405
    open_to = client(origins=frozenset({"https://example.org"}), token="secret")
    answer = open_to.options("/v1/predict", headers=preflight)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "https://example.org")
    answer = open_to.get("/v1/models", headers=asks)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, "https://example.org")
    assert open_to.options("/v1/predict", headers={**preflight, "origin": "https://other.org"}).status_code == 400
    assert client(origins=frozenset({"*"})).get("/healthz", headers=asks).headers["access-control-allow-origin"] == "*"
    with pytest.raises(cots.InputError, match="must be a scheme and a host, such as"):
        ServeSettings(origins=frozenset({"example.org/page"}))


def test_metrics_watch_the_predictions():
    web = client()
    assert np.isnan(samples(web)["cots_confidence_mean", ()])
    found = [ask(web, photo(seed), methods="zeroshot,tpt").json() for seed in range(3)]
    mean = np.mean([answer["results"][-1]["confidence"] for answer in found])
    watched = samples(web)
    assert watched["cots_predictions", ()] == 3
    assert watched["cots_confidence_mean", ()] == pytest.approx(mean)
    assert watched["cots_none_of_these_share", ()] == np.mean([answer["none_of_these"] for answer in found])
    assert 0 < watched["cots_view_agreement_mean", ()] <= 1
    for name in ("alarms", "evidence", "reference"):
        assert watched[f"cots_drift_{name}", ()] == 0
