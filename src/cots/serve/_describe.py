"""Request bodies in /openapi.json and on the page /docs, with examples of requests and responses."""

from typing import Any

from fastapi import FastAPI

from ._requests import PredictRequest
from ._schemas import Strict

# A PNG of one pixel.
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGM40OAAAAOEAYFmXuFhAAAAAElFTkSuQmCC"
_ASKED = {"classes": ["tabby cat", "beagle"], "methods": ["tpt+ecots"], "top": 2}
_FORM = {"classes": "tabby cat\nbeagle", "methods": "tpt+ecots", "top": 2}
_ANSWER = {
    "image": {"name": "photo.jpg", "width": 400, "height": 224},
    "model": {"name": "mini", "weights_hash": "c895ab45403022db"},
    "classes": 2,
    "seed": 0,
    "milliseconds": 812.4,
    "results": [
        {
            "method": "tpt+ecots",
            "label": "beagle",
            "confidence": 0.9978,
            "confidence_range": None,
            "label_set": None,
            "abstained": False,
            "tau": 1.124,
            "alpha": 0.786,
            "milliseconds": 13.9,
            "top": [{"class": "beagle", "probability": 0.9978}, {"class": "tabby cat", "probability": 0.0022}],
            "views": [52, 59, 6, 24, 32, 9],
        }
    ],
    "in_list": 0.9999,
    "none_of_these": False,
    "agree": True,
    "warnings": [],
    "thumbnails": [],
}
_PROBLEM = {"code": "not_an_image", "message": "image bytes: no data (0 bytes). Download it again.", "field": "image"}

EXAMPLES: dict[str, dict[str, Any]] = {
    "/v1/predict": {
        "request": {"image": PIXEL, **_ASKED},
        "form": {"image": "photo.jpg", **_FORM},
        "response": _ANSWER,
    },
    "/v1/predict/batch": {
        "request": {"images": [PIXEL, PIXEL], **_ASKED},
        "form": {"images": ["photo.jpg", "empty.jpg"], **_FORM},
        "response": {
            "photos": [
                {"name": "photo.jpg", "answer": _ANSWER, "error": None},
                {"name": "empty.jpg", "answer": None, "error": _PROBLEM},
            ]
        },
    },
    "/v1/calibrate": {
        "request": {"adapted": [[[9, 2, 1], [8, 3, 1]]], "zero_shot": [[[3, 1, 1], [3, 2, 1]]]},
        "response": {
            "method": "cots",
            "results": [{"prediction": 0, "confidence": 0.755, "tau": 4.102}],
            "probabilities": [[0.755, 0.137, 0.107]],
            "metrics": None,
            "warnings": [],
        },
    },
}


def json_body(model: type[Strict]) -> dict[str, Any]:
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


def photo_body(key: str, most: int) -> dict[str, Any]:
    """The body of /predict (`image`) or /predict/batch (`images`), as a form and as JSON."""
    form = PredictRequest.model_json_schema()
    file = form["properties"].pop("image")
    text = {"type": "string", "contentEncoding": "base64", "description": "The photo's file in base64."}
    names = {"type": "array", "items": {"type": "string"}}
    as_list = {name: {**form["properties"][name], **names} for name in ("classes", "methods")}
    content = {}
    for kind, photo, changes in (("multipart/form-data", file, {}), ("application/json", text, as_list)):
        several = {"type": "array", "items": photo, "minItems": 1, "maxItems": most}
        fields = {key: photo if key == "image" else several, **form["properties"], **changes}
        content[kind] = {"schema": {**form, "properties": fields, "required": [key, "classes"]}}
    return {"requestBody": {"required": True, "content": content}}


def add_examples(app: FastAPI) -> None:
    """Put the examples into /openapi.json; FastAPI itself would drop their nulls."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        api = plain()
        for path, shown in EXAMPLES.items():
            operation = api["paths"][path]["post"]
            for kind, content in operation["requestBody"]["content"].items():
                content["example"] = shown["form" if kind == "multipart/form-data" else "request"]
            operation["responses"]["200"]["content"]["application/json"]["example"] = shown["response"]
        return api

    app.openapi = openapi  # pyright: ignore[reportAttributeAccessIssue]
