"""From photos to features to predictions: the one stream of classifier, server and demo.

    encoder = PhotoEncoder(backbone, ViewSettings(n=64))  # rounds=ROUNDS: as many views as each photo needs
    reads = encoder.read_all(lambda file: encoder.read(file, seed=0), files)
    for batch in batches(encoder.encode(reads), 16):
        predictions = begin_predictions(pipeline, batch)()

Each step takes only what the next one asks for, so few photos are in memory at a time: for a GPU, those that are
encoded together and as many that were read ahead. A photo that cannot be read stays in the stream as its error.
"""

import itertools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
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
from .prompts import Task
from .rounds import Views, enough, most_views, rounds_of, untuned_answer
from .views import ViewMaker, ViewSettings, ViewSource, image_seed, read_image

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


# Photos, or the errors of those that could not be read, and the views of the good ones, if any.
Rendered = tuple[list[Photo | CotsError], ViewSource | None]


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

    @property
    def views_used(self) -> int:
        """The number of views that its prediction is made from."""
        rows = self.features if self.views is None else self.views
        return 0 if rows is None else len(rows)


class PhotoEncoder:
    """Reads photos, makes their views and encodes them.

    - backbone, settings: the model, and how its views are made
    - renderer: see `cots.views.ViewMaker`
    - at_once: photos that are encoded together
    - pixels: keep the views for adapters that take them, and encode only the weak one
    - rounds: encode so many views first, then more of those photos that need them (`cots.rounds`); default: all
    """

    def __init__(
        self,
        backbone: Backbone,
        settings: ViewSettings,
        *,
        renderer: str = "auto",
        at_once: int = 1,
        pixels: bool = False,
        rounds: Sequence[int] = (),
    ) -> None:
        self.backbone, self.at_once, self.pixels = backbone, at_once, pixels
        self.rounds = tuple(rounds) or (settings.n,)
        self.maker = ViewMaker(settings, backbone.device, renderer, threads=torch.get_num_threads())

    def read(self, source: Any, seed: int, **options: Any) -> Photo:
        """Read a photo and draw its views from `seed` and its pixels; options: those of `cots.read_image`.

        Can run in any thread.
        """
        image = read_image(source, **options)
        prepared = self.maker.prepare(image, image_seed(image, seed), later=len(self.rounds) > 1)
        return Photo(image.size, prepared, missing_content(image))

    def read_all(self, read: Callable[[Item], Photo], items: Iterable[Item]) -> Iterator[Photo | CotsError]:
        """`read(item)` or its error for every item, in order; in threads, and ahead, while a GPU renders."""

        def attempt(item: Item) -> Photo | CotsError:
            try:
                return read(item)
            except CotsError as error:
                return error

        # On a CPU, threads would compete with the encoder; for one photo, starting them takes longer than they save.
        if self.maker.renderer != "gpu" or (isinstance(items, Sequence) and len(items) == 1):
            return map(attempt, items)
        return in_threads(attempt, items, ahead=self.at_once)

    def encode(
        self, photos: Iterable[Photo | CotsError], task: Task | None = None, *, keep_views: bool = False
    ) -> Iterator[EncodedPhoto]:
        """Encode photos, `at_once` at a time, in order; task: decides after each round which photos need more views."""
        return self.encode_rendered(self.render(photos), task, keep_views=keep_views)

    def render(self, photos: Iterable[Photo | CotsError]) -> Iterator[Rendered]:
        """Groups of `at_once` photos with the views of the good ones, without waiting for a GPU."""
        for group in batches(photos, self.at_once):
            prepared = [photo.prepared for photo in group if isinstance(photo, Photo)]
            yield group, self.maker.source(prepared) if prepared else None

    def encode_rendered(
        self,
        groups: Iterable[Rendered],
        task: Task | None = None,
        *,
        keep_views: bool = False,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> Iterator[EncodedPhoto]:
        """Encode the photos of `render`.

        waiting: the context in which the host waits for the device to know which photos need more views.
        """
        for group, source in groups:
            good = [photo for photo in group if isinstance(photo, Photo)]
            encoded = iter(self._encode(good, source, task, keep_views, waiting) if source else ())
            for photo in group:
                if isinstance(photo, Photo):
                    yield next(encoded)
                else:
                    yield EncodedPhoto(error=photo)

    def _encode(
        self,
        photos: Sequence[Photo],
        source: ViewSource,
        task: Task | None,
        keep_views: bool,
        waiting: Callable[[], AbstractContextManager[None]],
    ) -> list[EncodedPhoto]:
        """Rounds of encoding, each for the photos that need more views than they have."""
        features: list[list[Tensor]] = [[] for _ in photos]
        views: list[list[Tensor]] = [[] for _ in photos]
        active, before, have = list(range(len(photos))), None, 0
        for target in self.rounds:
            new = source.between(active, have, target)
            encoded = self.backbone.encode_images(new[:, :1] if self.pixels else new)
            for i, row in enumerate(active):
                features[row].append(encoded[i])
                if keep_views or self.pixels:
                    views[row].append(new[i])
            have = target
            if target == self.rounds[-1] or task is None:
                continue
            answer = untuned_answer(torch.stack([_joined(features[row]) for row in active]), task)
            more = ~enough(answer, before, target)
            with waiting():
                needed = more.tolist()
            active, before = [row for row, one in zip(active, needed, strict=True) if one], answer[more]
            if not active:
                break
        found = []
        for photo, own, kept in zip(photos, features, views, strict=True):
            joined = _joined(kept) if kept else None
            found.append(EncodedPhoto(size=photo.size, warning=photo.warning, features=_joined(own), views=joined))
        return found


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def encoder_for(
    backbone: Backbone, views: Views, augmix: bool, batch_size: int, *, renderer: str = "auto", pixels: bool = False
) -> PhotoEncoder:
    """The encoder of photos with a number of views, or with as many as each needs, up to `batch_size` at once."""
    settings = ViewSettings.from_preprocess(backbone.preprocess, n=most_views(views), augmix=augmix)
    rounds = rounds_of(views)
    at_once = backbone.samples_at_once(rounds[0])
    if len(rounds) > 1:  # many together, so that those left in the last rounds still fill a GPU
        at_once = backbone.samples_at_once(rounds[0], batch_size)
    at_once = min(at_once, batch_size)
    return PhotoEncoder(backbone, settings, renderer=renderer, at_once=at_once, pixels=pixels, rounds=rounds)


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of `size` consecutive items; the last may be shorter."""
    items = iter(items)
    while batch := list(itertools.islice(items, size)):
        yield batch


def in_threads(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int | None = None, *, ahead: int = 0
) -> Generator[Result]:
    """`work(item)` for every item, in order, computed ahead in threads; an item's error is raised at its position.

    ahead: at least so many items that the consumer has not asked for, such as those that it takes together.
    """
    count = threads or min(_THREADS, os.cpu_count() or 1)
    ahead = max(ahead, _AHEAD * count)
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(count, thread_name_prefix="cots-views") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > ahead:
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
    good = [photo for photo in photos if photo.error is None]
    by_views: dict[int, list[int]] = {}  # positions in `good`; a batch has one number of views
    for place, photo in enumerate(good):
        by_views.setdefault(photo.views_used, []).append(place)
    parts = []
    for places in by_views.values():
        parts.append((places, _begin_alike(pipeline, [good[place] for place in places], none_below, presence)))

    def finish() -> dict[Method, list[Prediction]]:
        found: dict[tuple[Method, int], Prediction] = {}
        for places, begun in parts:
            for method, results in begun().items():
                for place, prediction in zip(places, results, strict=True):
                    found[method, place] = prediction
        by_method: dict[Method, list[Prediction]] = {}
        for method in pipeline.methods:
            results = [_with_warning(found[method, place], photo.warning) for place, photo in enumerate(good)]
            if policy is not None and policy.method == str(method):
                results = map(policy.apply, results)
            remaining = iter(results)
            by_method[method] = own = []
            for photo in photos:
                if photo.error is None:
                    own.append(next(remaining))
                else:
                    own.append(_failed(pipeline, method, photo.error))
        return by_method

    return finish


def _begin_alike(
    pipeline: Pipeline,
    photos: Sequence[EncodedPhoto],
    none_below: float,
    presence: Callable[[Tensor], list[Presence]] | None,
) -> Callable[[], dict[Method, list[Prediction]]]:
    """`begin_predictions` for photos that were read and have equally many views."""
    task, views_used = pipeline.task, photos[0].views_used
    features_BVD = _stacked([photo.features for photo in photos if photo.features is not None])
    membership_B = in_list(features_BVD, task)
    shown = None if presence is None else presence(presence_scores(features_BVD, task))
    inputs = features_BVD
    if ADAPTERS.info(pipeline.methods[0].adapter).takes == "pixels":
        inputs = _stacked([photo.views for photo in photos if photo.views is not None])
    started = {}
    for method, outcome in pipeline.run(inputs).items():
        about = {"one_view": pipeline.uses_one_view(method), "views_used": views_used}
        started[method] = predictions_of(outcome, task, method, membership_B, none_below, **about)

    def finish() -> dict[Method, list[Prediction]]:
        found = {}
        for method, begun in started.items():
            found[method] = begun()
            if shown is not None:
                found[method] = [replace(one, presence=own) for one, own in zip(found[method], shown, strict=True)]
        return found

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
