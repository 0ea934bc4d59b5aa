"""From a config to a plan, and from a plan to a run folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from .._errors import InputError
from ..backbones import Backbone, load
from ..data import Dataset, open_dataset
from ..prompts import Task
from ..views import choose_renderer
from ._config import RunConfig
from ._engines import Watch, demand, patience, rank_device, unwatched, worker_device
from ._features import cache_key
from ._files import make_folder, remove, remove_tree, tidy, write_whole
from ._job import Job, Progress, silent
from ._loader import worker_died
from ._lock import locked
from ._manifest import DONE, describe, enter, note_environment, read_manifest, wait_for
from ._paths import Location, location
from ._protocol import chosen, folder_name, limit, method_settings, parts, resolve, try_methods, view_settings
from ._ranks import Rank, do_part, others_missing
from ._retry import forget_failed
from ._run import Run
from ._samples import FOLDER as SAMPLES
from ._samples import list_dataset


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A run before it starts: everything opened, every setting resolved and tried, the disk space counted.

    `resolved` is what stands in the manifest; `text()` is for people; `run()` does it.
    """

    config: RunConfig
    backbone: Backbone
    datasets: tuple[Dataset, ...]
    resolved: dict[str, Any] = field(repr=False)
    tasks: dict[str, Task] = field(repr=False)

    @cached_property
    def folder(self) -> Location:
        return location(self.config.out)

    @cached_property
    def rank(self) -> Rank | None:
        """Which part of the work is this process's; None where it does all of it."""
        return Rank.of_this_process() if self.config.engine == "rank" else None

    @property
    def feature_bytes(self) -> int:
        """Disk space of the view features that are still to be made."""
        return sum(job.unencoded() * job.view_settings.n * self._width * 2 for job in self.jobs(self._shard_size))

    @property
    def record_bytes(self) -> int:
        """Disk space of the records that are still to be made, about."""
        size = 0
        for job in self.jobs(self._shard_size):
            rows = sum(len(job.places(shard)) for shards in job.missing().values() for shard in shards)
            size += rows * (4 * len(job.dataset.classes) + 100)
        return size

    @property
    def free_bytes(self) -> int | None:
        """Free space where the run (or its shared cache) will lie; the smaller of the two; None behind a URL."""
        places = {self.folder, location(self.config.cache or self.folder)}
        return min((_free(place) for place in places if isinstance(place, Path)), default=None)

    def text(self) -> str:
        """What will be run, and what it takes on the disk."""
        resolved, where = self.resolved, self.config.cache or self.folder / "features"
        model, device = resolved["model"], resolved["device"]
        lines = [
            f"model {model['name']}, weights {model['weights_hash'][:12]}, {model['precision']} on {device}, "
            f"views by {'PIL' if resolved['renderer'] == 'pil' else resolved['renderer']}",
            f"methods {', '.join(resolved['methods'])}; seeds {', '.join(map(str, resolved['seeds']))}; "
            f"batches of {resolved['batch_size']}",
        ]
        for entry in resolved["datasets"]:
            lines.append(
                f"{entry['title']}: {entry['n']} samples, {len(entry['classes'])} classes, {entry['views']} views"
                f"{' with AugMix' if entry['augmix'] else ''}, {entry['template']!r}, alpha {entry['alpha']:.3f}, "
                f"split {entry['split_hash'][:12]}"
            )
            for (_, part), settings in parts(resolved["settings"][entry["name"]]).items():
                lines += (
                    [f"  {part}: {', '.join(f'{k} {json.dumps(v)}' for k, v in settings.items())}"] if settings else []
                )
        features, records, free = self.feature_bytes, self.record_bytes, self.free_bytes
        disk = f"disk: {_size(features)} of view features in {where}, {_size(records)} of records in {self.folder}"
        if free is not None:
            disk += f"; {_size(free)} free" + (": NOT ENOUGH" if features + records > free else "")
        lines.append(disk)
        if self.rank is not None:
            lines.append(f"engine: {self.rank.text()}")
        elif self.config.engine == "ray":
            lines.append(f"engine: Ray, {demand(self.config, device)} for each worker")
        return "\n".join(lines)

    def run(self, progress: Progress = silent, watch: Watch = unwatched, *, retry_failed: bool = False) -> Run:
        """Do what is not there yet; killed at any moment, the same call goes on.

        progress: told of each dataset; watch: told of a cluster as a whole. retry_failed: shards with errors in them
        count as not there.
        """
        if retry_failed and self.rank is not None:
            raise InputError(
                "retry_failed (--retry-failed) does not go with ranks, which do not wait for each other: give it once "
                "with engine='inline' or 'ray'."
            )
        try:
            return self._run(progress, watch, retry_failed)
        except RuntimeError as error:
            # torch reports a worker's death from a signal handler: wherever the main process happens to be.
            if (death := worker_died(error)) is None:
                raise
            raise death from error

    def _run(self, progress: Progress, watch: Watch, retry_failed: bool) -> Run:
        make_folder(self.folder)
        new = describe(self.resolved, self.config.as_dict())
        with locked(self.folder, None if self.rank is None else self.rank.index):
            tidy(self.folder, shared=self.rank is not None)
            if self.config.cache is not None and Path(self.config.cache).is_dir():
                tidy(Path(self.config.cache), shared=True)
            leads = self.rank is None or self.rank.index == 0
            manifest = enter(self.folder, new) if leads else wait_for(self.folder, new, patience(self.config))
            jobs = list(self.jobs(manifest["shard_size"]))
            if retry_failed:
                forget_failed(self.folder, jobs)
            if any(job.missing() for job in jobs):
                remove(self.folder / DONE)
                note_environment(self.folder, manifest, new, write=leads)
                if self.rank is not None:
                    do_part(jobs, self.rank, progress)
                elif self.config.engine == "ray":
                    from ._ray import run_on_ray

                    run_on_ray(self, manifest, jobs, progress, watch)
                else:
                    for job in jobs:
                        job.run(progress)
            self._finish()
        return Run.open(self.folder)

    def unfinished(self) -> str:
        """What the other ranks have not done yet, and whether they are at work; empty where nothing is missing."""
        return "" if self.rank is None else others_missing(self.folder, list(self.jobs(self._shard_size)), self.rank)

    def _finish(self) -> None:
        run = Run.open(self.folder)
        if run.complete or any(run.each_missing()):
            return
        for name in ("state", SAMPLES):
            remove_tree(self.folder / name)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        write_whole(self.folder / DONE, json.dumps({"finished": now}).encode())

    @property
    def _shard_size(self) -> int:
        manifest = read_manifest(self.folder)
        return manifest["shard_size"] if manifest else self.resolved["shard_size"]

    @property
    def _width(self) -> int:
        return next(iter(self.tasks.values())).text_features.shape[1]

    def jobs(self, shard_size: int) -> Iterator[Job]:
        """Every dataset under every seed."""
        config = self.config
        for dataset in self.datasets:
            name, views = folder_name(dataset), view_settings(config, dataset, self.backbone)
            features = self.folder / "features" / name
            if config.cache is not None:
                chosen_by = self.resolved["device"], self.resolved["renderer"]
                key = cache_key(dataset, views, self.backbone, limit(config, dataset), *chosen_by)
                features = location(config.cache) / f"{name}-{key[:16]}"
            for seed in config.seeds:
                yield Job(
                    name=name,
                    dataset=dataset,
                    indices=chosen(config, dataset),
                    seed=seed,
                    methods=config.methods,
                    settings={str(m): method_settings(config, dataset, m) for m in config.parsed},
                    task=self.tasks[name],
                    view_settings=views,
                    folder=self.folder,
                    features=features / f"seed{seed}",
                    batch_size=self.resolved["batch_size"],
                    shard_size=shard_size,
                    workers=config.workers,
                    renderer=self.resolved["renderer"],
                )


def plan(config: RunConfig) -> Plan:
    """Open the datasets, load the model, resolve every setting and try every method once; nothing is written.

    plan = cots.bench.plan(config)
    print(plan.text())
    run = plan.run()
    """
    opened = []
    for spec in config.datasets:
        # A driver holds no samples, however many there are.
        opening = list_dataset if config.engine == "ray" else open_dataset
        given = spec if isinstance(spec, Dataset) else opening(spec, root=config.data, classes_file=config.classes)
        if not len(given.samples):
            raise InputError(f"{given.title} has no samples to run on.")
        opened.append(given)
    if config.engine == "ray":
        # The driver only counts and writes the manifest: its own GPU, if any, is left to the workers.
        planned = open_plan(config, opened, device="cpu")
        device = worker_device(config)
        planned.resolved.update(device=device, renderer=choose_renderer(config.renderer, torch.device(device)))
    else:
        planned = open_plan(config, opened, device=rank_device(config))
    try_methods(config, opened, planned.backbone)
    return planned


def open_plan(config: RunConfig, datasets: Sequence[Dataset], device: str | None) -> Plan:
    """A plan whose methods have not been tried: for workers, whose driver has."""
    backbone = config.model
    if not isinstance(backbone, Backbone):
        backbone = load(backbone, device=device, precision=config.precision)
    tasks: dict[str, Task] = {}
    resolved = resolve(config, datasets, backbone, tasks)
    return Plan(config=config, backbone=backbone, datasets=tuple(datasets), resolved=resolved, tasks=tasks)


def run(config: RunConfig, progress: Progress = silent, watch: Watch = unwatched, *, retry_failed: bool = False) -> Run:
    """Run a benchmark into `config.out`, or go on with it; what is finished is never done again.

    progress: called with (stage, dataset, seed, done, total). watch: called with a `ClusterState` where there is one.
    retry_failed: shards with errors in them are done again.

        run = cots.bench.run(cots.bench.RunConfig(data="data", datasets="pets", methods="tpt,tpt+cots", out="runs/x"))
        run.records("pets", "tpt+cots", seed=0).confidence
    """
    return plan(config).run(progress, watch, retry_failed=retry_failed)


def _free(folder: Path) -> int:
    while not folder.is_dir():
        folder = folder.absolute().parent
    return shutil.disk_usage(folder).free


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
