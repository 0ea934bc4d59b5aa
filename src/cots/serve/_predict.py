"""From the requests of one class list to their answers: views and encoding once, each adapter and calibrator once."""

from __future__ import annotations

import base64
import io
import os
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from .._errors import InputError
from ..adapters import ADAPTERS, adapt
from ..backbones import Backbone
from ..calibrators import calibrate
from ..classifier import Prediction, predictions_of
from ..methods import Method
from ..prompts import ONE_CLASS, Task, untrained_message
from ..views import (
    ViewSettings,
    choose_renderer,
    draw_plan,
    image_seed,
    read_image,
    render_views,
    render_views_on,
)
from ._errors import ApiError, invalid
from ._settings import ServeSettings
from ._tasks import QuietTokenizer, TaskCache

THUMBNAIL = 96


@dataclass(frozen=True, kw_only=True)
class PredictItem:
    """One checked request."""

    image: bytes = field(repr=False)
    name: str
    classes: tuple[str, ...] = field(repr=False)
    template: str
    methods: tuple[Method, ...]
    top: int = 5
    seed: int = 0
    thumbnails: bool = False
    arrived: float = field(default_factory=time.perf_counter)

    @property
    def key(self) -> Hashable:
        return self.classes, self.template


@dataclass(frozen=True, kw_only=True)
class CallItem:
    """A function to be run in turn, alone."""

    function: Any
    key: None = None


@dataclass(kw_only=True)
class Prepared:
    """A request with the features of its views, and later its results by method."""

    item: PredictItem
    size: tuple[int, int]
    features: Tensor = field(repr=False)
    small: Tensor | None = field(repr=False)
    results: dict[Method, tuple[Prediction, float] | ApiError] = field(default_factory=dict)


class Predictor:
    """The handler of one device: a batch of requests of one class list in, an answer or an error for each out."""

    def __init__(self, backbone: Backbone, settings: ServeSettings, cache_bytes: int) -> None:
        self._given = backbone
        self.backbone = replace(backbone, tokenizer=QuietTokenizer(backbone.tokenizer))
        self.weights_hash = backbone.weights_hash
        self.settings = settings
        self.tasks = TaskCache(self.backbone, cache_bytes)
        self.views = ViewSettings.from_preprocess(backbone.preprocess, n=settings.views, augmix=settings.augmix)
        self._on_device = choose_renderer("auto", backbone.device) == "gpu"
        threads = min(settings.batch_size, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="cots-views")

    def __call__(self, items: Sequence[PredictItem | CallItem]) -> list[Any]:
        if isinstance(items[0], CallItem):
            return [items[0].function()]
        requests = [item for item in items if isinstance(item, PredictItem)]
        classes, template = requests[0].classes, requests[0].template
        try:
            task = self.tasks.get(classes, template)
            warnings = self._warnings(task)
        except ApiError as error:
            return [error] * len(requests)
        prepared: list[Prepared | ApiError] = []
        for item, made in zip(requests, self._pool.map(self._make_views, requests), strict=True):
            prepared.append(made if isinstance(made, ApiError) else self._encode(item, *made))
        self._fill([entry for entry in prepared if isinstance(entry, Prepared)], task)
        self.tasks.put(classes, template, task)
        return [entry if isinstance(entry, ApiError) else self._answer(entry, warnings) for entry in prepared]

    def _make_views(self, item: PredictItem) -> tuple[tuple[int, int], Tensor] | ApiError:
        try:
            pixels = read_image(item.image, max_pixels=self.settings.max_pixels)
        except InputError as error:
            return ApiError(415, "not_an_image", str(error), "image")
        plan = draw_plan((pixels.height, pixels.width), self.views, image_seed(pixels, item.seed))
        if self._on_device:
            return pixels.size, render_views_on(pixels, plan, self.views, self.backbone.device)
        return pixels.size, render_views(pixels, plan, self.views)

    def _encode(self, item: PredictItem, size: tuple[int, int], views: Tensor) -> Prepared:
        # One photo at a time: its views are a batch already, and those of eight photos would be 300 MB.
        features = self.backbone.encode_images(views)
        small = None
        if item.thumbnails:
            small = torch.nn.functional.interpolate(views, size=(THUMBNAIL, THUMBNAIL), mode="area").cpu()
        return Prepared(item=item, size=size, features=features, small=small)

    def _fill(self, entries: list[Prepared], task: Task) -> None:
        """Every method's result for every request that asked for it."""
        methods = list(dict.fromkeys(method for entry in entries for method in entry.item.methods))
        for adapter in dict.fromkeys(method.adapter for method in methods):
            mine = [entry for entry in entries if any(m.adapter == adapter for m in entry.item.methods)]
            started = time.perf_counter()
            try:
                adapted = adapt(adapter, torch.stack([entry.features for entry in mine]), task)
            except InputError as error:
                self._blame(mine, adapter, error, task)
                continue
            spent = time.perf_counter() - started
            for method in (m for m in methods if m.adapter == adapter):
                rows = [i for i, entry in enumerate(mine) if method in entry.item.methods]
                started = time.perf_counter()
                result = calibrate(
                    adapted.logits[rows], adapted.zero_shot_logits[rows], method=method.calibrator, alpha=task.alpha
                )
                own = (time.perf_counter() - started) / len(rows) + spent / len(mine)
                for i, prediction in zip(rows, predictions_of(result, task, method), strict=True):
                    mine[i].results[method] = prediction, 1000 * own

    @staticmethod
    def _blame(entries: list[Prepared], adapter: str, error: InputError, task: Task) -> None:
        # A template without a word before {} leaves the prompt tuners nothing to tune.
        field = "methods" if len(task.initial_context) else "template"
        blame = invalid(field, f"bad_{field}", f"{adapter}: {error}")
        for entry in entries:
            for method in entry.item.methods:
                if method.adapter == adapter:
                    entry.results[method] = blame

    def _warnings(self, task: Task) -> list[str]:
        def find() -> list[str]:
            found = []
            if message := untrained_message(self._given, task.classes, task.template):
                found.append(message)
            if len(task.classes) == 1:
                found.append(ONE_CLASS)
            return found

        return task.constant("serve warnings", find)

    def _answer(self, entry: Prepared, warnings: list[str]) -> Any:
        item = entry.item
        results, chosen = [], {0}
        for method in item.methods:
            found = entry.results[method]
            if isinstance(found, ApiError):
                return found
            prediction, milliseconds = found
            chosen |= set(prediction.views)
            results.append(
                {
                    "method": str(method),
                    "label": prediction.label,
                    "confidence": share(prediction.confidence),
                    "tau": prediction.tau,
                    "alpha": prediction.alpha,
                    "milliseconds": milliseconds,
                    "top": [{"class": name, "probability": share(p)} for name, p in prediction.top(item.top)],
                    "views": list(prediction.views),
                }
            )
        return {
            "image": {"name": item.name, "width": entry.size[0], "height": entry.size[1]},
            "model": {"name": self._given.name, "weights_hash": self.weights_hash},
            "classes": len(item.classes),
            "seed": item.seed,
            "milliseconds": 1000 * (time.perf_counter() - item.arrived),
            "results": results,
            "agree": len({result["label"] for result in results}) == 1,
            "warnings": warnings,
            "thumbnails": [] if entry.small is None else self._thumbnails(entry.small, sorted(chosen)),
        }

    def _thumbnails(self, small: Tensor, chosen: list[int]) -> list[dict[str, Any]]:
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in (self.views.mean, self.views.std))
        found = []
        for view in chosen:
            pixels = ((small[view] * std + mean) * 255).round().clamp(0, 255).byte()
            file = io.BytesIO()
            Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=85)
            found.append({"view": view, "src": "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()})
        return found


def share(value: float) -> float:
    """A probability without the last bit by which a sum of float32 numbers can pass 1."""
    return min(1.0, max(0.0, value))


def offered(adapter: str) -> str | None:
    """None, or why a server does not offer an adapter."""
    if "state" in ADAPTERS.settings(adapter):
        return f"{adapter} is an online method: its answers would depend on other people's images. Use cots predict."
    if ADAPTERS.tag(adapter, "takes", "features") != "features":
        return f"{adapter} tunes the image encoder itself, which is not shared between requests. Use cots predict."
    return None
