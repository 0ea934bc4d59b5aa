"""From photos to features to predictions: the one stream of classifier, server and demo.

    encoder = PhotoEncoder(backbone, ViewSettings(n=64))
    reads = encoder.read_all(lambda file: encoder.read(file, seed=0), files)
    for batch in batches(encoder.encode(reads), 16):
        predictions = begin_predictions(pipeline, batch)()

Each step takes only what the next one asks for, so a few photos are in memory at a time. A photo that cannot be read
stays in the stream as its error.
"""

import itertools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ._errors import CotsError
from .adaptation import Pipeline
from .adapters import ADAPTERS
from .backbones import Backbone
from .conformal import Policy
from .content import missing_content
from .methods import Method, Prediction, predictions_of
from .novelty import NONE_BELOW, in_list, presence_scores
from .presence import Presence
from .views import ViewMaker, ViewSettings, image_seed, read_image

Item = TypeVar("Item")
Result = TypeVar("Result")

# More threads mostly wait for the interpreter's lock.
_THREADS = 4
_AHEAD = 2  # finished items per thread that may wait for the consumer


@dataclass(frozen=True)
class Photo:
    """A photo that was read: its size (width, height), its views, prepared for rendering, and what is wrong with it."""

    size: tuple[int, int]
    prepared: Any
    warning: str | None = None


# Photos, or the errors of those that could not be read, and the views (B,V,3,H,W) of the good ones, if any.
Rendered = tuple[list[Photo | CotsError], Tensor | None]


@dataclass(frozen=True, kw_only=True)
class EncodedPhoto:
    """A photo that was encoded, or the error of one that could not be read.

    - size: width and height in pixels
    - warning: why it shows nothing that could be recognised
    - features: (V,D) of all views or, if the encoder keeps pixels for the adapter, (1,D) of the weak view
    - views: (V,3,H,W), if kept
    """

    error: CotsError | None = None
    size: tuple[int, int] = (0, 0)
    warning: str | None = None
    features: Tensor | None = None
    views: Tensor | None = None


class PhotoEncoder:
    """Reads photos, makes their views and encodes them.

    - backbone, settings: the model, and how its views are made
    - renderer: see `cots.views.ViewMaker`
    - at_once: photos per pass of the image encoder
    - pixels: keep the views for adapters that take them, and encode only the weak one
    """

    def __init__(
        self,
        backbone: Backbone,
        settings: ViewSettings,
        *,
        renderer: str = "auto",
        at_once: int = 1,
        pixels: bool = False,
    ) -> None:
        self.backbone, self.at_once, self.pixels = backbone, at_once, pixels
        self.maker = ViewMaker(settings, backbone.device, renderer, threads=torch.get_num_threads())

    def read(self, source: Any, seed: int, **options: Any) -> Photo:
        """Read a photo and draw its views from `seed` and its pixels; options: those of `cots.read_image`.

        Can run in any thread.
        """
        image = read_image(source, **options)
        return Photo(image.size, self.maker.prepare(image, image_seed(image, seed)), missing_content(image))

    def read_all(self, read: Callable[[Item], Photo], items: Iterable[Item]) -> Iterator[Photo | CotsError]:
        """`read(item)` or its error for every item, in order; in threads, and ahead, while a GPU renders."""

        def attempt(item: Item) -> Photo | CotsError:
            try:
                return read(item)
            except CotsError as error:
                return error

        if self.maker.renderer == "gpu":
            return in_threads(attempt, items)
        return map(attempt, items)  # on a CPU, threads would compete with the encoder

    def encode(self, photos: Iterable[Photo | CotsError], keep_views: bool = False) -> Iterator[EncodedPhoto]:
        """Encode photos, `at_once` at a time, in order."""
        return self.encode_rendered(self.render(photos), keep_views)

    def render(self, photos: Iterable[Photo | CotsError]) -> Iterator[Rendered]:
        """Groups of `at_once` photos with the views of the good ones, without waiting for a GPU."""
        for group in batches(photos, self.at_once):
            prepared = [photo.prepared for photo in group if isinstance(photo, Photo)]
            yield group, self.maker.render(prepared) if prepared else None

    def encode_rendered(self, groups: Iterable[Rendered], keep_views: bool = False) -> Iterator[EncodedPhoto]:
        """Encode the photos of `render`."""
        for group, views in groups:
            encoded = iter(self._encode([photo for photo in group if isinstance(photo, Photo)], views, keep_views))
            for photo in group:
                if isinstance(photo, Photo):
                    yield next(encoded)
                else:
                    yield EncodedPhoto(error=photo)

    def _encode(self, photos: Sequence[Photo], views: Tensor | None, keep_views: bool) -> Iterator[EncodedPhoto]:
        if views is None:
            return
        features = self.backbone.encode_images(views[:, :1] if self.pixels else views)
        for i, photo in enumerate(photos):
            if keep_views or self.pixels:
                yield EncodedPhoto(size=photo.size, warning=photo.warning, features=features[i], views=views[i])
            else:
                yield EncodedPhoto(size=photo.size, warning=photo.warning, features=features[i])


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of `size` consecutive items; the last may be shorter."""
    items = iter(items)
    while batch := list(itertools.islice(items, size)):
        yield batch


def in_threads(work: Callable[[Item], Result], items: Iterable[Item], threads: int | None = None) -> Generator[Result]:
    """`work(item)` for every item, in order, computed ahead in threads; an item's error is raised at its position."""
    count = threads or min(_THREADS, os.cpu_count() or 1)
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(count, thread_name_prefix="cots-views") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > _AHEAD * count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            # If the consumer stops early, drop the work that has not started.
            for future in waiting:
                future.cancel()


def begin_predictions(
    pipeline: Pipeline,
    photos: Sequence[EncodedPhoto],
    *,
    none_below: float = NONE_BELOW,
    policy: Policy | None = None,
    presence: Callable[[Tensor], list[Presence]] | None = None,
) -> Callable[[], dict[Method, list[Prediction]]]:
    """Start the methods on photos; calling the result waits for a GPU and gives each method's predictions.

    A photo with an error gets a Prediction with that error.

    - none_below: threshold of `Prediction.none_of_these`
    - policy: applied to the predictions of its method
    - presence: what fills `Prediction.presence` from the scores of the photos
    """
    task, features, views = pipeline.task, [], []
    for photo in photos:
        if photo.features is not None:
            features.append(photo.features)
        if photo.views is not None:
            views.append(photo.views)
    shown: list[Presence] = []
    started: dict[Method, Callable[[], list[Prediction]]] = {}
    if features:
        features_BVD = _stacked(features)
        membership_B = in_list(features_BVD, task)
        if presence is not None:
            shown = presence(presence_scores(features_BVD, task))
        takes_pixels = ADAPTERS.info(pipeline.methods[0].adapter).takes == "pixels"
        inputs = _stacked(views) if takes_pixels else features_BVD
        for method, outcome in pipeline.run(inputs).items():
            one_view = pipeline.uses_one_view(method)
            started[method] = predictions_of(outcome, task, method, membership_B, none_below, one_view=one_view)

    good = [photo for photo in photos if photo.error is None]

    def finish() -> dict[Method, list[Prediction]]:
        by_method: dict[Method, list[Prediction]] = {}
        for method in pipeline.methods:
            results = started[method]() if features else []
            results = [_with_warning(one, photo.warning) for one, photo in zip(results, good, strict=True)]
            if policy is not None and policy.method == str(method):
                results = map(policy.apply, results)
            if shown:
                results = [replace(one, presence=found) for one, found in zip(results, shown, strict=True)]
            remaining = iter(results)
            by_method[method] = own = []
            for photo in photos:
                if photo.error is None:
                    own.append(next(remaining))
                else:
                    own.append(_failed(pipeline, method, photo.error))
        return by_method

    return finish


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    if len(rows) == 1:
        return rows[0][None]  # copies nothing
    return torch.stack(list(rows))


def _with_warning(prediction: Prediction, warning: str | None) -> Prediction:
    return prediction if warning is None else replace(prediction, none_of_these=True, warnings=(warning,))


def _failed(pipeline: Pipeline, method: Method, error: CotsError) -> Prediction:
    classes = pipeline.task.classes
    return Prediction(
        label=None,
        confidence=float("nan"),
        probabilities=np.full(len(classes), np.nan, dtype=np.float32),
        classes=classes,
        method=str(method),
        error=str(error),
    )
