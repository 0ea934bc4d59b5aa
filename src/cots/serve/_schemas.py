"""Errors, the JSON shapes of responses, and what /openapi.json and /docs say about them, with examples."""

from typing import Annotated, Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.exceptions import HTTPException

# A float32 sum of probabilities can exceed 1 by a rounding error.
Fraction = Annotated[float, Field(ge=0, le=1), BeforeValidator(lambda value: min(1.0, max(0.0, value)))]
Hash = Annotated[str, Field(description="SHA-256 of the model's weights.")]


class ApiError(HTTPException):
    """An error response: a status, a code for programs, a message for people and the field at fault."""

    def __init__(
        self, status: int, code: str, message: str, field: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(status, message, headers)
        self.code, self.field = code, field

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.detail, "field": self.field}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status_code, self.headers)


def invalid(field: str, code: str, message: str) -> ApiError:
    """A 422 response that names the field."""
    return ApiError(422, code, message, field)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class ErrorDetail(Strict):
    code: str = Field(description="Stable identifier for programs.")
    message: str = Field(description="What is wrong and how to fix it.")
    field: str | None = Field(description="The field at fault, if any.")


class ErrorBody(Strict):
    error: ErrorDetail


class ImageInfo(Strict):
    name: str
    width: int
    height: int


class ModelName(Strict):
    name: str
    weights_hash: Hash


class TopClass(Strict):
    name: str = Field(alias="class")
    probability: Fraction


class MethodResult(Strict):
    method: str
    label: str | None = Field(description="Null if `abstained`; `top` has the candidates.")
    confidence: Fraction
    confidence_range: list[Fraction] | None = Field(
        description="Contains 90% of the confidences under other random views; null if not requested or not known."
    )
    label_set: list[str] | None = Field(description="Prediction set of the server's policy, if it applies.")
    abstained: bool = Field(
        description="Whether the confidence is below the threshold of `abstain` or of the server's policy, its set is "
        "empty, or, with `none_of_these`, the photo is flagged."
    )
    node: str | None = Field(
        description="With a taxonomy, the answer at the rank that is sure; null if not even the top."
    )
    rank: str | None = Field(description="The rank of the node, if the taxonomy names it.")
    path: list[str] | None = Field(description="The nodes from the top to the answer; null without a taxonomy.")
    node_probability: Fraction | None
    unsure: str | None = Field(description="The rank that is unsure, if the answer is a group.")
    candidates: list[TopClass] = Field(description="The likeliest classes of the group.")
    in_list: Fraction = Field(description="How much better the best class matches than unrelated words do.")
    none_of_these: bool = Field(description="Whether the photo seems to belong to no class of the list.")
    warnings: list[str] = Field(description="Why the photo shows nothing that could be recognised.")
    agreement: Fraction | None = Field(description="Share of the views whose own best class is that of the photo.")
    tau: float = Field(description="Temperature applied; 1 for methods without one.")
    alpha: float | None = Field(description="Weight of the weak view in an ensemble, otherwise null.")
    milliseconds: float = Field(description="Adaptation and calibration, per image.")
    top: list[TopClass]
    views: list[int] = Field(description="Selected views, most confident first; 0 is the weak view.")
    views_used: int = Field(description="How many views were encoded.")
    under_policy: bool = Field(default=False, description="Whether the server's policy decided on this result.")
    id: str | None = Field(default=None, description="Of a prediction that the server's monitor recorded.")
    ask: bool = Field(default=False, description="Whether its label is asked for, with POST /v1/labels.")


class Thumbnail(Strict):
    view: int
    src: str = Field(description="A JPEG as a data: URL.")


class PredictAnswer(Strict):
    image: ImageInfo
    model: ModelName
    classes: int
    seed: int
    milliseconds: float = Field(description="From the request's arrival to its response, including the queue.")
    results: list[MethodResult]
    in_list: Fraction = Field(description="Of the first result.")
    none_of_these: bool = Field(description="Whether any result is flagged.")
    agree: bool = Field(description="Whether all methods predict the same class.")
    warnings: list[str] = Field(description="About the class names, the photo, and a policy without a threshold.")
    thumbnails: list[Thumbnail]


class PhotoOutcome(Strict):
    name: str = Field(description="The file's name; empty in JSON requests.")
    answer: PredictAnswer | None
    error: ErrorDetail | None = Field(description="Why this photo has no answer.")


class BatchAnswer(Strict):
    photos: list[PhotoOutcome] = Field(description="In the order of the request.")


class CalibratedSample(Strict):
    prediction: int
    confidence: Fraction
    tau: float


class Figures(Strict):
    accuracy: Fraction
    ece: Fraction
    nll: float
    mean_confidence: Fraction


class Compared(Strict):
    zero_shot: Figures = Field(description="CoTS inherits the calibration of zero-shot.")
    before: Figures
    after: Figures


class CalibrateAnswer(Strict):
    method: str
    results: list[CalibratedSample]
    probabilities: list[list[Fraction]]
    metrics: Compared | None
    warnings: list[str]


class Model(ModelName):
    device: str
    image_size: list[int] = Field(description="Height and width.")
    default: bool


class Models(Strict):
    models: list[Model]


class Described(Strict):
    name: str
    description: str


class Methods(Strict):
    adapters: list[Described]
    calibrators: list[Described]
    suggested: list[str]


class Ready(Strict):
    status: str
    model: str


class Health(Strict):
    status: str
    model: str
    queue: int
    version: str


STATUSES = {
    400: "The multipart body cannot be parsed.",
    401: "The token is missing or wrong.",
    404: "No such run or prediction.",
    408: "The request did not arrive in time.",
    409: "The label was not asked for, or contradicts the one before.",
    413: "The body is too large, or the image has too many pixels.",
    415: "Not an image, or not the required content type.",
    422: "A field is invalid; `error.field` names it.",
    429: "The queue is full; retry after the seconds in Retry-After.",
    503: "Too many requests to answer in time (retry after the seconds in Retry-After), out of memory, or stopping.",
    504: "The request timed out.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The documented error responses of a route."""
    return {status: {"model": ErrorBody, "description": STATUSES[status]} for status in statuses}


# A PNG of one pixel.
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGM40OAAAAOEAYFmXuFhAAAAAElFTkSuQmCC"
_ASKED = {"classes": ["tabby cat", "beagle"], "methods": ["tpt+ecots"], "top": 2}
_FORM = {"classes": "tabby cat\nbeagle", "methods": "tpt+ecots", "top": 2}
_ANSWER = {
    "image": {"name": "photo.jpg", "width": 400, "height": 224},
    "model": {"name": "mini", "weights_hash": "c895ab45403022db"},
    "classes": 2, "seed": 0, "milliseconds": 812.4,
    "results": [{
        "method": "tpt+ecots", "label": "beagle", "confidence": 0.9978, "confidence_range": None, "label_set": None,
        "abstained": False, "node": None, "rank": None, "path": None, "node_probability": None, "unsure": None,
        "candidates": [], "in_list": 0.9999, "none_of_these": False, "warnings": [], "agreement": 0.953,
        "tau": 1.124, "alpha": 0.786, "milliseconds": 13.9,
        "top": [{"class": "beagle", "probability": 0.9978}, {"class": "tabby cat", "probability": 0.0022}],
        "views": [52, 59, 6, 24, 32, 9], "views_used": 64, "id": None, "ask": False,
    }],
    "in_list": 0.9999, "none_of_these": False, "agree": True, "warnings": [], "thumbnails": [],
}  # fmt: skip
_PROBLEM = {"code": "not_an_image", "message": "image bytes: no data (0 bytes). Download it again.", "field": "image"}

EXAMPLES: dict[str, dict[str, Any]] = {
    "/v1/predict": {
        "request": {"image": PIXEL, **_ASKED}, "form": {"image": "photo.jpg", **_FORM}, "response": _ANSWER,
    },
    "/v1/predict/batch": {
        "request": {"images": [PIXEL, PIXEL], **_ASKED}, "form": {"images": ["photo.jpg", "empty.jpg"], **_FORM},
        "response": {"photos": [
            {"name": "photo.jpg", "answer": _ANSWER, "error": None},
            {"name": "empty.jpg", "answer": None, "error": _PROBLEM},
        ]},
    },
    "/v1/labels": {
        "request": {"labels": [{"id": "4f0c27be19ad", "right": True}, {"id": "9b51c0de77a3", "label": "beagle"}]},
        "response": {
            "errors": {
                "acted": 1240, "asked": 118, "checked": 80, "errors": 2, "low": 0.0028, "high": 0.1148, "level": 0.95,
                "promise": 0.05, "verdict": "open", "waiting": ["c1d5a3f0b6e2"], "full": False,
                "text": "acted on 1,240, checked 80, error 0.3% to 11.5%, promise 5%: still open",
            },
            "changes": {
                "predictions": 1310, "reference": 300, "false_alarms": 0.01, "evidence": 0.1, "alarms": 0, "last": [],
            },
        },
    },
    "/v1/calibrate": {
        "request": {"adapted": [[[9, 2, 1], [8, 3, 1]]], "zero_shot": [[[3, 1, 1], [3, 2, 1]]]},
        "response": {
            "method": "cots", "results": [{"prediction": 0, "confidence": 0.755, "tau": 4.102}],
            "probabilities": [[0.755, 0.137, 0.107]], "metrics": None, "warnings": [],
        },
    },
}  # fmt: skip


def json_body(model: type[Strict]) -> dict[str, Any]:
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


def photo_body(model: type[Strict], key: str, most: int) -> dict[str, Any]:
    """The body of /predict (`image`) or /predict/batch (`images`), as a form and as JSON."""
    form = model.model_json_schema()
    file = {"type": "string", "format": "binary", "description": "A JPEG, PNG, WebP, ... file."}
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
