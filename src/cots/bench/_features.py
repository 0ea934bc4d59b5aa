"""The feature cache: view features in half precision, encoded once per model, dataset and seed."""

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
from safetensors.torch import save
from torch import Tensor

from .._arrays import to_host
from .._errors import CotsError
from ..backbones import Backbone
from ..data import Dataset
from ..views import ViewSettings
from ._files import Location, write_whole
from ._loader import Views, ViewSource
from ._shards import file_name, present, read_tensors

BLOCK = 64  # samples per file, whatever the run's batches and shards: runs that differ in them share a cache


class FeatureCache:
    """View features `(n,V,D)` of the samples of one (model, dataset, seed), in files of 64 samples.

    Samples are encoded alone, or on a GPU in passes of a fixed size: features depend on nothing but the sample itself.
    """

    def __init__(self, folder: Location, source: ViewSource) -> None:
        self.folder, self.source = folder, source
        self._open: tuple[int, Tensor, dict[int, str]] | None = None

    def missing(self, places: Iterable[int]) -> list[int]:
        """The blocks that hold `places` and do not exist yet."""
        return sorted({place // BLOCK for place in places} - present(self.folder))

    def places(self, blocks: Iterable[int]) -> list[int]:
        """The positions of the samples in `blocks`."""
        n = len(self.source.indices)
        return [place for block in blocks for place in range(block * BLOCK, min((block + 1) * BLOCK, n))]

    def fill(self, blocks: Sequence[int], backbone: Backbone, workers: int, advance: Callable[[int], None]) -> None:
        """Encode and write `blocks`; `advance` is called with 1 after every sample."""
        at_once = backbone.samples_at_once(self.source.settings.n) if backbone.device.type == "cuda" else 1
        encoded = _encoded(self.source.stream(self.places(blocks), workers, at_once), at_once, backbone)
        for block in blocks:
            rows: list[Tensor | None] = []
            errors: dict[int, str] = {}
            milliseconds: list[float] = []
            for place in self.places([block]):
                start = time.perf_counter()
                features, error = next(encoded)
                rows.append(features)
                if error is not None:
                    errors[place] = error
                milliseconds.append(1000 * (time.perf_counter() - start))
                advance(1)
            self._write(block, rows, errors, milliseconds)

    def read(self, places: Iterable[int]) -> tuple[list[int], Tensor | None, dict[int, str]]:
        """Positions and features of those of `places` that could be encoded, and the reason for each of the others.

        The features are float32 in memory of their own, so that nothing about the files reaches the results.
        """
        rows: list[Tensor] = []
        good: list[int] = []
        errors: dict[int, str] = {}
        for place in places:
            features, failed = self._block(place // BLOCK)
            if place in failed:
                errors[place] = failed[place]
            else:
                good.append(place)
                rows.append(features[place % BLOCK])
        return good, torch.stack(rows).float() if rows else None, errors

    def _ids(self, block: int) -> list[str]:
        return [self.source.id(place) for place in self.places([block])]

    def _block(self, block: int) -> tuple[Tensor, dict[int, str]]:
        if self._open is None or self._open[0] != block:
            file = self.folder / file_name(block)
            tensors, metadata = read_tensors(file, ["features"], "pt")
            if json.loads(metadata["ids"]) != self._ids(block):
                raise CotsError(f"{file} has other samples. Delete it and re-run the same command to rebuild it.")
            errors = {int(place): text for place, text in json.loads(metadata["errors"]).items()}
            self._open = block, tensors["features"], errors
        return self._open[1], self._open[2]

    def _write(self, block: int, rows: list[Tensor | None], errors: dict[int, str], milliseconds: list[float]) -> None:
        shape = next((row.shape for row in rows if row is not None), (self.source.settings.n, 0))
        features = torch.stack([torch.zeros(shape, dtype=torch.float16) if row is None else row for row in rows])
        metadata = {"ids": json.dumps(self._ids(block)), "errors": json.dumps(errors)}
        data = save({"features": features, "milliseconds": torch.tensor(milliseconds)}, metadata)
        write_whole(self.folder / file_name(block), data)


def cache_key(
    dataset: Dataset, settings: ViewSettings, backbone: Backbone, limit: int | None, device: str, renderer: str = "pil"
) -> str:
    """The name of a dataset's features under a model: equal keys mean equal features, up to the machine's rounding."""
    parts = {
        "cots": version("cots"),
        "weights": backbone.weights_hash,
        "precision": backbone.precision,
        "device": device,
        "dataset": dataset.name,  # the seeds of the views depend on the name
        "split": dataset.split_hash,
        "limit": limit,
        "views": asdict(settings),
    }
    if renderer != "pil":
        parts["renderer"] = renderer
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _encoded(stream: Iterator[Views], size: int, backbone: Backbone) -> Iterator[tuple[Tensor | None, str | None]]:
    """Features or error of each sample, `size` per pass; a GPU starts the next pass while the host takes this one."""
    ahead = 1 if backbone.device.type == "cuda" else 0
    begun: deque[tuple[list[Views], Callable[[], tuple[Tensor, ...]]]] = deque()
    while (some := list(itertools.islice(stream, size))) or begun:
        if some:
            begun.append((some, _begin(some, size, backbone)))
        if not some or len(begun) > ahead:
            yield from _end(*begun.popleft(), backbone.precision)


def _begin(some: Sequence[Views], size: int, backbone: Backbone) -> Callable[[], tuple[Tensor, ...]]:
    """Start to encode one pass; a function that fetches the features of its good samples."""
    pixels = [views.pixels for views in some if views.pixels is not None]
    if not pixels:
        return tuple
    # Always the same number, so that no sample's rounding depends on whether its neighbours could be read.
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
