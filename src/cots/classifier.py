"""Classifier: an image in, a class and a confidence out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ._arrays import to_host
from ._errors import CotsError, InputError
from .adapters import ADAPTERS, adapt
from .backbones import Backbone, load
from .calibrators import CALIBRATORS, Calibrated, calibrate
from .methods import Method, parse_method
from .prompts import Task, duplicate_classes
from .views import (
    Prepared,
    Renderer,
    ViewSettings,
    choose_renderer,
    draw_plan,
    image_seed,
    in_threads,
    prepare,
    read_image,
    render_views,
)

_COLUMNS = ("prediction", "confidence", "probabilities", "tau", "views")


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the classifier says about one image.

    tau: the temperature that was applied; alpha: the weight of the weak view in an ensemble, else None; views: the
    strong views that were selected (Omega). `error` is None, or says why this image could not be read: then there is
    no label and the numbers are NaN.
    """

    label: str | None
    confidence: float
    probabilities: np.ndarray = field(repr=False)
    classes: tuple[str, ...] = field(repr=False)
    tau: float = float("nan")
    alpha: float | None = None
    views: tuple[int, ...] = field(default=(), repr=False)
    method: str = ""
    error: str | None = None

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """The `count` most probable classes with their probabilities; the label comes first."""
        order = sorted(range(len(self.classes)), key=lambda k: (-self.probabilities[k], self.classes[k] != self.label))
        return [(self.classes[k], float(self.probabilities[k])) for k in order[:count]]


class Classifier:
    """Zero-shot classification with test-time adaptation and a calibrated confidence.

        classifier = cots.Classifier("ViT-B-16/openai", classes=["tabby cat", "golden retriever"])
        prediction = classifier("photo.jpg")
        prediction.label, prediction.confidence

    model: a name for `cots.load`, or a Backbone; by default the small embedded `mini`. method: `adapter+calibrator`. An
    image is a path, encoded bytes, a PIL image or an array. One image gives one Prediction and raises on a bad one; a
    list gives a list, in which a bad image is a Prediction with its `error`. The result depends on the image, the
    settings and `seed` alone, never on order or on the other images; the one exception is the online method `tda`,
    whose `state` is carried from call to call. renderer: of the views, "pil" or "gpu" (Triton kernels), which
    agree but for an odd level of 255; by default gpu on a GPU. batch_size: images that are adapted together, 8 or on
    a GPU 64 unless told.
    """

    def __init__(
        self,
        model: str | Backbone = "mini",
        classes: Sequence[str] = (),
        method: str = "tpt+ecots",
        *,
        template: str = "a photo of a {}.",
        context: Tensor | str | Path | None = None,
        views: int = 64,
        augmix: bool = True,
        seed: int = 0,
        device: str | torch.device | None = None,
        precision: str = "float32",
        adapter_settings: Mapping[str, Any] | None = None,
        calibrator_settings: Mapping[str, Any] | None = None,
        allow_duplicates: bool = False,
        batch_size: int | None = None,
        renderer: str = "auto",
    ) -> None:
        self.method = parse_method(method)
        self._adapter_settings = dict(adapter_settings or {})
        self._calibrator_settings = dict(calibrator_settings or {})
        ADAPTERS.check_settings(self.method.adapter, self._adapter_settings)
        CALIBRATORS.check_settings(self.method.calibrator, self._calibrator_settings)
        if isinstance(model, Backbone):
            if device is not None or precision != "float32":
                raise InputError("device and precision belong to cots.load when a Backbone is given.")
            self.backbone = model
        else:
            self.backbone = load(model, device=device, precision=precision)
        self.task = Task(self.backbone, classes, template, context)
        if not allow_duplicates:
            _refuse_duplicates(self.task)
        on_gpu = self.backbone.device.type == "cuda"
        if batch_size is None:
            batch_size = 64 if on_gpu else 8
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, not {batch_size}.")
        self.view_settings = ViewSettings.from_preprocess(self.backbone.preprocess, n=views, augmix=augmix)
        self.renderer = choose_renderer(renderer, self.backbone.device)
        self._render = Renderer(self.view_settings, self.backbone.device) if self.renderer == "gpu" else None
        self.seed = seed
        self.batch_size = batch_size
        self._takes_pixels = ADAPTERS.tag(self.method.adapter, "takes") == "pixels"
        # A GPU begins with a few images while the others of their batch are still being read.
        self._at_once = min(self.backbone.samples_at_once(views), batch_size) if on_gpu else batch_size
        self.state: Any = None

    def __repr__(self) -> str:
        return f"Classifier({self.backbone.name!r}, {len(self.task.classes)} classes, method={str(self.method)!r})"

    def __call__(self, images: Any) -> Any:
        """Classify one image, or a list of them."""
        if not _is_many(images):
            return self._batch(self._inputs([self._read(images)]))()[0]
        return list(self.stream(images))

    def stream(self, images: Iterable[Any]) -> Iterator[Prediction]:
        """Predictions in the order of `images`, which may be any iterator, as batches finish.

        A few batches of images are held at a time; a bad image is a Prediction with its `error`.
        """
        if isinstance(images, Sized):
            self.task.linearise(len(images))
        ready: list[Tensor | Prepared] = []
        inputs: list[Tensor] = []
        waiting: list[Prediction | None] = []
        # On a GPU one batch behind: it goes on with the next one while the host takes the last one's results.
        running: deque[Callable[[], Iterator[Prediction]]] = deque()
        behind = 1 if self.backbone.device.type == "cuda" else 0
        good = 0
        for work in self._read_all(images):
            if isinstance(work, CotsError):
                waiting.append(self._failed(str(work)))
            else:
                ready.append(work)
                waiting.append(None)
                good += 1
            # Bad images fill no batch, but a folder of nothing else must be heard of too.
            full = max(good, len(waiting) // 2) == self.batch_size
            if ready and (full or len(ready) == self._at_once):
                inputs.append(self._inputs(ready))
                ready = []
            if full:
                running.append(self._begin(inputs, waiting))
                inputs, waiting, good = [], [], 0
                while len(running) > behind:
                    yield from running.popleft()()
        if ready:
            inputs.append(self._inputs(ready))
        running.append(self._begin(inputs, waiting))
        for finish in running:
            yield from finish()

    def _begin(self, inputs: list[Tensor], waiting: list[Prediction | None]) -> Callable[[], Iterator[Prediction]]:
        """Begin with a batch; the rest gives its predictions and those of the bad images among it."""
        predictions = self._batch(torch.cat(inputs)) if inputs else list

        def finish() -> Iterator[Prediction]:
            done = iter(predictions())
            for failed in waiting:
                yield next(done) if failed is None else failed

        return finish

    def _read(self, image: Any) -> Tensor | Prepared:
        """The views, or what the device needs to render them."""
        pixels = read_image(image)
        plan = draw_plan((pixels.height, pixels.width), self.view_settings, image_seed(pixels, self.seed))
        if self._render is None:
            return render_views(pixels, plan, self.view_settings)
        return prepare(pixels, plan, self.view_settings, pin=self._render.device.type == "cuda")

    def _read_all(self, images: Iterable[Any]) -> Iterator[Tensor | Prepared | CotsError]:
        def work(image: Any) -> Tensor | Prepared | CotsError:
            try:
                return self._read(image)
            except CotsError as error:
                return error

        return map(work, images) if self._render is None else in_threads(work, images)

    def _inputs(self, works: Sequence[Tensor | Prepared]) -> Tensor:
        """What the adapter takes of some images: the features of their views (B,V,D), or the views (B,V,3,H,W)."""
        if self._render is None:
            views = [work for work in works if isinstance(work, Tensor)]
        else:
            views = self._render.many([work for work in works if isinstance(work, Prepared)])
        pixels = torch.stack(views)
        return pixels if self._takes_pixels else self.backbone.encode_images(pixels)

    def _batch(self, inputs: Tensor) -> Callable[[], list[Prediction]]:
        """Begin with a batch; what comes back waits for it."""
        settings = dict(self._adapter_settings)
        if self.state is not None:
            settings["state"] = self.state
        adapted = adapt(self.method.adapter, inputs, self.task, **settings)
        self.state = adapted.state
        result = calibrate(
            adapted.logits,
            adapted.zero_shot_logits,
            method=self.method.calibrator,
            **{"alpha": self.task.alpha, **self._calibrator_settings},
        )
        fetch = to_host(*(getattr(result, name) for name in _COLUMNS))
        return lambda: predictions_of(
            replace(result, **dict(zip(_COLUMNS, fetch(), strict=True))), self.task, self.method
        )

    def _failed(self, reason: str) -> Prediction:
        nothing = np.full(len(self.task.classes), np.nan, dtype=np.float32)
        return Prediction(
            label=None, confidence=float("nan"), probabilities=nothing, classes=self.task.classes,
            method=str(self.method), error=reason,
        )  # fmt: skip


def predictions_of(result: Calibrated, task: Task, method: Method) -> list[Prediction]:
    """The samples of a batch of calibrated results, with the names of their classes."""
    columns = (getattr(result, name).cpu() for name in _COLUMNS)
    return [
        Prediction(
            label=task.classes[int(prediction)],
            confidence=float(confidence),
            probabilities=probabilities.numpy().copy(),
            classes=task.classes,
            tau=float(tau),
            alpha=result.alpha,
            views=tuple(int(i) for i in views),
            method=str(method),
        )
        for prediction, confidence, probabilities, tau, views in zip(*columns, strict=True)
    ]


def _is_many(images: Any) -> bool:
    """Lists, tuples and iterators hold images; arrays, bytes, paths and PIL images are one."""
    one = (str, bytes, bytearray, memoryview, Path, np.ndarray, Tensor, Image.Image, Mapping)
    return isinstance(images, Iterable) and not isinstance(images, one)


def _refuse_duplicates(task: Task) -> None:
    if same := duplicate_classes(task.backbone, task.classes):
        first, second = (task.classes[place] for place in same)
        told = f"The class {first!r} appears twice" if first == second else f"{first!r} and {second!r} are one class"
        raise InputError(
            f"{told} (positions {same[0]} and {same[1]}), so its probability would be split. "
            "Remove one or make the names distinct, or pass allow_duplicates=True."
        )
