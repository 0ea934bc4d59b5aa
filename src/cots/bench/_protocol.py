"""From a config to the settings that really apply: for each dataset its views, for each method its numbers."""

from __future__ import annotations

import hashlib
import inspect
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .._errors import InputError, UntrainedWordWarning
from ..adapters import ADAPTERS, adapt
from ..backbones import Backbone
from ..calibrators import CALIBRATORS, calibrate
from ..calibrators._api import SOLVERS
from ..data import Dataset
from ..methods import Method
from ..prompts import Task
from ..views import ViewSettings, choose_renderer

if TYPE_CHECKING:
    from ._config import RunConfig

TEMPLATE = "a photo of a {}."
VIEWS = 64
OF_TASK = "task"  # alpha: the mean similarity of the task's class names
OF_RUN = "run seed"  # seed: that of the run


def resolve(
    config: RunConfig, datasets: Sequence[Dataset], backbone: Backbone, tasks: dict[str, Task] | None = None
) -> dict[str, Any]:
    """The part of the manifest that decides the results, in JSON's types; `tasks` is filled by dataset."""
    entries, settings = [], {}
    for dataset in datasets:
        name, protocol = folder_name(dataset), dataset.protocol
        views = view_settings(config, dataset, backbone)
        task = Task(backbone, dataset.classes, template(config, dataset), config.context)
        if tasks is not None:
            tasks[name] = task
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
                "view_settings": asdict(views),
                "template": template(config, dataset),
                "context": context_hash(config),
                "alpha": task.alpha,
                "average": protocol.average if protocol else "own",
            }
        )
        settings[name] = {str(m): method_settings(config, dataset, m) for m in config.parsed}
    if len(settings) < len(entries):
        names = [entry["name"] for entry in entries]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(
            f"Two datasets are called {twice!r}; a run needs distinct names. Rename a folder, or run apart."
        )
    return plain(
        {
            "model": {"name": backbone.name, "weights_hash": backbone.weights_hash, "precision": backbone.precision},
            "device": backbone.device.type,
            "renderer": choose_renderer(config.renderer, backbone.device),
            "seeds": config.seeds,
            "methods": config.methods,
            "batch_size": config.batch_size,
            "shard_size": config.shard_size,
            "datasets": entries,
            "settings": settings,
        }
    )


def plain(value: Any) -> Any:
    """`value` in JSON's types: tuples become lists, paths and whatever else is unknown become text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def parts(methods: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Settings by kind and name, from those by method: a part has the same ones in all of its methods.

    >>> parts({"mine+mine": {"adapter": {"a": 1}, "calibrator": {"b": 2}}})
    {('adapter', 'mine'): {'a': 1}, ('calibrator', 'mine'): {'b': 2}}
    """
    found = {}
    for method, settings in methods.items():
        for kind, name in zip(("adapter", "calibrator"), split(method), strict=True):
            found[kind, name] = settings[kind]
    return found


def split(method: str) -> tuple[str, str]:
    """Adapter and calibrator of a method that was parsed before; parsing looks through all installed packages.

    >>> split("tpt+cots"), split("tpt")
    (('tpt', 'cots'), ('tpt', 'none'))
    """
    adapter, _, calibrator = method.partition("+")
    return adapter, calibrator or "none"


def folder_name(dataset: Dataset) -> str:
    """The dataset's name as a folder's."""
    return re.sub(r"[^\w.-]+", "_", dataset.name).strip(".") or "data"


def limit(config: RunConfig, dataset: Dataset) -> int | None:
    """The limit where it leaves samples out, else None."""
    return None if config.limit is None or config.limit >= len(dataset.samples) else config.limit


def chosen(config: RunConfig, dataset: Dataset) -> Sequence[int]:
    """Indices of the samples that are run, in the dataset's order."""
    count = limit(config, dataset)
    return range(len(dataset.samples)) if count is None else dataset.spread(count)


def template(config: RunConfig, dataset: Dataset) -> str:
    return config.template or (dataset.protocol.template if dataset.protocol else TEMPLATE)


def view_settings(config: RunConfig, dataset: Dataset, backbone: Backbone) -> ViewSettings:
    """Of data of your own: 64 views with AugMix, as the fine-grained sets have."""
    views, augmix = (dataset.protocol.views, dataset.protocol.augmix) if dataset.protocol else (VIEWS, True)
    return ViewSettings.from_preprocess(
        backbone.preprocess,
        n=views if config.views is None else config.views,
        augmix=augmix if config.augmix is None else config.augmix,
    )


def context_hash(config: RunConfig) -> str | None:
    if config.context is None:
        return None
    try:
        return hashlib.sha256(Path(config.context).read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"context {config.context} cannot be read ({error.strerror or error}).") from None


def method_settings(config: RunConfig, dataset: Dataset, method: Method) -> dict[str, dict[str, Any]]:
    """Every setting of both parts: the method's defaults, then the protocol's, then the config's."""
    adapter = {key: value for key, value in ADAPTERS.settings(method.adapter).items() if key != "state"}
    if "seed" in adapter:
        adapter["seed"] = OF_RUN
    if dataset.protocol:
        adapter |= dataset.protocol.settings(method.adapter)
    calibrator = CALIBRATORS.settings(method.calibrator)
    if "solver" in calibrator:
        calibrator["solver"] = config.solver
    if calibrator.get("alpha", "") is None:
        calibrator["alpha"] = OF_TASK
    for registry, name, settings in ((ADAPTERS, method.adapter, adapter), (CALIBRATORS, method.calibrator, calibrator)):
        given = config.settings.get(name, {})
        registry.check_settings(name, given)
        if "state" in given:
            raise InputError(f"The state of {name} belongs to the run's stream and cannot be set.")
        settings |= given
        for key, value in settings.items():
            if value is inspect.Parameter.empty:
                raise InputError(
                    f"{registry.kind} {name!r} needs a value for {key!r}: settings={{{name!r}: {{{key!r}: ...}}}}"
                )
    return {"adapter": adapter, "calibrator": calibrator}


def adapter_arguments(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    return {key: seed if key == "seed" and value == OF_RUN else value for key, value in settings.items()}


def calibrator_arguments(settings: dict[str, Any], task: Task) -> dict[str, Any]:
    return {key: task.alpha if key == "alpha" and value == OF_TASK else value for key, value in settings.items()}


def check_solver(solver: str, methods: Sequence[Method]) -> None:
    if solver not in SOLVERS:
        raise InputError(f"solver must be one of {', '.join(SOLVERS)}, not {solver!r}.")
    if solver != SOLVERS[0] and not any("solver" in CALIBRATORS.settings(m.calibrator) for m in methods):
        raise InputError(f"solver={solver!r} has no effect: none of the methods fits a temperature. Leave it out.")


def try_methods(config: RunConfig, datasets: Sequence[Dataset], backbone: Backbone) -> None:
    """Run every method once on a toy task, so that a bad setting is found now and not after hours of encoding."""
    dataset = datasets[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrainedWordWarning)
        task = Task(backbone, dataset.classes[:3], template(config, dataset), config.context)
    generator, n = torch.Generator().manual_seed(0), view_settings(config, dataset, backbone).n
    for method in config.parsed:
        settings = method_settings(config, dataset, method)
        pixels = ADAPTERS.info(method.adapter).takes == "pixels"
        shape = (3, *backbone.image_size) if pixels else (task.text_features.shape[1],)
        inputs = torch.randn(1, n, *shape, generator=generator)
        inputs = inputs if pixels else torch.nn.functional.normalize(inputs, dim=-1)
        adapted = adapt(method.adapter, inputs, task, **adapter_arguments(settings["adapter"], seed=0))
        arguments = calibrator_arguments(settings["calibrator"], task)
        calibrate(adapted.logits, adapted.zero_shot_logits, method=method.calibrator, **arguments)
