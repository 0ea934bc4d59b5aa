"""Every limit has its own answer, names the field, carries the headers, and leaves the server in order."""

from __future__ import annotations

import threading

import pytest
from support.models import tiny
from support.serving import ask, bomb, client, held_up, photo, until

import cots
from cots.cli._serve import _hosts
from cots.serve import ServeSettings, create_app
from cots.serve._engine import Closed, Engine, Full
from cots.serve._gate import POLICY

LONG = "word " * 60


@pytest.fixture(scope="module")
def web():
    return client()


def refused(answer, status: int, code: str, field: str | None) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    error = answer.json()["error"]
    assert (error["code"], error["field"]) == (code, field)
    assert len(error["message"]) > 20
    return error["message"]


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
        ({"methods": ""}, "no_methods", "methods"),
        ({"methods": "tptt"}, "bad_method", "methods"),
        ({"methods": "cots"}, "bad_method", "methods"),
        ({"methods": "tpt+cots+cots"}, "bad_method", "methods"),
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


def test_messages_help(web):
    assert "Did you mean 'tpt'?" in refused(ask(web, methods="tptt"), 422, "bad_method", "methods")
    assert "'cat'" in refused(ask(web, classes="cat\ncat"), 422, "duplicate_class", "classes")
    assert "5000" in ask(web, classes="\n".join(map(str, range(5001)))).json()["error"]["message"]
    assert "77" in refused(ask(web, classes="cat\n" + "a b c d " * 24), 422, "bad_classes", "classes")
    assert ask(web, classes="\n".join(f"thing {i}" for i in range(5000)), methods="zeroshot").status_code == 200
    assert ask(web, template="{}.", methods="zeroshot").status_code == 200


def test_the_image_itself(web):
    refused(ask(web, files={}), 415, "not_multipart", None)  # without a file the client sends another type
    refused(ask(web, files={"other": ("a", b"x")}), 422, "unknown_field", "other")
    refused(ask(web, b""), 415, "not_an_image", "image")
    refused(ask(web, b"<svg>no</svg>"), 415, "not_an_image", "image")
    refused(ask(web, photo(0, (90, 90), "JPEG")[:900]), 415, "not_an_image", "image")
    refused(ask(web, files={"image": (None, "text")}), 422, "not_a_file", "image")
    both = {"image": ("a.png", photo()), "classes": ("c", b"cat")}
    refused(ask(web, files=both, classes=None), 422, "not_text", "classes")
    answer = web.post("/v1/predict", json={"image": "x"})
    refused(answer, 415, "not_multipart", None)
    answer = web.post("/v1/predict", content=b"nonsense", headers={"content-type": "multipart/form-data; boundary=x"})
    refused(answer, 400, "bad_form", None)
    answer = web.post("/v1/predict", content=b"nonsense", headers={"content-type": "multipart/form-data"})
    refused(answer, 400, "bad_form", None)
    twice = {"classes": ["cat", "dog"]}
    answer = web.post("/v1/predict", data=twice, files={"image": ("a.png", photo())})
    refused(answer, 422, "repeated_field", "classes")


@pytest.mark.parametrize("size", [(8000, 8000), (60_000, 60_000)])
def test_bombs_are_refused_before_decoding(web, size, monkeypatch):
    from PIL import ImageFile

    def decode(self):
        raise AssertionError("decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", decode)
    message = refused(ask(web, bomb(*size)), 413, "too_many_pixels", "image")
    assert "50000000" in message


def test_bodies_that_are_too_large_declared_or_not():
    web = client(max_body=20_000)
    refused(ask(web, b"x" * 21_000), 413, "body_too_large", None)
    refused(ask(web, b"x" * 200_000), 413, "body_too_large", None)
    read = []

    def endless():
        while True:
            read.append(1)
            yield b"y" * 4096

    for path, kind in (("/v1/predict", "multipart/form-data; boundary=x"), ("/v1/calibrate", "application/json")):
        read.clear()

        def chunks(path=path):
            if path == "/v1/predict":
                yield b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
            yield from endless()

        # The test client joins a stream; the application must count whatever it is told, or not told.
        app_answer = _stream(web.app, path, kind, chunks())
        assert app_answer["status"] == 413
        assert len(read) < 40
    assert ask(web).status_code == 200, "what fits is still answered"


def _stream(app, path: str, kind: str, chunks) -> dict:
    """A request without a content-length, straight into the application."""
    import asyncio

    got: dict = {"body": b""}

    async def receive():
        return {"type": "http.request", "body": next(chunks), "more_body": True}

    async def send(message):
        if message["type"] == "http.response.start":
            got["status"] = message["status"]
        else:
            got["body"] += message["body"]

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": path,
        "raw_path": path.encode(), "root_path": "", "scheme": "http", "query_string": b"", "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80), "headers": [(b"content-type", kind.encode())],
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return got


def test_a_body_that_never_ends_times_out():
    import asyncio

    web = client(timeout_s=0.05)
    got = {}

    async def receive():
        await asyncio.Event().wait()

    async def send(message):
        got.setdefault("status", message.get("status"))

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": "/v1/calibrate",
        "raw_path": b"/v1/calibrate", "root_path": "", "scheme": "http", "query_string": b"", "client": None,
        "server": None, "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip
    asyncio.run(web.app(scope, receive, send))
    assert got["status"] == 408


def test_a_full_queue_says_when_to_come_again():
    web = client(queue=2)
    answers = []
    with held_up(web) as engine:
        threads = [threading.Thread(target=lambda i=i: answers.append(ask(web, photo(i)))) for i in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: len(engine) == 2, "two requests in the queue")
        answer = ask(web)
        refused(answer, 429, "queue_full", None)
        assert 1 <= int(answer.headers["retry-after"]) <= 60
    for thread in threads:
        thread.join(60)
    assert [answer.status_code for answer in answers] == [200, 200], "who waited was answered"
    assert ask(web).status_code == 200


def test_a_request_that_takes_too_long_is_answered_and_forgotten():
    web = client(timeout_s=0.3, queue=1)
    with held_up(web) as engine:
        refused(ask(web), 504, "timeout", None)
        refused(ask(web), 504, "timeout", None)  # the first one's place is free again
        assert len(engine) == 1
    settled = client(queue=1)
    assert ask(settled).status_code == 200


def test_a_stopped_server_says_so():
    app = create_app(tiny("vit"), ServeSettings(views=2))
    from fastapi.testclient import TestClient

    with TestClient(app) as web:
        assert ask(web).status_code == 200
    refused(ask(TestClient(app)), 503, "stopping", None)


def test_failures_inside_say_nothing_of_the_inside(monkeypatch, caplog):
    import cots.serve._predict as module

    def fail(*args, **kwargs):
        raise RuntimeError("/home/secret/path")

    web = client()
    monkeypatch.setattr(module, "adapt", fail)
    message = refused(ask(web), 500, "internal", None)
    assert "secret" not in message
    assert "/home/secret/path" in caplog.text, "the log has it"
    monkeypatch.setattr(module, "adapt", lambda *a, **k: (_ for _ in ()).throw(MemoryError()))
    refused(ask(web), 503, "no_memory", None)


def test_the_token():
    web = client(token="s3cret-word")
    for path in ("/v1/models", "/v1/runs", "/metrics", "/v1/nothing"):
        answer = web.get(path)
        refused(answer, 401, "unauthorized", None)
        assert answer.headers["www-authenticate"] == "Bearer"
        for wrong in ("Bearer s3cret-wor", "Bearer s3cret-wordx", "s3cret-word", "Basic s3cret-word", "Bearer \xe9"):
            assert web.get(path, headers=[(b"authorization", wrong.encode("latin-1"))]).status_code == 401
    right = {"Authorization": "bearer s3cret-word"}
    assert web.get("/v1/models", headers=right).status_code == 200
    assert web.get("/metrics", headers=right).status_code == 200
    refused(web.get("/v1/nothing", headers=right), 404, "not_found", None)
    refused(ask(web), 401, "unauthorized", None)
    for path in ("/", "/docs", "/healthz", "/openapi.json", "/static/style.css"):
        assert web.get(path).status_code == 200, path
    assert "s3cret" not in repr(ServeSettings(token="s3cret-word"))


def test_other_sites_names_are_refused():
    web = client(hosts=frozenset({"localhost", "127.0.0.1", "::1"}))
    for good in ("localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000", "[::1]", "localhost."):
        assert web.get("/v1/models", headers={"host": good}).status_code == 200, good
    for bad in ("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", ""):
        for path in ("/v1/models", "/", "/metrics", "/no/such/place"):
            told = refused(web.get(path, headers={"host": bad}), 403, "unknown_host", None)
            assert "--allow-host" in told
    assert client().get("/v1/models", headers={"host": "evil.example"}).status_code == 200, "an app without a list"


@pytest.mark.parametrize(
    ("host", "further", "token", "answered"),
    [
        ("127.0.0.1", [], None, {"localhost", "127.0.0.1", "::1"}),
        ("::1", ["Photos.Example:443"], None, {"localhost", "127.0.0.1", "::1", "photos.example"}),
        ("127.0.0.1", [], "word", None),
        ("0.0.0.0", [], None, None),
        ("0.0.0.0", ["photos.example"], "word", {"localhost", "127.0.0.1", "::1", "0.0.0.0", "photos.example"}),
    ],
)
def test_which_names_the_command_answers_to(host, further, token, answered):
    assert _hosts(host, further, token) == answered


def test_head_is_get_without_the_body(web):
    for path in ("/", "/docs", "/static/style.css", "/healthz", "/v1/methods", "/openapi.json"):
        get, head = web.get(path), web.head(path)
        assert head.status_code == 200, path
        assert head.content == b""
        for name in ("content-type", "content-length", "content-security-policy"):
            assert head.headers[name] == get.headers[name]
    assert web.head("/v1/predict").status_code == 405
    assert web.head("/no/such/place").status_code == 404
    assert client(token="word").head("/v1/models").status_code == 401
    assert 'method="HEAD",route="/healthz",code="200"' in web.get("/metrics").text


def test_other_methods_and_places(web):
    refused(web.get("/v1/predict"), 405, "method_not_allowed", None)
    refused(web.delete("/v1/runs"), 405, "method_not_allowed", None)
    refused(web.get("/v1/"), 404, "not_found", None)
    for path in ("/docs/oauth2-redirect", "/redoc"):
        refused(web.get(path), 404, "not_found", None)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"adapted": [[1, 2]]}, "zero_shot"),
        ({"adapted": [[1, 2]], "zero_shot": [[1, 2, 3]]}, "zero_shot"),
        ({"adapted": [[1, 2], [1]], "zero_shot": [[1, 2], [1, 2]]}, "adapted"),
        ({"adapted": [], "zero_shot": []}, "adapted"),
        ({"adapted": [[]], "zero_shot": [[]]}, "adapted"),
        ({"adapted": [["a", "b"]], "zero_shot": [[1, 2]]}, "adapted"),
        ({"adapted": [[1, 1e999]], "zero_shot": [[1, 2]]}, "adapted"),
        ({"adapted": [[1, 2]], "zero_shot": [[1, 2]], "labels": [2]}, "labels"),
        ({"adapted": [[1, 2]], "zero_shot": [[1, 2]], "labels": []}, "labels"),
        ({"adapted": [[1, 2]], "zero_shot": [[1, 2]], "labels": [2**70]}, "labels"),
        ({"adapted": [[1, 2]], "zero_shot": [[1, 2]], "method": "cotss"}, "method"),
        ({"adapted": [[1, 2]], "zero_shot": [[1, 2]], "method": "ecots"}, "alpha"),
        ({"adapted": [[1, 2]], "zero_shot": [[1, 2]], "method": "ecots", "alpha": 3}, "alpha"),
        ({"adapted": [[1, 2]], "zero_shot": [[1, 2]], "text_features": [[1, 0]]}, "text_features"),
        ({"adapted": [[1, 2]], "zero_shot": [[1, 2]], "text_features": [[0, 0], [1, 0]]}, "text_features"),
        ({"adapted": [[1, 2]], "zero_shot": [[1, 2]], "alpha": 0.5, "text_features": [[1, 0], [0, 1]]}, "alpha"),
        ({"adapted": [[1, 2]], "zero_shot": [[1, 2]], "methd": "cots"}, "methd"),
    ],
)
def test_calibrate_names_the_field(web, body, field):
    import json

    answer = web.post("/v1/calibrate", content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["field"] == field


@pytest.mark.parametrize("body", [b"", b"[", b"[" * 100_000, b"null", b"\xff", b"1" * 5000])
def test_calibrate_takes_only_json_objects(web, body):
    answer = web.post("/v1/calibrate", content=body, headers={"content-type": "application/json"})
    refused(answer, 422, "bad_json", None)
    refused(web.post("/v1/calibrate", content=body), 415, "not_json", None)


def test_the_engine_alone():
    class Item:
        def __init__(self, key, value):
            self.key, self.value = key, value

    entered, release, seen = threading.Event(), threading.Event(), []

    def handler(items):
        values = [item.value for item in items]
        if values == ["hold"]:
            entered.set()
            release.wait(60)
            return values
        seen.append(values)
        if "poison" in values:
            raise ZeroDivisionError
        return [KeyError(value) if value == "fail" else value for value in values]

    engine = Engine([handler], capacity=7, batch_size=3)
    engine.submit(Item("first", 0)).result(60)
    engine.submit(Item(None, "hold"))
    assert entered.wait(60)
    given = [("a", 1), ("b", 2), ("a", "fail"), ("a", "poison"), ("a", 4), (None, 5), (None, 6)]
    futures = [engine.submit(Item(*pair)) for pair in given]
    with pytest.raises(Full):
        engine.submit(Item("a", 7))
    assert futures[6].cancel()
    last = engine.submit(Item("a", 8))  # whoever gave up holds no place
    stopper = threading.Thread(target=engine.close)
    stopper.start()
    until(lambda: engine._closed, "the engine to close")
    with pytest.raises(Closed):
        engine.submit(Item("a", 9))
    release.set()
    stopper.join(60)
    assert not stopper.is_alive()
    assert [futures[i].result(0) for i in (0, 1, 4, 5)] == [1, 2, 4, 5]
    assert last.result(0) == 8
    with pytest.raises(KeyError):
        futures[2].result(0)
    with pytest.raises(ZeroDivisionError):
        futures[3].result(0)
    assert seen == [[0], [1, "fail", "poison"], [1], ["fail"], ["poison"], [2], [4, 8], [5]]


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


def test_words_are_not_remembered_for_ever(monkeypatch):
    import open_clip

    import cots.serve._tasks as module

    monkeypatch.setattr(module, "WORDS", 50)
    base = open_clip.SimpleTokenizer()
    quiet = module.QuietTokenizer(base)
    words = ["q" + chr(97 + i // 26) + chr(97 + i % 26) + "x" for i in range(120)]
    plain = [base([f"a {word} photo"]) for word in words]
    assert len(base.cache) > 120
    for word, ids in zip(words, plain, strict=True):
        assert (quiet([f"a {word} photo"]) == ids).all(), "what it says never changes"
    assert len(base.cache) < 120


def test_formats_for_strangers_only(web):
    import io

    from PIL import Image

    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"):
        assert ask(web, photo(0, kind=kind), methods="zeroshot").status_code == 200, kind
    for kind in ("EPS", "PCX", "TGA"):
        file = io.BytesIO()
        Image.new("RGB", (20, 20)).save(file, kind)
        refused(ask(web, file.getvalue()), 415, "not_an_image", "image")


def test_a_port_in_use_is_named():
    import socket

    from cots.serve import run_server

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(cots.CotsError, match=f"port {port} cannot be listened on"):
            run_server(create_app(tiny("vit")), "127.0.0.1", port)


def test_slow_devices_take_smaller_batches(monkeypatch):
    """The clock is the test's own: an item takes 0.4 s, so that two fit into a second."""
    import cots.serve._engine as module

    class Item:
        key = "a"

    class Hold:
        key = None

    clock, sizes = [0.0], []
    entered, release = threading.Event(), threading.Event()

    def handler(items):
        if isinstance(items[0], Hold):
            entered.set()
            release.wait(60)
        else:
            clock[0] += 0.4 * len(items)
            sizes.append(len(items))
        return items

    class Time:
        @staticmethod
        def perf_counter():
            return clock[0]

    monkeypatch.setattr(module, "time", Time)
    engine = Engine([handler], capacity=20, batch_size=8, batch_s=1.0)
    engine.submit(Item()).result(60)
    engine.submit(Hold())
    assert entered.wait(60)
    futures = [engine.submit(Item()) for _ in range(5)]
    release.set()
    for future in futures:
        future.result(60)
    engine.close()
    assert sizes == [1, 2, 2, 1]
