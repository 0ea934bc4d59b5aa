"""The monitor of a server: ids, labels, what is refused, what survives a restart, and arbitrary bodies."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from support.models import tiny
from support.serving import ask, client, photo, refused, samples

import cots
from cots import conformal
from cots.conformal import rate_interval
from cots.serve import ServeSettings

CLASSES = ("cat", "car", "tree")
SIGNALS = {name: np.random.default_rng(0).random(300).tolist() for name in ("confidence", "agreement", "in_list")}


def policy(threshold: float = 0.0, **changes) -> conformal.Policy:
    error = conformal.ErrorControl(risk=0.05, certainty=0.95, threshold=threshold, n=210, accepted=150, errors=1)
    return conformal.Policy(**{
        "model": "tiny-vit", "weights_hash": tiny("vit").weights_hash, "classes": CLASSES, "method": "tpt",
        "template": "a photo of a {}.", "views": 8, "n": 210, "accuracy": 0.9, "mean_confidence": 0.91, "error": error,
        "signals": SIGNALS, **changes,
    })  # fmt: skip


def serve(file, **changes):
    return client(**{"policy": policy(), "monitor": file, "ask": 1.0, **changes})


def predict(web, seed: int = 0, methods: str = "zeroshot,tpt", **fields) -> list[dict]:
    return ask(web, photo(seed), classes="\n".join(CLASSES), methods=methods, **fields).json()["results"]


def label(web, *labels: dict):
    return web.post("/v1/labels", json={"labels": labels})


@pytest.fixture
def web(tmp_path):
    with serve(tmp_path / "monitor.db") as opened:
        yield opened


def test_labels_of_predictions_become_an_error_rate(web):
    results = [predict(web, seed) for seed in range(4)]
    assert all(one[0]["id"] is None and not one[0]["ask"] for one in results), "zeroshot is not the policy's method"
    ids = [one[1]["id"] for one in results]
    assert all(one[1]["ask"] for one in results)
    found = web.get("/v1/monitor").json()["errors"]
    assert found["waiting"] == ids
    assert found["text"] == "acted on 4, checked 0, error 0.0% to 100.0%, promise 5%: still open"
    said = results[1][1]["label"]
    other = next(name for name in CLASSES if name != said)
    answer = label(web, {"id": ids[0], "right": True}, {"id": ids[1], "label": said}, {"id": ids[2], "label": other})
    assert answer.status_code == 200, answer.text
    found = answer.json()["errors"]
    assert (found["acted"], found["asked"], found["checked"], found["errors"]) == (4, 4, 3, 1)
    assert (found["low"], found["high"]) == rate_interval(1, 3)
    assert (found["promise"], found["verdict"], found["waiting"], found["full"]) == (0.05, "open", [ids[3]], False)
    again = label(web, {"id": ids[0], "right": True}, {"id": ids[0], "right": True})
    assert again.json()["errors"]["checked"] == 3, "the same label counts once"
    metrics = samples(web)
    assert (metrics["cots_error_acted", ()], metrics["cots_error_checked", ()]) == (4, 3)
    assert metrics["cots_error_high", ()] == found["high"]


def test_what_is_not_acted_on_is_not_recorded(tmp_path):
    with serve(tmp_path / "a.db", policy=policy(threshold=0.999)) as web:
        result = predict(web)[1]
        assert (result["abstained"], result["id"], result["ask"]) == (True, None, False)
        assert web.get("/v1/monitor").json()["errors"]["acted"] == 0
    with serve(tmp_path / "b.db") as web:
        assert predict(web, methods="zeroshot")[0]["id"] is None
        assert ask(web, classes="cat\ndog", methods="tpt").json()["results"][0]["id"] is None
        assert predict(web, abstain="1")[1]["id"] is None
        assert web.get("/v1/monitor").json()["errors"]["acted"] == 0
        assert web.get("/v1/monitor").json()["changes"]["predictions"] == 1


def test_labels_that_would_void_the_interval_are_refused(web, tmp_path):
    one = predict(web)[1]["id"]
    refused(label(web, {"id": "4f", "right": True}), 404, "unknown_prediction", "labels")
    refused(label(web, {"id": one}), 422, "bad_labels", "labels")
    refused(label(web, {"id": one, "right": True, "label": "cat"}), 422, "bad_labels", "labels")
    said = refused(label(web, {"id": one, "label": "cta"}), 422, "unknown_class", "labels")
    assert "Did you mean 'cat'?" in said
    refused(label(web, {"id": one, "right": True}, {"id": one, "right": False}), 409, "contradiction", "labels")
    assert web.get("/v1/monitor").json()["errors"]["checked"] == 0, "all labels of a request, or none"
    assert label(web, {"id": one, "right": True}).status_code == 200
    refused(label(web, {"id": one, "right": False}), 409, "contradiction", "labels")
    with serve(tmp_path / "other.db", ask=1e-12) as rarely:
        unasked = predict(rarely)[1]
        assert not unasked["ask"]
        said = refused(label(rarely, {"id": unasked["id"], "right": True}), 409, "not_asked", "labels")
        assert "Only the predictions that were drawn at random" in said


def test_bodies_are_checked_and_bounded(web):
    one = predict(web)[1]["id"]
    for body in ({}, {"labels": []}, {"labels": [{}]}, {"labels": [{"id": one, "right": "perhaps"}]}, {"labels": None}):
        refused(web.post("/v1/labels", json=body), 422, "bad_labels", "labels")
    refused(web.post("/v1/labels", json={"labels": [], "more": 1}), 422, "unknown_field", "more")
    refused(web.post("/v1/labels", content=b"[", headers={"content-type": "application/json"}), 422, "bad_json")
    refused(web.post("/v1/labels", data={"labels": "1"}), 415, "not_json")
    said = refused(label(web, *({"id": one, "right": True},) * 1001), 422, "bad_labels", "labels")
    assert "at most 1000 items" in said
    refused(label(web, {"id": "x" * 2**20, "right": True}), 422, "too_long", "labels")
    without = client()
    assert "start it with --monitor FILE" in refused(label(without, {"id": one, "right": True}), 404, "no_monitor")
    assert without.get("/v1/monitor").json()["errors"] is None


def test_everything_survives_a_restart(tmp_path):
    file = tmp_path / "monitor.db"
    with serve(file) as web:
        ids = [predict(web, seed)[1]["id"] for seed in range(3)]
        label(web, {"id": ids[0], "right": False})
        before = web.get("/v1/monitor").json()
    with serve(file) as web:
        assert web.get("/v1/monitor").json() == before
        assert label(web, {"id": ids[1], "right": True}).json()["errors"]["checked"] == 2
        assert predict(web)[1]["ask"]
        assert web.get("/v1/monitor").json()["changes"]["predictions"] == 4
        with pytest.raises(cots.InputError, match="in use by another server"):
            serve(file)
    with pytest.raises(cots.InputError, match="has the predictions of another policy"):
        serve(file, policy=policy(threshold=0.1))
    with pytest.raises(cots.InputError, match="records what is acted on under a policy"):
        ServeSettings(monitor=file)
    with pytest.raises(cots.InputError, match="ask must be a probability"):
        ServeSettings(ask=0)


def test_a_change_is_told_with_the_predictions_to_look_at(tmp_path):
    signals = {name: (np.array(values) / 1000).tolist() for name, values in SIGNALS.items()}
    with serve(tmp_path / "monitor.db", policy=policy(signals=signals)) as web:
        ids = [predict(web, seed % 3, methods="tpt")[0]["id"] for seed in range(24)]
        found = web.get("/v1/monitor").json()["changes"]
        assert found["alarms"] == 1
        (change,) = found["last"]
        assert change["higher"]
        assert set(change["photos"]) <= set(ids)
        assert change["since"] <= 3 < change["at"] < 24
        assert samples(web)["cots_drift_alarms", ()] == 1


def test_a_prediction_is_answered_if_it_cannot_be_recorded(web, monkeypatch):
    monitor = web.app.state.monitor
    monitor.ledger._db.execute("PRAGMA query_only=ON")
    (result,) = predict(web, methods="tpt")
    assert (result["id"], result["ask"]) == (None, False)
    monitor.ledger._db.execute("PRAGMA query_only=OFF")
    one = predict(web)[1]["id"]
    monitor.ledger._db.execute("PRAGMA query_only=ON")
    refused(label(web, {"id": one, "right": True}), 503, "not_stored")


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("fuzzed") / "monitor.db") as web:
        yield web, predict(web)[1]["id"], web.get("/openapi.json").json()


@given(data=st.data())
@settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
)  # fmt: skip
def test_no_body_gets_an_undocumented_answer(fuzzed, data):
    web, one, described = fuzzed
    ids = st.sampled_from([one, "4f", ""]) | st.text(max_size=70)
    right = st.none() | st.booleans() | st.integers(0, 2)
    names = st.none() | st.sampled_from([*CLASSES, "\0", "\ud800"]) | st.text(max_size=5)
    rows = st.fixed_dictionaries({}, optional={"id": ids, "right": right, "label": names, "more": st.none()})
    body = data.draw(st.fixed_dictionaries({}, optional={"labels": st.lists(rows, max_size=3) | st.none()}))
    answer = web.post("/v1/labels", content=json.dumps(body), headers={"content-type": "application/json"})
    documented = described["paths"]["/v1/labels"]["post"]["responses"]
    assert str(answer.status_code) in documented, answer.text
    schema = documented[str(answer.status_code)]["content"]["application/json"]["schema"]
    Draft202012Validator({**schema, "components": described["components"]}).validate(answer.json())
