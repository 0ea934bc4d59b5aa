"""Setup: a config with its data, model and settings opened, and the jobs that make up the run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from .._files import Location, location
from ..backbones import Backbone, fixed_backbone, load
from ..classes import clean_names
from ..data import Dataset
from ..prompts import Task
from ._binding import Bindings
from ._config import RunConfig
from ._job import Job
from ._manifest import read_manifest
from ._protocol import chosen, folder_name, make_task, method_settings, resolve, stream_order, view_settings
from ._schema import Manifest
from ._shards import features_folder


@dataclass(frozen=True, kw_only=True, eq=False)
class Setup:
    """What a process needs to compute parts of a run. manifest: of this config alone."""

    config: RunConfig
    backbone: Backbone
    datasets: tuple[Dataset, ...]
    manifest: Manifest = field(repr=False)
    tasks: Sequence[Task] = field(repr=False)  # by dataset

    @cached_property
    def folder(self) -> Location:
        return location(self.config.out)

    def jobs(self) -> list[Job]:
        """One job per dataset and seed, with the shard size of an existing run folder."""
        existing = read_manifest(self.folder) or self.manifest
        bindings = Bindings(existing)
        jobs = []
        for dataset, task in zip(self.datasets, self.tasks, strict=True):
            for seed in self.config.seeds:
                jobs.append(self._job(dataset, task, seed, existing.shard_size, bindings))
        return jobs

    def _job(self, dataset: Dataset, task: Task, seed: int, shard_size: int, bindings: Bindings) -> Job:
        config, name = self.config, folder_name(dataset)
        features = features_folder(self.folder, name, seed)
        if config.cache is not None:
            key = Bindings(self.manifest).cache_key(name, dataset.name)
            features = location(config.cache) / f"{name}-{key}" / f"seed{seed}"
        return Job(
            name=name,
            dataset=dataset,
            indices=chosen(config, dataset),
            seed=seed,
            settings={method: method_settings(config, dataset, method) for method in config.parsed},
            task=task,
            view_settings=view_settings(config, dataset, self.backbone),
            folder=self.folder,
            features=features,
            bindings=bindings,
            batch_size=self.manifest.batch_size,
            shard_size=shard_size,
            workers=config.workers,
            renderer=self.manifest.renderer,
            order=stream_order(config, dataset, seed),
            corrupt=config.corrupt,
        )


def open_setup(
    config: RunConfig, datasets: Sequence[Dataset], device: str | None, runs_on: torch.device | None = None
) -> Setup:
    """Load the model and resolve all settings; runs_on: the device of the computation, if not `device`."""
    backbone = config.model
    own = datasets[0].features
    if own is not None and own.text is not None and own.logit_scale is not None:
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        names = clean_names(datasets[0].classes)
        backbone = fixed_backbone(datasets[0].name, names, own.text, own.logit_scale, device)
    elif not isinstance(backbone, Backbone):
        backbone = load(backbone, device=device, precision=config.precision)
    tasks = [make_task(config, dataset, backbone) for dataset in datasets]
    manifest = resolve(config, datasets, backbone, tasks, runs_on or backbone.device)
    return Setup(config=config, backbone=backbone, datasets=tuple(datasets), manifest=manifest, tasks=tasks)
