"""From batches of prediction requests to answers: one task per class list, views in threads, then the methods."""

import base64
import contextlib
import ctypes
import io
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from .._errors import CotsError, InputError
from ..backbones import Backbone
from ..bench import TimedPipeline
from ..methods import Prediction
from ..photos import EncodedPhoto, Photo, PhotoEncoder, begin_predictions
from ..prompts import ONE_CLASS, DuplicateClass, Task, check_distinct, untrained_message
from ..views import ViewSettings
from ..watch import Watch
from ._requests import COMMA, PredictRequest, RefusedPhoto
from ._schemas import (
    ApiError,
    ErrorDetail,
    ImageInfo,
    MethodResult,
    ModelName,
    PhotoOutcome,
    PredictAnswer,
    Thumbnail,
    TopClass,
    invalid,
)
from ._settings import ServeSettings

THUMBNAIL = 96
SHOWN = ("method", "label", "confidence", "confidence_range", "label_set", "abstained", "tau", "alpha", "views")
MAX_WORDS = 100_000  # in the cache of a tokenizer


class Predictor:
    """The handler of one device: takes requests with equal classes, template and methods, returns their answers."""

    def __init__(
        self, backbone: Backbone, settings: ServeSettings, cache_bytes: int, watch: Watch | None = None
    ) -> None:
        self.backbone, self.model = backbone, {"name": backbone.name, "weights_hash": backbone.weights_hash}
        self.tasks = TaskCache(backbone, cache_bytes)
        views = ViewSettings.from_preprocess(backbone.preprocess, n=settings.views, augmix=settings.augmix)
        self._encoder = PhotoEncoder(backbone, views, at_once=backbone.samples_at_once(settings.views))
        self._max_pixels = settings.max_pixels
        self._policy = policy = settings.policy
        if policy is not None and policy.weights_hash != backbone.weights_hash:
            raise InputError(f"The policy was made for {policy.model} with other weights; run cots check again.")
        if policy is not None and (policy.views, policy.augmix) != (settings.views, settings.augmix):
            raise InputError(f"The policy was made with {policy.views} views; start the server with that number.")
        self._watch = watch or Watch()
        self._device = threading.Lock()

    def __call__(self, items: Sequence[PredictRequest]) -> list[Any]:
        classes, template, methods, ranges = items[0].key
        reads: Iterable[Photo | CotsError] = self._encoder.read_all(self._read, items)
        if self.backbone.device.type != "cpu":
            reads = list(reads)  # while the batch before is on the device
        with self._device:
            try:
                task = self.tasks.get(classes, template)
            except ApiError as error:
                return [error] * len(items)
            policy = self._policy
            if policy is not None and (policy.classes, policy.template) != (task.classes, task.template):
                policy = None
            photos, thumbnails = self._encode(items, reads)
            try:
                pipeline = TimedPipeline(task, methods, ranges=ranges)
                predictions = begin_predictions(pipeline, photos, policy=policy)()
            except InputError as error:
                # A template without words before {} leaves the prompt tuners nothing to tune.
                field = "methods" if len(task.initial_context) else "template"
                refused = invalid(field, f"bad_{field}", str(error))
                return [_not_an_image(photo.error) if photo.error else refused for photo in photos]
            finally:
                self.tasks.put(task)
        warnings = self._warnings(classes, template)
        answers: list[Any] = []
        for i, (item, photo) in enumerate(zip(items, photos, strict=True)):
            if photo.error is not None:
                answers.append(_not_an_image(photo.error))
                continue
            results = [own[i] for own in predictions.values()]
            answers.append(PhotoAnswer(
                request=item, size=photo.size, backbone=self.backbone, predictions=results,
                milliseconds=[pipeline.milliseconds[method] for method in predictions], warnings=warnings,
                thumbnails=self._thumbnails(results, thumbnails[i]),
            ))  # fmt: skip
            # A policy's reference is only valid for its own requests; without a policy, the last method is watched.
            watched = [one for one in results if self._policy is None or (policy and policy.method == one.method)]
            for prediction in watched[-1:]:
                self._watch.add(prediction)
        return answers

    def _read(self, item: PredictRequest) -> Photo:
        return self._encoder.read(item.image, item.fields.seed, max_pixels=self._max_pixels)

    def _encode(
        self, items: Sequence[PredictRequest], reads: Iterable[Photo | CotsError]
    ) -> tuple[list[EncodedPhoto], list[Tensor | None]]:
        """The photos without their views, and the views as small images where they are asked for."""
        photos, thumbnails = [], []
        for item, photo in zip(items, self._encoder.encode(reads, keep_views=True), strict=True):
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

    def to_json(self) -> bytes:
        return self.body().model_dump_json(by_alias=True).encode()

    def body(self) -> PredictAnswer:
        fields, predictions = self.request.fields, self.predictions
        results = []
        for prediction, milliseconds in zip(predictions, self.milliseconds, strict=True):
            shown = {name: getattr(prediction, name) for name in SHOWN}
            top = [TopClass.model_validate({"class": name, "probability": p}) for name, p in prediction.top(fields.top)]
            results.append(MethodResult(**shown, top=top, milliseconds=milliseconds))
        return PredictAnswer(
            image=ImageInfo(name=self.request.name, width=self.size[0], height=self.size[1]),
            model=ModelName(name=self.backbone.name, weights_hash=self.backbone.weights_hash),
            classes=len(fields.classes),
            seed=fields.seed,
            milliseconds=1000 * (time.perf_counter() - self.request.arrived),
            results=results,
            in_list=predictions[0].in_list,
            none_of_these=any(prediction.none_of_these for prediction in predictions),
            agree=len({prediction.label for prediction in predictions}) == 1,
            warnings=self.warnings,
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


class TaskCache:
    """Tasks of one backbone by class list and template; drops the least recently used above `limit` bytes."""

    def __init__(self, backbone: Backbone, limit: int) -> None:
        self.backbone, self.limit = replace(backbone, tokenizer=QuietTokenizer(backbone.tokenizer)), limit
        self._tasks: OrderedDict[tuple[tuple[str, ...], str | tuple[str, ...]], tuple[Task, int]] = OrderedDict()
        self._weights = {p.untyped_storage().data_ptr() for p in backbone.model.state_dict().values()}
        self._dropped, self._lock = 0, threading.Lock()

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def bytes(self) -> int:
        with self._lock:
            return sum(size for _, size in self._tasks.values())

    def get(self, classes: tuple[str, ...], template: str) -> Task:
        """The task, or an ApiError that names the field at fault."""
        with self._lock:
            if (classes, template) in self._tasks:
                self._tasks.move_to_end((classes, template))
                return self._tasks[classes, template][0]
        try:
            check_distinct(classes, self.backbone)
        except DuplicateClass as error:
            raise invalid("classes", "duplicate_class", str(error)) from None
        try:
            task = Task(self.backbone, classes, template)
            task.expect(memory=self.limit // 2)  # with more, it would evict itself
            return task
        except InputError as error:
            try:
                Task(self.backbone, ["a"], template)
            except InputError:
                raise invalid("template", "bad_template", str(error)) from None
            raise invalid("classes", "bad_classes", str(error)) from None

    def put(self, task: Task) -> None:
        """Keep a task at its current size unless it alone exceeds the limit."""
        key = task.classes, task.template
        size = task_bytes(task, self._weights)
        with self._lock:
            self._tasks.pop(key, None)
            if size > self.limit:
                return
            self._tasks[key] = task, size
            while sum(size for _, size in self._tasks.values()) > self.limit:
                self._dropped += self._tasks.popitem(last=False)[1][1]
            if self._dropped > self.limit // 32:
                self._dropped = 0
                return_memory()


def return_memory() -> None:
    """Return free memory to the system; glibc would keep it in fragments between the tensors of cached tasks."""
    with contextlib.suppress(AttributeError, TypeError):  # another C library, Windows
        ctypes.CDLL(None).malloc_trim(0)


class QuietTokenizer:
    """A tokenizer for servers, without its list of trained words, because responses contain those warnings.

    open_clip's tokenizer caches every word; this one clears the cache above `MAX_WORDS` words.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.context_length = getattr(tokenizer, "context_length", None)
        cache = getattr(getattr(tokenizer, "base", tokenizer), "cache", None)
        self._cache: dict[str, Any] | None = cache if isinstance(cache, dict) else None
        self._initial = dict(self._cache or {})

    def __call__(self, texts: Any, context_length: int | None = None) -> Tensor:
        if self._cache is not None and len(self._cache) > len(self._initial) + MAX_WORDS:
            self._cache.clear()
            self._cache.update(self._initial)
        return self._tokenizer(texts, context_length=context_length)


def task_bytes(task: Task, weights: set[int]) -> int:
    """Bytes of the distinct storages that a task keeps alive, without the model's weights."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in _tensors(task, set())}
    return sum(storage.nbytes() for pointer, storage in storages.items() if pointer not in weights)


def _tensors(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """Tensors in containers and in objects of this package, except in the backbone."""
    if isinstance(value, Tensor):
        yield value
    elif id(value) not in seen and not isinstance(value, Backbone):
        seen.add(id(value))
        if type(value).__module__.startswith("cots."):
            value = vars(value)
        if isinstance(value, dict):
            value = list(value.values())
        for one in value if isinstance(value, (list, tuple)) else ():
            yield from _tensors(one, seen)
