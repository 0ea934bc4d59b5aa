"""Resolve a config: the views of each dataset and all settings of each method."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._errors import InputError, UntrainedWordWarning, check_unused
from .._registry import Registry
from ..adapters import ADAPTERS
from ..backbones import Backbone
from ..calibrators import CALIBRATORS, TEXT
from ..data import Dataset
from ..methods import Method
from ..prompts import DEFAULT_TEMPLATE, Task
from ..views import ViewSettings, choose_renderer, sample_seed
from ._timing import TimedPipeline

if TYPE_CHECKING:
    from ._config import RunConfig

VIEWS = 64
OF_TASK = "task"  # alpha: the mean similarity of the task's class names
STREAM_ORDERS = SHUFFLED, LISTED = ("shuffled", "list")
OF_RUN = "run seed"  # seed: that of the run


def resolve(
    config: RunConfig, datasets: Sequence[Dataset], backbone: Backbone, device: torch.device
) -> tuple[dict[str, Any], list[Task]]:
    """The part of the manifest that determines results, in JSON types, and the task of each dataset.

    device: of the computation; the driver of a cluster loads its own copy of the backbone on another device.
    """
    names = [folder_name(dataset) for dataset in datasets]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(
            f"Two datasets are called {min(twice)!r}; names in a run must differ. Rename one or run them separately."
        )
    tasks = [Task(backbone, dataset.classes, template(config, dataset), config.context) for dataset in datasets]
    entries, settings = [], {}
    for name, dataset, task in zip(names, datasets, tasks, strict=True):
        views = view_settings(config, dataset, backbone)
        settings[name] = {str(method): method_settings(config, dataset, method) for method in config.parsed}
        entries.append(
            {
                "name": name,
                "title": dataset.title,
                "n": len(chosen(config, dataset)),
                "limit": limit(config, dataset),
                "classes": dataset.classes,
                "split_hash": dataset.split_hash,
                "views": views.n,
                "augmix": views.augmix,
                "view_settings": asdict(views) | ({"features": dataset.features.sha256} if dataset.features else {}),
                "template": template(config, dataset),
                "context": None if config.context is None else _file_hash(config.context),
                "corrupt": config.corrupt,
                "alpha": task.alpha,
                "average": dataset.protocol.average if dataset.protocol else "own",
            }
        )
    resolved = {
        "model": {"name": backbone.name, "weights_hash": backbone.weights_hash, "precision": backbone.precision},
        "device": device.type,
        "renderer": choose_renderer(config.renderer, device),
        "seeds": config.seeds,
        "methods": config.methods,
        "batch_size": config.batch_size,
        "shard_size": config.shard_size,
        "datasets": entries,
        "settings": settings,
        "plugins": _plugins(config),
    }
    return plain(resolved), tasks


def _plugins(config: RunConfig) -> dict[str, str]:
    """The plug-in hash of each adapter and calibrator that comes from a plug-in."""
    infos = [(registry.kind, registry.info(name)) for method in config.parsed for registry, name in _of(method)]
    return {f"{kind} {info.name}": info.plugin for kind, info in infos if info.plugin}


def _of(method: Method) -> tuple[tuple[Registry[Any], str], ...]:
    return (ADAPTERS, method.adapter), (CALIBRATORS, method.calibrator)


def plain(value: Any) -> Any:
    """`value` in JSON types: tuples become lists, paths and other objects become strings."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def settings_by_part(methods: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Settings by kind and name from settings by method; a part has the same settings in all its methods."""
    found = {}
    for method, settings in methods.items():
        adapter, _, calibrator = method.partition("+")
        found["adapter", adapter] = settings["adapter"]
        found["calibrator", calibrator or "none"] = settings["calibrator"]
    return found


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


def cache_key(config: RunConfig, dataset: Dataset, backbone: Backbone, resolved: Mapping[str, Any]) -> str:
    """The cache key of a dataset's features: equal keys mean equal features, up to the machine's rounding."""
    parts = {
        "cots": version("cots"),
        "weights": backbone.weights_hash,
        "precision": backbone.precision,
        "device": resolved["device"],
        "dataset": dataset.name,  # the seeds of the views depend on the name
        "split": dataset.split_hash,
        "limit": limit(config, dataset),
        "views": asdict(view_settings(config, dataset, backbone)),
    }
    if resolved["renderer"] != "pil":
        parts["renderer"] = resolved["renderer"]
    if config.corrupt is not None:
        parts["corrupt"] = config.corrupt
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


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
        for name, default in (("precision", "float32"), ("template", None), ("context", None)):
            check_unused(name, getattr(config, name), default, f"the text features of {dataset.title}")


def method_settings(config: RunConfig, dataset: Dataset, method: Method) -> dict[str, Any]:
    """All settings of adapter and calibrator: defaults, overridden by the protocol's, then by the config's."""
    adapter = {key: value for key, value in ADAPTERS.settings(method.adapter).items() if key != "state"}
    if "seed" in adapter:
        adapter["seed"] = OF_RUN
    if adapter.get("length", "") is None:  # of the stream
        adapter["length"] = len(chosen(config, dataset))
    if dataset.protocol:
        adapter |= dataset.protocol.settings(method.adapter)
    calibrator = {key: value for key, value in CALIBRATORS.settings(method.calibrator).items() if key not in TEXT}
    if "solver" in calibrator:
        calibrator["solver"] = config.solver
    if calibrator.get("alpha", "") is None:
        calibrator["alpha"] = OF_TASK
    for (registry, name), settings in zip(_of(method), (adapter, calibrator), strict=True):
        given = config.settings.get(name, {})
        registry.check_settings(name, given)
        if "state" in given:
            raise InputError(f"The state of {name} is managed by the run and cannot be set. Omit it.")
        settings |= given
        for key, value in settings.items():
            if value is inspect.Parameter.empty:
                raise InputError(
                    f"{registry.kind} {name!r} needs a value for {key!r}: settings={{{name!r}: {{{key!r}: ...}}}}"
                )
    online = {"stream_order": config.stream_order} if ADAPTERS.info(method.adapter).online else {}
    return {"adapter": adapter, "calibrator": calibrator, **online}


def make_pipeline(settings: Mapping[Method, Any], seed: int, task: Task) -> TimedPipeline:
    """The pipeline of the methods, with the run's seed and the task's alpha filled in."""
    adapters: dict[str, Any] = {}
    calibrators: dict[str, Any] = {}
    for method, parts_of in settings.items():
        adapter, calibrator = dict(parts_of["adapter"]), dict(parts_of["calibrator"])
        if adapter.get("seed") == OF_RUN:
            adapter["seed"] = seed
        if calibrator.get("alpha") == OF_TASK:
            calibrator["alpha"] = task.alpha
        adapters[method.adapter], calibrators[method.calibrator] = adapter, calibrator
    return TimedPipeline(task, settings, adapter_settings=adapters, calibrator_settings=calibrators)


def try_methods(config: RunConfig, datasets: Sequence[Dataset], backbone: Backbone) -> None:
    """Run every method once on a toy task, to report a bad setting before hours of encoding."""
    dataset = datasets[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrainedWordWarning)
        task = Task(backbone, dataset.classes[:3], template(config, dataset), config.context)
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


def _file_hash(file: str | Path) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"context {file} cannot be read ({error.strerror or error}).") from None
