"""Plan: a config with data opened and settings resolved, ready to run."""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import torch

from .._checked import DamagedFile, read_tensors, verify, write_json
from .._errors import InputError
from .._files import Location, location, make_folder, remove, remove_temporary, remove_tree
from ..backbones import Backbone, fixed_backbone, load
from ..data import Dataset, open_dataset
from ..prompts import Task, check_prompts, clean_names
from ._binding import Bindings
from ._config import Part, RunConfig
from ._features import naming_worker_deaths
from ._job import Job, Progress, is_online, parts, silent
from ._lock import locked, updating_manifest
from ._manifest import DONE, describe, enter, note_environment, read_done, read_manifest
from ._protocol import (
    cache_key,
    check_features,
    chosen,
    folder_name,
    method_settings,
    resolve,
    settings_by_part,
    stream_order,
    template,
    try_methods,
    view_settings,
)
from ._ray import Watch, run_on_ray
from ._run import Run, seeds_text
from ._shards import REMAKE, damaged, features_folder, file_name, present, put_aside


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A run before it starts: data opened, all settings resolved and tried.

    `resolved` is the part of the manifest that determines results; `text()` describes the plan; `run()` executes it.
    """

    config: RunConfig
    backbone: Backbone
    datasets: tuple[Dataset, ...]
    resolved: dict[str, Any] = field(repr=False)
    tasks: Sequence[Task] = field(repr=False)  # by dataset

    @cached_property
    def folder(self) -> Location:
        return location(self.config.out)

    def text(self) -> str:
        """A description of the run with all settings."""
        resolved, model = self.resolved, self.resolved["model"]
        lines = [
            f"model {model['name']}, weights {model['weights_hash'][:12]}, {model['precision']} on "
            f"{resolved['device']}, views by {'PIL' if resolved['renderer'] == 'pil' else 'GPU'}",
            f"methods {', '.join(resolved['methods'])}; {seeds_text(resolved['seeds'])}; "
            f"batches of {resolved['batch_size']}",
        ]
        corrupted = f" of photos with {self.config.corrupt}" if self.config.corrupt else ""
        for entry in resolved["datasets"]:
            lines.append(
                f"{entry['title']}: {entry['n']} samples, {len(entry['classes'])} classes, {entry['views']} views"
                f"{' with AugMix' if entry['augmix'] else ''}{corrupted}, {entry['template']!r}, "
                f"alpha {entry['alpha']:.3f}, split {entry['split_hash'][:12]}"
            )
            for (_, part), settings in settings_by_part(resolved["settings"][entry["name"]]).items():
                if settings:
                    lines.append(f"  {part}: {', '.join(f'{k} {json.dumps(v)}' for k, v in settings.items())}")
        lines += [f"{part}: plug-in {source[:12]}" for part, source in resolved["plugins"].items()]
        if self.part is not None:
            lines.append(f"part: {self.part}")
        if self.config.engine == "ray":
            lines.append(f"engine: Ray, {self.config.worker_demand} per worker")
        return "\n".join(lines)

    def run(self, progress: Progress = silent, watch: Watch = silent, *, retry_failed: bool = False) -> Run:
        """Compute everything that is missing; after an interruption, the same call resumes the run.

        progress: called with (stage, dataset, seed, done, total). watch: called with the `ClusterState` of a cluster.
        retry_failed: recompute the shards that contain errors.
        """
        part = self.part
        if retry_failed and part is not None:
            raise InputError("retry_failed (--retry-failed) is not possible with part. Omit part.")
        make_folder(self.folder)
        new = describe(self.resolved, self.config.as_dict())
        with naming_worker_deaths(RuntimeError), locked(self.folder, part and part.index):
            remove_temporary(self.folder, shared=part is not None)
            if self.config.cache is not None:
                remove_temporary(location(self.config.cache), shared=True)
            with self._updating():
                manifest = enter(self.folder, new)
            jobs = self.jobs()
            own = jobs if part is None else _own_jobs(jobs, part)
            self._set_aside_damaged(own)
            if retry_failed:
                self._forget_failed(jobs)
            unfinished = any(job.missing() for job in jobs)
            if unfinished:
                remove(self.folder / DONE)
                with self._updating():
                    note_environment(self.folder, new)
            if unfinished and self.config.engine == "ray":
                run_on_ray(self, manifest, jobs, progress, watch)
            elif unfinished:
                for job in own:
                    job.run(progress)
            self._finish()
        return Run.open(self.folder)

    def _updating(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.part is None else updating_manifest(self.folder)

    @property
    def part(self) -> Part | None:
        """The part of the run that this process does; None: all of it."""
        return self.config.part  # type: ignore[return-value]

    def unfinished_parts(self) -> list[Part]:
        """The parts that are not done yet."""
        assert self.part is not None
        everyone = [Part(index, self.part.count) for index in range(1, self.part.count + 1)]
        jobs = self.jobs()
        return [part for part in everyone if any(job.missing() for job in _own_jobs(jobs, part))]

    def _set_aside_damaged(self, jobs: Sequence[Job]) -> None:
        """Set aside every damaged shard of `jobs`; damaged features are detected when they are read."""
        try:
            read_done(self.folder)
        except DamagedFile as error:
            put_aside(error)
        for job in jobs:
            for method in job.methods:
                for error in job.damaged(method).values():
                    remove(self.folder / DONE)  # first, so that no reader sees the run as complete
                    put_aside(error)

    def _forget_failed(self, jobs: Sequence[Job]) -> None:
        """Remove every shard that contains an error, and the features of samples that could not be read.

        For an online method, all later shards depend on it and are removed too.
        """
        for job in jobs:
            for method in job.methods:
                records = job.records_of(method)
                failed = _with_errors(records)
                if failed and is_online(method.adapter):
                    failed = {shard for shard in present(records) if shard >= min(failed)}
                self._remove(records, failed)
            for error in damaged(job.features, lambda file, block: verify(file)).values():
                put_aside(error)
            self._remove(job.features, _with_errors(job.features))

    def _remove(self, folder: Location, shards: set[int]) -> None:
        for shard in sorted(shards):
            remove(self.folder / DONE)  # first, so that no reader sees the run as complete
            remove(folder / file_name(shard))

    def _finish(self) -> None:
        run = Run.open(self.folder)
        if run.complete or run.missing():
            return
        remove_tree(self.folder / "state")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(self.folder / DONE, {"finished": now})

    def jobs(self) -> list[Job]:
        """One job per dataset and seed, with the shard size of an existing run folder."""
        config, resolved = self.config, self.resolved
        manifest = read_manifest(self.folder) or resolved
        shard_size, bindings = manifest["shard_size"], Bindings(manifest)
        jobs = []
        for dataset, task in zip(self.datasets, self.tasks, strict=True):
            name, views = folder_name(dataset), view_settings(config, dataset, self.backbone)
            key = cache_key(config, dataset, self.backbone, resolved)[:16]
            jobs += [
                Job(
                    name=name,
                    dataset=dataset,
                    indices=chosen(config, dataset),
                    seed=seed,
                    settings={method: method_settings(config, dataset, method) for method in config.parsed},
                    task=task,
                    view_settings=views,
                    folder=self.folder,
                    features=(
                        features_folder(self.folder, name, seed)
                        if config.cache is None
                        else location(config.cache) / f"{name}-{key}" / f"seed{seed}"
                    ),
                    bindings=bindings,
                    batch_size=resolved["batch_size"],
                    shard_size=shard_size,
                    workers=config.workers,
                    renderer=resolved["renderer"],
                    order=stream_order(config, dataset, seed),
                    corrupt=config.corrupt,
                )
                for seed in config.seeds
            ]
        return jobs


def plan(config: RunConfig) -> Plan:
    """Open the datasets, load the model, resolve all settings and try every method once; writes nothing.

    plan = cots.bench.plan(config)
    print(plan.text())
    run = plan.run()
    """
    opened = []
    for spec in config.datasets:
        given = spec if isinstance(spec, Dataset) else open_dataset(spec, config.data, config.classes)
        if not len(given.samples):
            raise InputError(f"{given.title} has no samples; check its folder or list.")
        for method in config.parsed:  # before a model is loaded, which takes seconds
            method_settings(config, given, method)
        check_prompts(given.classes, template(config, given), config.context)
        check_features(config, given, len(config.datasets) > 1)
        opened.append(given)
    if config.published_names:
        named = [given.with_published_names() for given in opened]
        if named == opened:
            raise InputError("published_names (--published-names) only affects Food101. Omit it.")
        opened = named
    if config.engine == "ray":  # the driver only plans, and leaves the GPUs of its machine to workers
        planned = open_plan(config, opened, "cpu", torch.device(config.device_kind))
    else:
        planned = open_plan(config, opened, config.device)
    try_methods(config, opened, planned.backbone)
    return planned


def open_plan(
    config: RunConfig, datasets: Sequence[Dataset], device: str | None, runs_on: torch.device | None = None
) -> Plan:
    """A plan without trying its methods; runs_on: the device of the computation, if not `device`."""
    backbone = config.model
    own = datasets[0].features
    if own is not None and own.text is not None and own.logit_scale is not None:
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        names = clean_names(datasets[0].classes)
        backbone = fixed_backbone(datasets[0].name, names, own.text, own.logit_scale, device)
    elif not isinstance(backbone, Backbone):
        backbone = load(backbone, device=device, precision=config.precision)
    resolved, tasks = resolve(config, datasets, backbone, runs_on or backbone.device)
    return Plan(config=config, backbone=backbone, datasets=tuple(datasets), resolved=resolved, tasks=tasks)


def run(config: RunConfig, progress: Progress = silent, watch: Watch = silent, *, retry_failed: bool = False) -> Run:
    """Plan and run a benchmark in `config.out`, or resume it without repeating finished work. See `Plan.run`."""
    return plan(config).run(progress, watch, retry_failed=retry_failed)


def _own_jobs(jobs: Sequence[Job], part: Part) -> list[Job]:
    """The share of one part; streams come last, when most of their features exist."""
    groups, streams = (some[part.index - 1 :: part.count] for some in parts(jobs))
    by_job: dict[tuple[str, int], list[Job]] = {}
    for group in groups:
        by_job.setdefault((group.name, group.seed), []).append(group)
    merged = [replace(some[0], only=frozenset().union(*(group.shards for group in some))) for some in by_job.values()]
    return merged + streams


def _with_errors(folder: Location) -> set[int]:
    found = {shard: read_tensors(folder / file_name(shard), (), remedy=REMAKE)[1] for shard in present(folder)}
    return {shard for shard, metadata in found.items() if json.loads(metadata["errors"])}
