"""The shapes of the answers, for OpenAPI."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1)]
Hash = Annotated[str, Field(description="SHA-256 of the model's weights.")]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class ErrorDetail(Strict):
    code: str = Field(description="A word that a program can test.")
    message: str = Field(description="What is wrong and what to do.")
    field: str | None = Field(description="The field to blame, where there is one.")


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
    probability: Share


class MethodResult(Strict):
    method: str
    label: str
    confidence: Share
    tau: float = Field(description="The temperature that was applied; 1 where the method has none.")
    alpha: float | None = Field(description="The weight of the weak view in an ensemble, else null.")
    milliseconds: float = Field(description="Adaptation and calibration, this image's share of its batch.")
    top: list[TopClass]
    views: list[int] = Field(description="The views that were selected, most confident first; 0 is the weak one.")


class Thumbnail(Strict):
    view: int
    src: str = Field(description="A data: address of a JPEG.")


class PredictAnswer(Strict):
    image: ImageInfo
    model: ModelName
    classes: int
    seed: int
    milliseconds: float = Field(description="From the request's arrival, waiting included.")
    results: list[MethodResult]
    agree: bool = Field(description="Whether all methods name the same class.")
    warnings: list[str]
    thumbnails: list[Thumbnail]


# Dimensions are checked with the calibrator's own rules, whose errors say more.
Matrix = list[list[float]]
Logits = Matrix | list[Matrix]


class CalibrateBody(Strict):
    adapted: Logits = Field(description="Logits after adaptation: (samples, classes) or (samples, views, classes).")
    zero_shot: Logits = Field(description="Zero-shot logits, of the same shape.")
    method: str = Field(default="cots", description="A calibrator.")
    alpha: float | None = Field(default=None, description="The ensemble's weight; or give text_features.")
    text_features: Matrix | None = Field(default=None, description="(classes, width): alpha is their mean similarity.")
    labels: list[int] | None = Field(default=None, description="For the metrics.")


class Calibrated(Strict):
    prediction: int
    confidence: Share
    tau: float


class Figures(Strict):
    accuracy: Share
    ece: Share
    nll: float
    mean_confidence: Share


class BeforeAfter(Strict):
    before: Figures
    after: Figures


class CalibrateAnswer(Strict):
    method: str
    results: list[Calibrated]
    probabilities: list[list[Share]]
    metrics: BeforeAfter | None


class Model(Strict):
    name: str
    weights_hash: Hash
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


class RunInfo(Strict):
    id: str
    model: str
    weights_hash: Hash
    datasets: list[str]
    methods: list[str]
    seeds: list[int]
    complete: bool
    created: str


class Runs(Strict):
    runs: list[RunInfo]


class Row(Strict):
    dataset: str = Field(description="A dataset, or `all` for all of them pooled.")
    title: str
    method: str
    n: int
    failed: int
    accuracy: float = Field(description="Per cent, mean over seeds; so are the other figures, but nll.")
    ece: float
    nll: float
    brier: float = Field(description="Of the top label.")
    mean_confidence: float
    accuracy_std: float | None
    ece_std: float | None


class Bins(Strict):
    edges: list[float]
    count: list[int]
    confidence: list[float | None]
    accuracy: list[float | None]


class Curve(Strict):
    threshold: list[float]
    coverage: list[Share]
    risk: list[Share]


class RunDetail(RunInfo):
    rows: list[Row]
    reliability: dict[str, dict[str, Bins]]
    risk_coverage: dict[str, dict[str, Curve]]
    caption: str


class Health(Strict):
    status: str
    model: str
    queue: int
    version: str


MESSAGES = {
    400: "The multipart body cannot be read.",
    401: "The token is missing or wrong.",
    404: "There is no such thing.",
    408: "The request did not arrive in time.",
    413: "The body, or the image's number of pixels, is too large.",
    415: "Not an image, or not the content type that is asked for.",
    422: "A field is wrong; `error.field` names it.",
    429: "The queue is full; Retry-After says when to come again.",
    503: "The server is stopping, or has no memory for this request.",
    504: "The answer took longer than the server allows.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The documented errors of a route."""
    return {status: {"model": ErrorBody, "description": MESSAGES[status]} for status in statuses}
