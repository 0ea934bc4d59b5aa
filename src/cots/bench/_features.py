"""The feature cache: view features in half precision, encoded once for a model, a dataset and a seed."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version

import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor

from .._arrays import to_host
from .._errors import CotsError
from ..backbones import Backbone
from ..data import Dataset
from ..views import ViewSettings
from ._files import write_whole
from ._loader import Views, ViewSource
from ._paths import Location
from ._shards import file_name, open_archive, present

BLOCK = 64  # samples a file, whatever the run's batches and shards: runs that differ in them share a cache


class FeatureCache:
    """View features `(n,V,D)` of the samples of one (model, dataset, seed), in files of 64 samples.

    Samples are encoded alone, or on a GPU in passes of a fixed size: features depend on nothing but the sample itself.
    """

    def __init__(self, folder: Location, source: ViewSource, ids: Sequence[str]) -> None:
        self.folder, self.source, self.ids = folder, source, ids
        self._open: tuple[int, Tensor, dict[int, str]] | None = None

    def missing(self, places: Sequence[int]) -> list[int]:
        """The blocks that `places` lie in and that are not there yet."""
        there = present(self.folder)
        return [block for block in sorted({place // BLOCK for place in places}) if block not in there]

    def samples(self, blocks: Iterable[int]) -> int:
        """How many samples `blocks` hold."""
        return sum(len(self._places(block)) for block in blocks)

    def fill(self, blocks: Sequence[int], backbone: Backbone, workers: int, advance: Callable[[int], None]) -> None:
        """Encode and write `blocks`; `advance` is told of every sample."""
        places = [place for block in blocks for place in self._places(block)]
        at_once = backbone.samples_at_once(self.source.settings.n) if backbone.device.type == "cuda" else 1
        encoded = _encoded(self.source.stream(places, workers, at_once), at_once, backbone)
        for block in blocks:
            tensors: list[Tensor | None] = []
            errors: dict[str, str] = {}
            milliseconds: list[float] = []
            for place in self._places(block):
                start = time.perf_counter()
                features, error = next(encoded)
                tensors.append(features)
                if error is not None:
                    errors[str(place)] = error
                milliseconds.append(1000 * (time.perf_counter() - start))
                advance(1)
            self._write(block, tensors, errors, milliseconds)

    def read(self, start: int, stop: int) -> tuple[list[int], Tensor | None, dict[int, str]]:
        """Of the samples from `start` to `stop`: the places and features of the good ones, reasons for the others.

        The features are single precision in memory of their own, so that nothing about the files reaches the results.
        """
        parts: list[Tensor] = []
        places: list[int] = []
        errors: dict[int, str] = {}
        for place in range(start, stop):
            features, broken = self._block(place // BLOCK)
            if place in broken:
                errors[place] = broken[place]
            else:
                places.append(place)
                parts.append(features[place % BLOCK])
        return places, torch.stack(parts).float() if parts else None, errors

    def _places(self, block: int) -> range:
        return range(block * BLOCK, min((block + 1) * BLOCK, len(self.ids)))

    def _block(self, block: int) -> tuple[Tensor, dict[int, str]]:
        if self._open is None or self._open[0] != block:
            file = self.folder / file_name(block)
            try:
                with open_archive(file, "pt") as archive:
                    features = archive.get_tensor("features")
                    metadata = archive.metadata()
                if json.loads(metadata["ids"]) != [self.ids[place] for place in self._places(block)]:
                    raise ValueError("it holds other samples")
                errors = {int(place): text for place, text in json.loads(metadata["errors"]).items()}
            except (OSError, SafetensorError, ValueError, KeyError) as error:
                raise CotsError(
                    f"{file} is damaged ({error}). Delete it and give the same command again: it is made anew."
                ) from error
            self._open = block, features, errors
        return self._open[1], self._open[2]

    def _write(
        self, block: int, tensors: list[Tensor | None], errors: dict[str, str], milliseconds: list[float]
    ) -> None:
        good = [tensor for tensor in tensors if tensor is not None]
        shape = good[0].shape if good else (self.source.settings.n, 0)
        rows = torch.stack([torch.zeros(shape, dtype=torch.float16) if t is None else t for t in tensors])
        metadata = {"ids": json.dumps([self.ids[p] for p in self._places(block)]), "errors": json.dumps(errors)}
        data = save({"features": rows, "milliseconds": torch.tensor(milliseconds)}, metadata)
        write_whole(self.folder / file_name(block), data)


def cache_key(
    dataset: Dataset, settings: ViewSettings, backbone: Backbone, limit: int | None, device: str, renderer: str = "pil"
) -> str:
    """Names the features of a dataset under a model: equal keys mean equal features, up to the machine's rounding."""
    parts = {
        "cots": version("cots"),
        "weights": backbone.weights_hash,
        "precision": backbone.precision,
        "device": device,
        "dataset": dataset.name,  # the views' seeds hold the name
        "split": dataset.split_hash,
        "limit": limit,
        "views": asdict(settings),
    }
    if renderer != "pil":
        parts["renderer"] = renderer
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _encoded(stream: Iterator[Views], size: int, backbone: Backbone) -> Iterator[tuple[Tensor | None, str | None]]:
    """Features or error of each sample, `size` in one pass; a GPU gets the next ones while the host takes these."""
    ahead = 1 if backbone.device.type == "cuda" else 0
    begun: deque[tuple[list[Views], Callable[[], tuple[Tensor, ...]]]] = deque()
    while some := list(itertools.islice(stream, size)):
        begun.append((some, _begin(some, size, backbone)))
        if len(begun) > ahead:
            yield from _end(*begun.popleft(), backbone.precision)
    while begun:
        yield from _end(*begun.popleft(), backbone.precision)


def _begin(some: Sequence[Views], size: int, backbone: Backbone) -> Callable[[], tuple[Tensor, ...]]:
    pixels = [views.pixels for views in some if views.pixels is not None]
    if not pixels:
        return tuple
    # Always as many, so that no sample's rounding depends on whether its neighbours could be read.
    pixels += pixels[-1:] * (size - len(pixels))
    whole = pixels[0] if size == 1 else torch.cat(pixels)
    at_once = None if size == 1 else len(whole)
    return to_host(*backbone.encode_images(whole, batch_size=at_once).split(len(pixels[0])))


def _end(
    some: Sequence[Views], fetch: Callable[[], tuple[Tensor, ...]], precision: str
) -> Iterator[tuple[Tensor | None, str | None]]:
    encoded = iter(fetch())
    for views in some:
        if views.pixels is None:
            yield None, views.error
        elif bool(torch.isfinite(features := next(encoded)).all()):
            yield features.half(), None
        else:
            yield None, f"its features are not finite in {precision}; use precision='float32'."
