"""A client that knows only /openapi.json: whatever it sends, each answer has a documented status and shape."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from support.serving import bomb, client, photo

from cots.serve import ServeSettings
from cots.serve import _schemas as schemas

# Without the phase that explains failures, which traces every line.
PHASES = (Phase.generate, Phase.shrink)
EXAMPLES = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=PHASES
)


@cache
def web():
    return client(views=2, augmix=False, max_body=50_000)


@cache
def described() -> dict:
    return web().get("/openapi.json").json()


def from_schema(schema: dict) -> st.SearchStrategy:
    """Values that the schema of a part of a body allows; small ones."""
    if "anyOf" in schema:
        return st.one_of([from_schema(option) for option in schema["anyOf"]])
    kind = schema.get("type")
    if kind == "array":
        return st.lists(from_schema(schema["items"]), max_size=3)
    if kind == "integer":
        return st.integers(schema.get("minimum", -5), min(schema.get("maximum", 2**65), 2**65)) | st.integers(0, 9)
    simple = {"number": st.floats(), "boolean": st.booleans(), "null": st.none()}
    if kind in simple:
        return simple[kind]
    assert kind == "string", schema
    return st.text(max_size=schema.get("maxLength", 30))


# What a schema cannot say: values that get past the first checks, and some that should not.
NAMES = ["cat", "dog", "a_b", "é", "\u200b", "🐈", "\0", "x" * 300]
METHODS = ["zeroshot", "tpt", "tpt+cots", "tpt+ecots", "soc+zero", "tps+ts", "tda", "x", "zeroshot+cor"]
LIKELY = {
    "image": st.sampled_from([photo(), photo(1, (5, 5), "JPEG"), photo()[:60], bomb(9000, 9000), b"", b"GIF89a"]),
    "classes": st.lists(st.sampled_from(NAMES), max_size=4).map("\n".join),
    "methods": st.lists(st.sampled_from(METHODS), max_size=3).map(",".join),
    "template": st.sampled_from(["a photo of a {}.", "{}", "the {} {}", "photo{}", "a \0 {}"]),
    "method": st.sampled_from(["cots", "ecots", "none", "sals", "zero", "nothing"]),
}


def matrices() -> st.SearchStrategy:
    return st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4)).flatmap(
        lambda shape: st.lists(
            st.lists(
                st.lists(st.floats(-1e3, 1e3), min_size=shape[2], max_size=shape[2]),
                min_size=shape[1],
                max_size=shape[1],
            ),
            min_size=shape[0],
            max_size=shape[0],
        )
    )


@cache
def body_of(path: str) -> tuple[str, st.SearchStrategy]:
    kind, content = next(iter(described()["paths"][path]["post"]["requestBody"]["content"].items()))
    schema = content["schema"]
    parts = {
        name: LIKELY[name] | LIKELY[name] | from_schema(part) if name in LIKELY else from_schema(part)
        for name, part in schema["properties"].items()
    }
    if path == "/v1/calibrate":
        pair = matrices().flatmap(lambda z: st.fixed_dictionaries({"adapted": st.just(z), "zero_shot": st.just(z)}))
        rest = st.fixed_dictionaries({}, optional={n: p for n, p in parts.items() if n not in {"adapted", "zero_shot"}})
        likely = st.tuples(pair, rest).map(lambda both: {**both[0], **both[1]})
        return kind, likely | st.fixed_dictionaries({}, optional=parts)
    needed = {"image": parts["image"], "classes": LIKELY["classes"]}
    rest = {name: part for name, part in parts.items() if name not in needed}
    good = {
        "image": st.just(photo()),
        "classes": st.lists(st.sampled_from(NAMES[:-1]), min_size=1, unique=True).map("\n".join),
    }
    methods = st.lists(st.sampled_from([m for m in METHODS if m not in {"tda", "x"}]), min_size=1, max_size=3)
    fine = {"methods": methods.map(",".join), "top": st.integers(1, 9), "thumbnails": st.booleans()}
    return kind, st.one_of(
        st.fixed_dictionaries(good, optional=fine),
        st.fixed_dictionaries(needed, optional=rest),
        st.fixed_dictionaries({}, optional=parts),
    )


def check(path: str, method: str, answer) -> None:
    documented = described()["paths"][path][method]["responses"]
    assert str(answer.status_code) in documented, (answer.status_code, answer.text[:500])
    content = documented[str(answer.status_code)]["content"]
    kind = answer.headers["content-type"].partition(";")[0]
    schema = {**content[kind]["schema"], "components": described()["components"]}
    body = answer.json() if kind == "application/json" else answer.text
    Draft202012Validator(schema).validate(body)
    json.dumps(body, allow_nan=False) if kind == "application/json" else None


def send(path: str, kind: str, body: dict):
    if kind == "application/json":
        return web().post(path, content=json.dumps(body), headers={"content-type": kind})
    text = {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in body.items() if name != "image"
    }
    files = {"image": ("x.png", body["image"])} if isinstance(body.get("image"), bytes) else {}
    if isinstance(body.get("image"), str):
        text["image"] = body["image"]
    return web().post(path, data=text, files=files or {"image": ("", b"")})


def test_every_route_is_described():
    paths = described()["paths"]
    assert set(paths) == {
        *("/v1/predict", "/v1/predict/batch", "/v1/calibrate", "/v1/models", "/v1/methods", "/v1/runs"),
        *("/v1/labels", "/v1/monitor", "/healthz", "/readyz", "/metrics"),
    }
    for path, methods in paths.items():
        for operation in methods.values():
            assert operation["description"]
            for status, answer in operation["responses"].items():
                if status != "200":
                    ((_, content),) = answer["content"].items()
                    assert content["schema"]["$ref"].endswith("ErrorBody"), (path, status)


def test_examples_are_accepted_and_have_the_shape_of_answers():
    for path in ("/v1/predict", "/v1/predict/batch", "/v1/calibrate"):
        operation = described()["paths"][path]["post"]
        for kind, content in operation["requestBody"]["content"].items():
            Draft202012Validator(content["schema"]).validate(content["example"])
            if kind == "application/json":
                answer = web().post(path, json=content["example"])
                assert answer.status_code == 200, answer.text
                check(path, "post", answer)
        shown = operation["responses"]["200"]["content"]["application/json"]
        Draft202012Validator({**shown["schema"], "components": described()["components"]}).validate(shown["example"])


def test_the_number_of_photos_in_a_batch_is_that_of_the_schema():
    operation = described()["paths"]["/v1/predict/batch"]["post"]
    photo = operation["requestBody"]["content"]["application/json"]["example"]["images"][0]
    most = ServeSettings().max_images
    for content in operation["requestBody"]["content"].values():
        images = content["schema"]["properties"]["images"]
        assert (images["minItems"], images["maxItems"]) == (1, most)
    for count, status in ((0, 422), (1, 200), (most + 1, 422)):
        body = {"images": [photo] * count, "classes": ["cat", "car"]}
        valid = Draft202012Validator(operation["requestBody"]["content"]["application/json"]["schema"]).is_valid(body)
        answer = web().post("/v1/predict/batch", json=body)
        assert (answer.status_code, valid) == (status, status == 200), answer.text


@pytest.mark.parametrize("path", list(schemas.EXAMPLES))
def test_every_example_is_published(path):
    operation, shown = described()["paths"][path]["post"], schemas.EXAMPLES[path]
    bodies = operation["requestBody"]["content"]
    assert bodies["application/json"]["example"] == shown["request"]
    assert operation["responses"]["200"]["content"]["application/json"]["example"] == shown["response"]
    if "form" in shown:
        assert bodies["multipart/form-data"]["example"] == shown["form"]


@pytest.mark.parametrize("path", ["/v1/predict", "/v1/calibrate"])
def test_no_body_gets_an_undocumented_answer(path):
    kind, bodies = body_of(path)
    statuses = set()

    @given(bodies)
    @EXAMPLES
    def client_knows_the_schema(body):
        answer = send(path, kind, body)
        check(path, "post", answer)
        statuses.add(answer.status_code)

    client_knows_the_schema()
    assert {200, 422} <= statuses, "both sides of the checks were reached"


@given(st.data())
@EXAMPLES
def test_no_get_gets_an_undocumented_answer(data):
    path = data.draw(st.sampled_from([p for p, methods in described()["paths"].items() if "get" in methods]))
    check(path, "get", web().get(path))


@given(
    st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"]),
    st.text(alphabet="abv1/.%?#&=~ \u00e9\\", max_size=20),
    st.binary(max_size=50),
)
@EXAMPLES
def test_anything_at_all_is_answered_below_500(method, path, body):
    from urllib.parse import quote

    answer = web().request(method, "/" + quote(path, safe="/%?&="), content=body)
    assert answer.status_code < 500
    assert "content-security-policy" in answer.headers
