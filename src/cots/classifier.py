"""Classifier: an image in, a class and a confidence out."""

import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import Any, Protocol, overload

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ._errors import CotsError, InputError, check_one_of, whole_number
from .adapters import ADAPTERS
from .backbones import Backbone, load
from .conformal import Policy
from .methods import Prediction, parse_method, predictions_of
from .novelty import NONE_BELOW, in_list, threshold
from .pipeline import Pipeline, encode_views, read_views
from .prompts import DEFAULT_TEMPLATE, Task, Template, check_distinct, check_prompts
from .views import RENDERERS, ViewMaker, ViewSettings, in_threads

_ALLOW = ", or pass allow_duplicates=True (--allow-duplicates)"


class _File(Protocol):
    def read(self, size: int = ..., /) -> Any: ...


Photo = str | os.PathLike[str] | bytes | bytearray | memoryview | _File | Image.Image | np.ndarray | Tensor


@dataclass(frozen=True)
class _Batch:
    """Consecutive images: the error of each, or None, and the inputs of those without one."""

    errors: list[str | None]
    inputs: Tensor | None

    @property
    def good(self) -> int:
        return self.errors.count(None)


class Classifier:
    """Zero-shot classification with test-time adaptation and a calibrated confidence.

        classifier = cots.Classifier("ViT-B-16/openai", classes=["tabby cat", "golden retriever"])
        prediction = classifier("photo.jpg")
        prediction.label, prediction.confidence

    model, pretrained: a name for `cots.load`, or a Backbone; default: the small embedded `mini`. classes: names, or a
    known list such as "imagenet", whose duplicates are kept. template: one, or several to average if the method tunes
    no context (`cots.Task`). method: `adapter+calibrator`. An image is a path, an open file, encoded bytes, a PIL image
    or an array. One image gives one Prediction, and an unreadable one raises; a list gives a list, in which an
    unreadable image is a Prediction with its `error`. Results depend only on the image, the settings and `seed`, not on
    the order of images; other images of a batch change only the rounding (up to 2e-6). Online methods such as `tda` are
    the exception: their `state` is carried from call to call. renderer: "pil" or "gpu", which differ by at most 1/255;
    default: the GPU, if any. batch_size: images adapted together; default: 1, or 64 on a GPU. ranges: fill
    `Prediction.confidence_range`. reference: images that belong to the classes; they set the threshold of
    `Prediction.none_of_these` so that 5% of such images are below it (`cots.novelty.threshold`). policy: from
    `cots check` with the same settings; it fills `Prediction.label_set` and `abstained`.
    """

    def __init__(
        self,
        model: str | Backbone = "mini",
        classes: str | Sequence[str] = (),
        method: str = "tpt+ecots",
        *,
        pretrained: str | None = None,
        template: Template = DEFAULT_TEMPLATE,
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
        ranges: bool = False,
        reference: Iterable[Any] | None = None,
        policy: Policy | str | Path | None = None,
    ) -> None:
        self.method = parse_method(method)
        self.method.check_settings(adapter_settings or {}, calibrator_settings or {})
        names = check_prompts(classes, template, context)  # before a model is loaded, which takes seconds
        allow_duplicates = allow_duplicates or isinstance(classes, str)
        if not allow_duplicates:
            check_distinct(names, remedy=_ALLOW)
        check_one_of("renderer", renderer, RENDERERS)
        batch_size = None if batch_size is None else whole_number("batch_size", batch_size, 1)
        if isinstance(model, Backbone):
            if device is not None or precision != "float32" or pretrained is not None:
                raise InputError(
                    "pretrained, device and precision have no effect on a loaded Backbone; pass them to cots.load."
                )
            self.backbone = model
        else:
            self.backbone = load(model, pretrained=pretrained, device=device, precision=precision)
        self.task = Task(self.backbone, classes, template, context)
        if not allow_duplicates:
            check_distinct(names, self.backbone, _ALLOW)
        self._pipeline = Pipeline(
            self.task,
            [self.method],
            adapter_settings={self.method.adapter: adapter_settings or {}},
            calibrator_settings={self.method.calibrator: calibrator_settings or {}},
            ranges=ranges,
        )
        self.policy = policy if isinstance(policy, Policy) or policy is None else Policy.load(policy)
        if self.policy is not None:
            self.policy.refuse_other(
                weights_hash=self.backbone.weights_hash, classes=self.task.classes, method=str(self.method),
                template=self.task.template, views=views, augmix=augmix,
                settings={**(adapter_settings or {}), **(calibrator_settings or {})},
            )  # fmt: skip
            if message := self.policy.warning(seed=seed, precision=self.backbone.precision):
                warnings.warn(message, stacklevel=2)
        self.none_below = NONE_BELOW
        self._on_gpu = self.backbone.device.type == "cuda"
        # On a CPU, larger batches only delay the first prediction.
        self.batch_size = batch_size or (64 if self._on_gpu else 1)
        self.view_settings = ViewSettings.from_preprocess(self.backbone.preprocess, n=views, augmix=augmix)
        threads = 1 if self._on_gpu else torch.get_num_threads()
        self._maker = ViewMaker(self.view_settings, self.backbone.device, renderer, threads)
        self.seed = seed
        # A GPU starts with a few images while the rest of the batch is still being read.
        self._encoded_together = self.batch_size
        if self._on_gpu:
            self._encoded_together = min(self.backbone.samples_at_once(views), self.batch_size)
        if reference is not None:
            self.none_below = threshold([one.in_list for one in self.stream(reference) if one.error is None])

    def __repr__(self) -> str:
        return f"Classifier({self.backbone.name!r}, {len(self.task.classes)} classes, method={str(self.method)!r})"

    @property
    def renderer(self) -> str:
        """What renders the views: "pil" or "gpu"."""
        return self._maker.renderer

    @property
    def state(self) -> Any:
        """The state of an online method after the images so far; None for the episodic ones."""
        return self._pipeline.states.get(self.method.adapter)

    @state.setter
    def state(self, value: Any) -> None:
        self._pipeline.states[self.method.adapter] = value

    @overload
    def __call__(self, images: Photo) -> Prediction: ...  # pyright: ignore[reportOverlappingOverload]

    @overload
    def __call__(self, images: Iterable[Any]) -> list[Prediction]: ...

    def __call__(self, images: Any) -> Any:
        """Classify one image, or a list of them."""
        if not _is_many(images):
            return self._begin(_Batch([None], self._inputs([read_views(images, self._maker, self.seed)])))()[0]
        return list(self.stream(images))

    def stream(self, images: Iterable[Any]) -> Iterator[Prediction]:
        """Predictions in the order of `images`, any iterable, as batches finish.

        Only a few batches are in memory at a time; an unreadable image is a Prediction with its `error`.
        """
        if isinstance(images, Sized):
            self.task.linearise(len(images))
        reads = in_threads(self._try, images) if self.renderer == "gpu" else map(self._try, images)
        prepared = Thread(target=self.backbone.prepare_images)
        if not self._on_gpu:  # while the views of the first image are drawn
            prepared.start()

        def encode(group: Sequence[Any]) -> _Batch:
            if prepared.is_alive():
                prepared.join()
            return self._encode(group)

        groups = _gathered(reads, self._encoded_together, lambda read: (int(not isinstance(read, CotsError)), 1))
        encoded = _gathered(map(encode, groups), self.batch_size, lambda batch: (batch.good, len(batch.errors)))
        running = map(self._begin, map(_joined, encoded))
        # One batch behind on a GPU, which works on the next batch while the host reads the results of the last.
        finished = _behind(running, 1 if self._on_gpu else 0)
        return chain.from_iterable(finish() for finish in finished)

    def _try(self, image: Any) -> Any:
        try:
            return read_views(image, self._maker, self.seed)
        except CotsError as error:
            return error

    def _inputs(self, prepared: Sequence[Any]) -> Tensor:
        """The adapter's input: view features (B,V,D), or the views themselves (B,V,3,H,W)."""
        if ADAPTERS.info(self.method.adapter).takes == "pixels":
            return self._maker.render(prepared)
        return encode_views(prepared, self._maker, self.backbone)

    def _encode(self, group: Sequence[Any]) -> _Batch:
        good = [read for read in group if not isinstance(read, CotsError)]
        errors = [str(read) if isinstance(read, CotsError) else None for read in group]
        return _Batch(errors, self._inputs(good) if good else None)

    def _begin(self, batch: _Batch) -> Callable[[], list[Prediction]]:
        """Start on a batch; calling the result waits for its predictions."""
        if batch.inputs is None:
            return lambda: [self._failed(error or "") for error in batch.errors]
        pixels = batch.inputs.ndim == 5  # then only the weak view is encoded, for `in_list`
        features = self.backbone.encode_images(batch.inputs[:, :1]) if pixels else batch.inputs
        membership_B = in_list(features, self.task)
        outcome = self._pipeline.run(batch.inputs)[self.method]
        fetch = predictions_of(outcome, self.task, self.method, membership_B, self.none_below)

        def finish() -> list[Prediction]:
            said = fetch()
            good = iter(said if self.policy is None else map(self.policy.apply, said))
            return [next(good) if error is None else self._failed(error) for error in batch.errors]

        return finish

    def _failed(self, reason: str) -> Prediction:
        nothing = np.full(len(self.task.classes), np.nan, dtype=np.float32)
        return Prediction(
            label=None, confidence=float("nan"), probabilities=nothing, classes=self.task.classes,
            method=str(self.method), error=reason,
        )  # fmt: skip


def _gathered(items: Iterable[Any], size: int, count: Callable[[Any], tuple[int, int]]) -> Iterator[list[Any]]:
    """Consecutive items with `size` good images together, or 2 * size images; count: good and all images of an item."""
    group, good, images = [], 0, 0
    for item in items:
        group.append(item)
        more_good, more = count(item)
        good, images = good + more_good, images + more
        if good >= size or images >= 2 * size:
            yield group
            group, good, images = [], 0, 0
    if group:
        yield group


def _joined(batches: Sequence[_Batch]) -> _Batch:
    inputs = [batch.inputs for batch in batches if batch.inputs is not None]
    return _Batch([error for batch in batches for error in batch.errors], torch.cat(inputs) if inputs else None)


def _behind(items: Iterable[Any], count: int) -> Iterator[Any]:
    """`items`, each yielded once `count` more have been read."""
    held: deque[Any] = deque()
    for item in items:
        held.append(item)
        if len(held) > count:
            yield held.popleft()
    yield from held


def _is_many(images: Any) -> bool:
    """Whether `images` contains images (a list, tuple or iterator) or is one (array, bytes, path, file, PIL image)."""
    one = (str, bytes, bytearray, memoryview, Path, np.ndarray, Tensor, Image.Image, Mapping)
    return isinstance(images, Iterable) and not isinstance(images, one) and not hasattr(images, "read")
