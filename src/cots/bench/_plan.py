"""Plan: a run before it starts, which describes and executes it."""

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from .._checked import DamagedFile, read_tensors, verify, write_json
from .._errors import InputError
from .._files import Location, location, make_folder, remove, remove_temporary, remove_tree
from ..data import Dataset, open_dataset
from ..prompts import check_prompts
from ._config import Part, RunConfig
from ._job import Job, Progress, is_online, silent, units
from ._lock import locked, updating_manifest
from ._manifest import DONE, enter, note_environment, read_done, settings_by_part
from ._protocol import check_features, method_settings, prompt, try_methods
from ._ray import ClusterProgress, run_on_ray
from ._run import Run, seeds_text
from ._schema import DatasetEntry
from ._setup import Setup, open_setup
from ._shards import REMAKE, damaged, file_name, present, set_damaged_aside
from ._views import naming_worker_deaths
from ._walk import run_job

Finished = Callable[..., object]  # called with (run), then with (run, (dataset, seed))


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan(Setup):
    """A run before it starts: data opened, all settings resolved and tried.

    `manifest` has every setting; `text()` describes the plan; `run()` executes it.
    """

    def text(self) -> str:
        """A description of the run with all settings."""
        run, model = self.manifest, self.manifest.model
        lines = [
            f"model {model.name}, weights {model.weights_hash[:12]}, {model.precision} on {run.device}, views by "
            f"{'PIL' if run.renderer == 'pil' else 'GPU'}",
            f"methods {', '.join(run.methods)}; {seeds_text(run.seeds)}; batches of {run.batch_size}",
        ]
        for entry in run.datasets:
            lines += self._dataset_lines(entry)
        lines += [f"{part}: plug-in {source[:12]}" for part, source in run.plugins.items()]
        if self.part is not None:
            lines.append(f"part: {self.part}")
        if self.config.engine == "ray":
            lines.append(f"engine: Ray, {self.config.worker_demand} per worker")
        return "\n".join(lines)

    def _dataset_lines(self, entry: DatasetEntry) -> list[str]:
        augmix = " with AugMix" if entry.augmix else ""
        corrupted = f" of photos with {entry.corrupt}" if entry.corrupt else ""
        lines = [
            f"{entry.title}: {entry.n} samples, {len(entry.classes)} classes, {entry.views} views{augmix}{corrupted}, "
            f"{entry.template!r}, alpha {entry.alpha:.3f}, split {entry.split_hash[:12]}"
        ]
        for (_, part), settings in settings_by_part(self.manifest.settings[entry.name]).items():
            if settings:
                lines.append(f"  {part}: {', '.join(f'{key} {json.dumps(value)}' for key, value in settings.items())}")
        return lines

    def run(
        self,
        progress: Progress = silent,
        watch: ClusterProgress = silent,
        *,
        finished: Finished = silent,
        retry_failed: bool = False,
    ) -> Run:
        """Compute everything that is missing; after an interruption, the same call resumes the run.

        progress: called with (stage, dataset, seed, done, total). watch: called with the `ClusterState` of a cluster.
        finished: called with the run when it begins, then with the run and (dataset, seed) whenever one is done.
        retry_failed: recompute the shards that contain errors.
        """
        part = self.part
        if retry_failed and part is not None:
            raise InputError("retry_failed (--retry-failed) is not possible with part. Omit part.")
        make_folder(self.folder)
        new = self.manifest
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
            begun = Run.open(self.folder)
            finished(begun)
            if unfinished and self.config.engine == "ray":
                run_on_ray(self, manifest, jobs, _announcing(begun, progress, finished), watch)
            elif unfinished:
                for job in own:
                    run_job(job, progress)
                    finished(begun, (job.name, job.seed))
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
            set_damaged_aside(error)
        for job in jobs:
            for method in job.methods:
                for error in job.damaged(method):
                    remove(self.folder / DONE)  # first, so that no reader sees the run as complete
                    set_damaged_aside(error)

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
            for error in damaged(job.features, lambda file, block: verify(file)):
                set_damaged_aside(error)
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


def plan(config: RunConfig) -> Plan:
    """Open the datasets, load the model, resolve all settings and try every method once; writes nothing.

    plan = cots.bench.plan(config)
    print(plan.text())
    run = plan.run()
    """
    datasets = [_open(config, spec) for spec in config.datasets]
    if config.published_names:
        named = [dataset.with_published_names() for dataset in datasets]
        if named == datasets:
            raise InputError("published_names (--published-names) only affects Food101. Omit it.")
        datasets = named
    if config.engine == "ray":  # the driver only plans, and leaves the GPUs of its machine to workers
        setup = open_setup(config, datasets, "cpu", torch.device(config.device_kind))
    else:
        setup = open_setup(config, datasets, config.device)
    try_methods(config, datasets, setup.backbone)
    return Plan(**vars(setup))


def _open(config: RunConfig, spec: str | Path | Dataset) -> Dataset:
    dataset = spec if isinstance(spec, Dataset) else open_dataset(spec, config.data, config.classes)
    if not len(dataset.samples):
        raise InputError(f"{dataset.title} has no samples; check its folder or list.")
    for method in config.parsed:  # before a model is loaded, which takes seconds
        method_settings(config, dataset, method)
    check_prompts(dataset.classes, *prompt(config, dataset))
    check_features(config, dataset, len(config.datasets) > 1)
    return dataset


def run(
    config: RunConfig, progress: Progress = silent, watch: ClusterProgress = silent, *, retry_failed: bool = False
) -> Run:
    """Plan and run a benchmark in `config.out`, or resume it without repeating finished work. See `Plan.run`."""
    return plan(config).run(progress, watch, retry_failed=retry_failed)


def _announcing(run: Run, progress: Progress, finished: Finished) -> Progress:
    """`progress` of a cluster, where a dataset is done when all of its records are written."""

    def report(stage: str, dataset: str, seed: int, done: int, total: int) -> None:
        progress(stage, dataset, seed, done, total)
        if stage == "methods" and done == total:
            finished(run, (dataset, seed))

    return report


def _own_jobs(jobs: Sequence[Job], part: Part) -> list[Job]:
    """The share of one part; streams come last, when most of their features exist."""
    groups, streams = (some[part.index - 1 :: part.count] for some in units(jobs))
    by_job: dict[tuple[str, int], list[Job]] = {}
    for group in groups:
        by_job.setdefault((group.name, group.seed), []).append(group)
    merged = [replace(some[0], only=frozenset().union(*(group.shards for group in some))) for some in by_job.values()]
    return merged + streams


def _with_errors(folder: Location) -> set[int]:
    """The files in `folder` with errors of samples."""
    failed = set()
    for index in present(folder):
        _, metadata = read_tensors(folder / file_name(index), (), remedy=REMAKE)
        if json.loads(metadata["errors"]):
            failed.add(index)
    return failed
