"""From batches of prediction requests to answers: one task per class list, views in threads, then the methods."""

import base64
import io
import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from .._errors import CotsError, InputError
from ..backbones import Backbone
from ..bench import TimedPipeline
from ..calibrators import chosen_solver
from ..conformal import Policy
from ..methods import Method, Prediction
from ..photos import EncodedPhoto, Photo, PhotoEncoder, Rendered, begin_predictions, encoder_for
from ..prompts import ONE_CLASS, Task, untrained_message
from ..rounds import chosen_views
from ..taxonomy import SURE, RankRule, Taxonomy
from ._monitor import Monitor, Ticket
from ._requests import COMMA, PredictFields, PredictRequest, RefusedPhoto
from ._schemas import (
    ApiError,
    ErrorDetail,
    ImageInfo,
    MethodResult,
    ModelName,
    PhotoOutcome,
    PredictAnswer,
    Thumbnail,
    invalid,
)
from ._settings import ServeSettings
from ._tasks import TaskCache

THUMBNAIL = 96
# An answer within these is written on the event loop: classes to rank and classes to show, of all methods.
QUICK_CLASSES, QUICK_SHOWN = 10_000, 200


@dataclass(frozen=True, kw_only=True)
class _Shared:
    """What the answers of a batch share; milliseconds: of each method."""

    policy: Policy | None
    tree: Taxonomy | None
    milliseconds: Sequence[float]
    warnings: Sequence[str]


class Predictor:
    """The handler of one device: takes requests with equal classes, template and methods, returns their answers."""

    def __init__(
        self, backbone: Backbone, settings: ServeSettings, cache_bytes: int, monitor: Monitor | None = None
    ) -> None:
        self.backbone, self.model = backbone, {"name": backbone.name, "weights_hash": backbone.weights_hash}
        self.tasks = TaskCache(backbone, cache_bytes)
        policy = settings.policy
        views = chosen_views(settings.views, "zeroshot", policy and policy.views)  # no request has an online method
        self._encoder = encoder_for(backbone, views, settings.augmix, settings.batch_size)
        # For requests whose methods all use only the weak view.
        self._weak_encoder = encoder_for(backbone, 1, settings.augmix, settings.batch_size)
        self._max_pixels, self._taxonomy = settings.max_pixels, settings.taxonomy
        self._solver = settings.solver
        self._policy = policy
        if policy is not None and policy.weights_hash != backbone.weights_hash:
            raise InputError(f"The policy was made for {policy.model} with other weights; run cots check again.")
        if policy is not None and (policy.views, policy.augmix) != (views, settings.augmix):
            raise InputError(f"The policy was made with {policy.views} views; start the server with that number.")
        if policy and policy.fitting_solver and settings.solver not in (None, policy.solver):
            raise InputError(f"The policy was made with solver {policy.solver}; start the server with that one.")
        self._monitor = monitor or Monitor(settings)
        self._device = threading.Lock()

    def __call__(self, items: Sequence[PredictRequest]) -> list[Any]:
        classes, template, descriptions, methods, ranges = items[0].key
        weak_only = all(method.uses_one_view() for method in methods)
        encoder = self._weak_encoder if weak_only else self._encoder
        reads: Iterable[Photo | CotsError] = encoder.read_all(partial(self._read, encoder), items)
        on_cpu = self.backbone.device.type == "cpu"
        groups = encoder.render(reads if on_cpu else list(reads))
        if not on_cpu:  # while the batch before is on the device
            groups = itertools.chain([next(groups)], groups)
        with self._device:
            try:
                task = self.tasks.get(classes, template, descriptions)
                tree = self._tree(task)
            except ApiError as error:
                return [error] * len(items)
            photos, thumbnails = self._encode(encoder, task, items, groups)
            policy = self._policy_for(task)
            try:
                settings = self._solvers(methods, policy)
                pipeline = TimedPipeline(task, methods, waits=False, ranges=ranges, calibrator_settings=settings)
                begun = begin_predictions(pipeline, photos, policy=policy)
            except InputError as error:
                return _refuse_all(photos, task, error)
            finally:
                self.tasks.put(task)
        try:
            predictions = begun()  # the device works on it, and the next batch is launched
        except InputError as error:
            return _refuse_all(photos, task, error)
        shared = _Shared(
            policy=policy,
            tree=tree,
            milliseconds=[pipeline.mean_milliseconds[method] for method in predictions],
            warnings=self._warnings(classes, template),
        )
        own = zip(*predictions.values(), strict=True)  # the predictions of each photo
        answers: list[Any] = []
        for item, photo, results, small in zip(items, photos, own, thumbnails, strict=True):
            if photo.error is not None:
                answers.append(_not_an_image(photo.error))
            else:
                answers.append(self._answer(item, photo, results, small, shared))
        return answers

    def _answer(
        self,
        item: PredictRequest,
        photo: EncodedPhoto,
        predictions: Sequence[Prediction],
        thumbnails: Tensor | None,
        shared: _Shared,
    ) -> "PhotoAnswer":
        """The answer for a photo from the predictions of all methods."""
        decided = shared.policy.method if shared.policy else ""  # the method whose results are under the policy
        results = []
        for prediction in predictions:
            results.append(_decide(prediction, None if prediction.method == decided else shared.tree, item.fields))
        # A policy's reference is only valid for its own requests; without a policy, the last method is watched.
        watched = [one for one in results if self._policy is None or one.method == decided]
        ticket = self._monitor.add(watched[-1], item.name) if watched else None
        return PhotoAnswer(
            request=item,
            size=photo.size,
            backbone=self.backbone,
            predictions=results,
            milliseconds=shared.milliseconds,
            warnings=[*shared.warnings, *self._warnings_of(shared.policy, results, item.fields.seed)],
            thumbnails=self._thumbnails(results, thumbnails),
            tickets={watched[-1].method: ticket} if ticket else {},
            decided=decided,
        )

    def _policy_for(self, task: Task) -> Policy | None:
        """The server's policy, if it is for the classes and the prompt of a task."""
        policy = self._policy
        if policy is None:
            return None
        prompt = task.classes, task.template, task.descriptions_hash, ("", "")  # requests have nothing else
        own = policy.classes, policy.template, policy.descriptions, (policy.context, policy.attributes)
        return policy if own == prompt else None

    def _tree(self, task: Task) -> Taxonomy | None:
        """The tree of the task's classes, if the server's taxonomy has any of them."""
        file = self._taxonomy
        if file is None or not file.knows(task.classes):
            return None
        try:
            return task.constant("taxonomy", lambda: file.tree(task.classes))
        except InputError as error:
            raise invalid("classes", "ambiguous_class", str(error)) from None

    def _solvers(self, methods: Sequence[Method], policy: Policy | None) -> dict[str, dict[str, str]]:
        """The solver of each calibrator that has one: the server's, else the policy's, else the default."""
        given = self._solver or (policy.fitting_solver if policy else None)
        settings = {}
        for method in methods:
            if solver := chosen_solver(method.calibrator, None, dict(method.calibrator_settings)):
                settings[method.correction] = {"solver": given or solver}
        return settings

    def _read(self, encoder: PhotoEncoder, item: PredictRequest) -> Photo:
        return encoder.read(item.image, item.fields.seed, max_pixels=self._max_pixels)

    @contextmanager
    def _released(self) -> Iterator[None]:
        """The device's lock, released for a while, so that another batch can be launched."""
        self._device.release()
        try:
            yield
        finally:
            self._device.acquire()

    def _encode(
        self, encoder: PhotoEncoder, task: Task, items: Sequence[PredictRequest], groups: Iterable[Rendered]
    ) -> tuple[list[EncodedPhoto], list[Tensor | None]]:
        """The photos without their views, and the views as small images where they are asked for."""
        photos, thumbnails = [], []
        keep_views = any(item.fields.thumbnails for item in items)
        encoded = encoder.encode_rendered(groups, task, keep_views=keep_views, waiting=self._released)
        for item, photo in zip(items, encoded, strict=True):
            small = None
            if item.fields.thumbnails and photo.views is not None:
                small = nn.functional.interpolate(photo.views, size=(THUMBNAIL, THUMBNAIL), mode="area").cpu()
            photos.append(replace(photo, views=None))
            thumbnails.append(small)
        return photos, thumbnails

    def _warnings(self, classes: Sequence[str], template: str) -> list[str]:
        warnings = []
        if untrained := untrained_message(self.backbone, classes, template):
            warnings.append(untrained)
        if len(classes) == 1:
            warnings.append(ONE_CLASS)
        with_comma = [name for name in classes if "," in name]
        if with_comma:
            warnings.append(COMMA.format(repr(with_comma[0])))
        return warnings

    def _warnings_of(self, policy: Policy | None, results: Sequence[Prediction], seed: int) -> list[str]:
        """What the policy of a request does not promise: without a threshold, or for the views of another seed."""
        if policy is None or all(one.method != policy.method for one in results):
            return []
        return policy.warnings(replace(policy, seed=seed, precision=self.backbone.precision))

    def _thumbnails(self, predictions: Sequence[Prediction], small: Tensor | None) -> list[Thumbnail]:
        if small is None:
            return []
        chosen = {0}
        for prediction in predictions:
            chosen.update(prediction.views)
        return [Thumbnail(view=i, src=self._data_url(small[i])) for i in sorted(chosen)]

    def _data_url(self, view: Tensor) -> str:
        mean, std = (
            torch.tensor(v).view(3, 1, 1) for v in (self._encoder.maker.settings.mean, self._encoder.maker.settings.std)
        )
        pixels = ((view * std + mean) * 255).round().clamp(0, 255).byte()
        file = io.BytesIO()
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=85)
        return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def _decide(prediction: Prediction, tree: Taxonomy | None, fields: PredictFields) -> Prediction:
    """The prediction with the answer of the taxonomy, if there is one, or abstained if the request says so."""
    if tree is not None:
        prediction = RankRule(tree=tree, threshold=fields.abstain or SURE).apply(prediction)
    return prediction.abstain(fields.abstain, fields.none_of_these)


def _refuse_all(photos: Sequence[EncodedPhoto], task: Task, error: InputError) -> list[ApiError]:
    # A template without words before {} leaves the prompt tuners nothing to tune.
    field = "methods" if len(task.initial_context) else "template"
    refused = invalid(field, f"bad_{field}", str(error))
    return [_not_an_image(photo.error) if photo.error else refused for photo in photos]


def _not_an_image(error: CotsError) -> ApiError:
    return ApiError(415, "not_an_image", str(error), "image")


@dataclass(frozen=True, kw_only=True)
class PhotoAnswer:
    """The predictions for one photo, one per method; only `to_json` makes an object per class, one photo at a time."""

    request: PredictRequest
    size: tuple[int, int]
    backbone: Backbone = field(repr=False)
    predictions: Sequence[Prediction]
    milliseconds: Sequence[float]
    warnings: list[str]
    thumbnails: list[Thumbnail] = field(repr=False)
    tickets: Mapping[str, Ticket] = field(default_factory=dict)  # by method
    decided: str = ""  # the method that the server's policy decided on

    @property
    def quick(self) -> bool:
        """Whether `to_json` takes at most a few milliseconds, which may delay other requests."""
        count, shown = len(self.predictions), self.request.fields.top * len(self.predictions)
        sizes = [len(prediction.label_set or ()) + len(prediction.candidates) for prediction in self.predictions]
        small = count * len(self.request.fields.classes) <= QUICK_CLASSES and shown + sum(sizes) <= QUICK_SHOWN
        return small and not self.thumbnails

    def to_json(self) -> bytes:
        return self.body().model_dump_json(by_alias=True).encode()

    def body(self) -> PredictAnswer:
        fields, predictions = self.request.fields, self.predictions
        results = []
        for prediction, milliseconds in zip(predictions, self.milliseconds, strict=True):
            shown = prediction.to_dict(fields.top)
            del shown["error"], shown["presence"]  # a photo with an error has no results
            ticket = self.tickets.get(prediction.method)
            shown |= {"id": ticket.id, "ask": ticket.ask} if ticket else {}
            under_policy = prediction.method == self.decided
            results.append(MethodResult(**shown, milliseconds=milliseconds, under_policy=under_policy))
        return PredictAnswer(
            image=ImageInfo(name=self.request.name, width=self.size[0], height=self.size[1]),
            model=ModelName(name=self.backbone.name, weights_hash=self.backbone.weights_hash),
            classes=len(fields.classes),
            seed=fields.seed,
            milliseconds=1000 * (time.perf_counter() - self.request.arrived),
            results=results,
            in_list=predictions[0].in_list,
            none_of_these=any(prediction.none_of_these for prediction in predictions),
            agree=len({prediction.top(1)[0][0] for prediction in predictions}) == 1,
            warnings=[*self.warnings, *predictions[0].warnings],
            thumbnails=self.thumbnails,
        )


def write_batch(photos: Sequence[PhotoAnswer | RefusedPhoto]) -> Iterator[bytes]:
    """The JSON of a `BatchAnswer`, one photo at a time."""
    for i, photo in enumerate(photos):
        yield b"," if i else b'{"photos":['
        if isinstance(photo, RefusedPhoto):
            detail = ErrorDetail(**photo.error.body["error"])
            outcome = PhotoOutcome(name=photo.name, answer=None, error=detail)
        else:
            outcome = PhotoOutcome(name=photo.request.name, answer=photo.body(), error=None)
        yield outcome.model_dump_json(by_alias=True).encode()
    yield b"]}"
