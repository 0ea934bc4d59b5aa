"""Resolve a config: the views of each dataset and all settings of each method."""

from __future__ import annotations

import hashlib
import inspect
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from .._errors import InputError, check_unused
from .._registry import Registry
from ..adapters import ADAPTERS
from ..backbones import Backbone
from ..calibrators import CALIBRATORS, TEXT
from ..data import Dataset
from ..methods import Method
from ..prompts import DEFAULT_TEMPLATE, Task
from ..views import ViewSettings, choose_renderer, sample_seed
from ._config import LISTED, RunConfig
from ._manifest import new_manifest
from ._schema import DatasetEntry, Manifest, MethodSettings, Model, Number, read_as
from ._timing import TimedPipeline

VIEWS = 64


def resolve(
    config: RunConfig, datasets: Sequence[Dataset], backbone: Backbone, tasks: Sequence[Task], device: torch.device
) -> Manifest:
    """The manifest of a run.

    device: of the computation; the driver of a cluster loads its own copy of the backbone on another device.
    """
    names = [folder_name(dataset) for dataset in datasets]
    repeated = sorted(name for name in names if names.count(name) > 1)
    if repeated:
        raise InputError(
            f"Two datasets are called {repeated[0]!r}; names in a run must differ. Rename one or run them separately."
        )
    settings = {}
    for name, dataset in zip(names, datasets, strict=True):
        settings[name] = {str(method): method_settings(config, dataset, method) for method in config.parsed}
    return new_manifest(
        model=Model(name=backbone.name, weights_hash=backbone.weights_hash, precision=backbone.precision),
        device=device.type,
        renderer=choose_renderer(config.renderer, device),
        seeds=config.seeds,
        methods=config.methods,
        batch_size=config.batch_size,
        shard_size=config.shard_size,
        datasets=tuple(_entry(config, dataset, task) for dataset, task in zip(datasets, tasks, strict=True)),
        settings=settings,
        plugins=_plugins(config),
        config=config.options,
    )


def _entry(config: RunConfig, dataset: Dataset, task: Task) -> DatasetEntry:
    views = view_settings(config, dataset, task.backbone)
    stored = asdict(views)
    if dataset.features:
        stored["features"] = dataset.features.sha256
    return DatasetEntry(
        name=folder_name(dataset),
        title=dataset.title,
        n=len(chosen(config, dataset)),
        limit=limit(config, dataset),
        classes=dataset.classes,
        split_hash=dataset.split_hash,
        views=views.n,
        augmix=views.augmix,
        view_settings=stored,
        template=template(config, dataset),
        context=None if config.context is None else _file_hash("context", config.context),
        descriptions=None if config.descriptions is None else _file_hash("descriptions", config.descriptions),
        attributes=None if config.attributes is None else _file_hash("attributes", config.attributes),
        corrupt=config.corrupt,
        alpha=task.alpha,
        average=dataset.protocol.average if dataset.protocol else "own",
    )


def make_task(config: RunConfig, dataset: Dataset, backbone: Backbone) -> Task:
    return Task(backbone, dataset.classes, *prompt(config, dataset))


def _plugins(config: RunConfig) -> dict[str, str]:
    """The plug-in hash of each adapter and calibrator that comes from a plug-in."""
    hashes = {}
    for method in config.parsed:
        for registry, name in _registries(method):
            info = registry.info(name)
            if info.plugin:
                hashes[f"{registry.kind} {info.name}"] = info.plugin
    return hashes


def _registries(method: Method) -> tuple[tuple[Registry[Any], str], ...]:
    return (ADAPTERS, method.adapter), (CALIBRATORS, method.calibrator)


def folder_name(dataset: Dataset) -> str:
    """The dataset's name as a folder name."""
    return re.sub(r"[^\w.-]+", "_", dataset.name).strip(".") or "data"


def limit(config: RunConfig, dataset: Dataset) -> int | None:
    """The limit, or None if it excludes no sample."""
    return None if config.limit is None or config.limit >= len(dataset.samples) else config.limit


def chosen(config: RunConfig, dataset: Dataset) -> Sequence[int]:
    """Indices of the samples to run, in the dataset's order."""
    count = limit(config, dataset)
    return range(len(dataset.samples)) if count is None else dataset.spread(count)


def stream_order(config: RunConfig, dataset: Dataset, seed: int) -> Sequence[int] | None:
    """The order of the samples for online methods, as positions; None means the order of the list."""
    if config.stream_order == LISTED:
        return None
    ids = [dataset.samples[index].id for index in chosen(config, dataset)]
    keys = [sample_seed(seed, dataset.name, "stream order", name) for name in ids]
    return sorted(range(len(ids)), key=keys.__getitem__)


def template(config: RunConfig, dataset: Dataset) -> str:
    return config.template or (dataset.protocol.template if dataset.protocol else DEFAULT_TEMPLATE)


def prompt(config: RunConfig, dataset: Dataset) -> tuple[str, Any, Any, Any]:
    """Template, context, descriptions and attributes: what a `Task` is made with, after backbone and classes."""
    return template(config, dataset), config.context, config.descriptions, config.attributes


def view_settings(config: RunConfig, dataset: Dataset, backbone: Backbone) -> ViewSettings:
    """The config's views, else the protocol's; default: 64 views with AugMix."""
    if dataset.features is not None:
        return ViewSettings.from_preprocess(backbone.preprocess, n=dataset.features.values.shape[1])
    views, augmix = (dataset.protocol.views, dataset.protocol.augmix) if dataset.protocol else (VIEWS, True)
    return ViewSettings.from_preprocess(
        backbone.preprocess,
        n=views if config.views is None else config.views,
        augmix=augmix if config.augmix is None else config.augmix,
    )


def check_features(config: RunConfig, dataset: Dataset, several: bool) -> None:
    """Refuse settings without effect on view features, and methods that need images."""
    if dataset.features is None:
        return
    where = f"the view features of {dataset.title}"
    for name in ("views", "augmix", "cache", "corrupt"):
        check_unused(name, getattr(config, name), None, where)
    check_unused("seeds", config.seeds[1:], (), where)
    if pixels := [m.adapter for m in config.parsed if ADAPTERS.info(m.adapter).takes == "pixels"]:
        raise InputError(f"{pixels[0]} needs images, but {dataset.title} has view features only. Omit {pixels[0]}.")
    if dataset.features.text is not None:
        if several or config.model != "mini":
            remedy = "run it separately" if several else "omit model"
            raise InputError(f"{dataset.title} has its own text features in place of a model; {remedy}.")
        for name in ("precision", "template", "context", "descriptions", "attributes"):
            default = "float32" if name == "precision" else None
            check_unused(name, getattr(config, name), default, f"the text features of {dataset.title}")


def method_settings(config: RunConfig, dataset: Dataset, method: Method) -> MethodSettings:
    """All settings of adapter and calibrator: defaults, overridden by the protocol's, then by the config's,
    then by those in the method's name.

    The seed and alpha are left out, unless the config sets them: they come from the run and from the class names.
    """
    adapter = {key: value for key, value in ADAPTERS.settings(method.adapter).items() if key not in ("state", "seed")}
    if adapter.get("length", "") is None:  # of the stream
        adapter["length"] = len(chosen(config, dataset))
    if dataset.protocol:
        adapter |= dataset.protocol.settings(method.adapter)
    calibrator = {key: value for key, value in CALIBRATORS.settings(method.calibrator).items() if key not in TEXT}
    if "solver" in calibrator:
        calibrator["solver"] = config.solver
    if calibrator.get("alpha", "") is None:
        del calibrator["alpha"]
    own = method.adapter_settings, method.calibrator_settings
    for (registry, name), settings, written in zip(_registries(method), (adapter, calibrator), own, strict=True):
        settings |= {**_given_settings(config, registry, name), **dict(written)}
        for key, value in settings.items():
            if value is inspect.Parameter.empty:
                raise InputError(
                    f"{registry.kind} {name!r} needs a value for {key!r}: settings={{{name!r}: {{{key!r}: ...}}}}"
                )
    order = config.stream_order if ADAPTERS.info(method.adapter).online else None
    return MethodSettings(adapter=adapter, calibrator=calibrator, stream_order=order)


def _given_settings(config: RunConfig, registry: Registry[Any], name: str) -> Mapping[str, Any]:
    """The config's settings of an adapter or calibrator; refuses unknown ones and values of another type."""
    given = config.settings.get(name, {})
    registry.check_settings(name, given)
    if "state" in given:
        raise InputError(f"The state of {name} is managed by the run and cannot be set. Omit it.")
    for key, value in given.items():
        default = registry.settings(name)[key]
        # A whole number as default may stand for any number.
        kind = Number if type(default) in (int, float) else type(default)
        if kind in (Number, bool, str):
            try:
                read_as({f"settings.{name}.{key}": value}, dict[str, kind])
            except ValueError as error:
                raise InputError(f"{error}. Its default is {default!r}.") from None
    return given


def make_pipeline(settings: Mapping[Method, MethodSettings], seed: int, task: Task) -> TimedPipeline:
    """The pipeline of the methods, with the run's seed filled in; it takes alpha from the task."""
    adapters: dict[str, Any] = {}
    calibrators: dict[str, Any] = {}
    for method, chosen in settings.items():
        adapters[method.base] = dict(chosen.adapter)
        if "seed" in ADAPTERS.settings(method.adapter):
            adapters[method.base].setdefault("seed", seed)
        calibrators[method.correction] = dict(chosen.calibrator)
    return TimedPipeline(task, settings, adapter_settings=adapters, calibrator_settings=calibrators)


def try_methods(config: RunConfig, datasets: Sequence[Dataset], backbone: Backbone) -> None:
    """Run every method once on a toy task, to report a bad setting before hours of encoding."""
    dataset = datasets[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the toy task, which has three classes
        task = Task(backbone, dataset.classes[:3], *prompt(config, dataset))
        n = view_settings(config, dataset, backbone).n
        for method in config.parsed:
            inputs = toy_inputs(task, n, ADAPTERS.info(method.adapter).takes)
            make_pipeline({method: method_settings(config, dataset, method)}, 0, task).run(inputs)


def toy_inputs(task: Task, views: int, takes: str) -> torch.Tensor:
    """Random inputs of one sample for an adapter."""
    pixels = takes == "pixels"
    shape = (3, *task.backbone.image_size) if pixels else (task.text_features.shape[1],)
    inputs = torch.randn(1, views, *shape, generator=torch.Generator().manual_seed(0))
    return inputs if pixels else torch.nn.functional.normalize(inputs, dim=-1)


def _file_hash(what: str, file: str | Path) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{what} {file} cannot be read ({error.strerror or error}).") from None
