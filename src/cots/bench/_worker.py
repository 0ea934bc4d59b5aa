"""A worker of a cluster: holds the model once, and does the units of work that it is given."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch

from .._errors import CotsError
from .._memory import take_share
from ._config import RunConfig
from ._job import Job, silent
from ._manifest import differences, read_manifest
from ._parts import Unit, do_shards, do_stream, streams
from ._paths import location
from ._plan import open_plan


class Worker:
    """Lives in a process of its own as long as the run; its results go into the run folder and nowhere else."""

    def __init__(self, config: RunConfig, settings: Mapping[str, Any]) -> None:
        """Load the model and check that this machine sees what the driver sees."""
        with contextlib.suppress(OSError):
            os.chdir(settings["folder"])  # relative paths of data and models mean what they mean to the driver
        # A sum's last bit can depend on how many threads share it, and Ray sets its own number.
        torch.set_num_threads(settings["threads"])
        here = f"The worker on {platform.node()}"
        if version("cots") != settings["cots"]:
            raise CotsError(f"{here} has cots {version('cots')}, the driver {settings['cots']}. Install the same one.")
        manifest = read_manifest(location(config.out))
        if manifest is None or manifest["created"] != settings["created"]:
            raise CotsError(
                f"{here} does not see the run in {config.out}. The run folder has to lie on a file system that all "
                "machines share, or behind a URL such as s3://bucket/run."
            )
        device = settings["device"]
        if device == "cuda" and not torch.cuda.is_available():
            raise CotsError(f"{here} finds no GPU although it was given one. Check its driver and its torch.")
        if 0 < settings["gpus"] < 1:
            take_share(settings["gpus"])
        plan = open_plan(config, config.datasets, device)  # type: ignore[arg-type]
        if changed := list(differences(manifest, plan.resolved)):
            raise CotsError(f"{here} would give other results than the driver expects: {'; '.join(changed)}.")
        self._jobs: list[Job] = list(plan.jobs(manifest["shard_size"]))

    def work(self, unit: Unit) -> None:
        """Do what is missing of `unit`."""
        job = self._jobs[unit.job]
        if unit.stream is None:
            do_shards(job, unit.shards, silent)
        else:
            do_stream(streams(job)[unit.stream], silent)
