"""Where the figures of a run can go: Weights & Biases, MLflow, TensorBoard. Their packages are imported when named."""

import importlib
import json
import os
import re
import time
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from .._checkpoints import one_line
from .._errors import InputError, unknown_name
from ..bench import Run

PROJECT = "cots"  # of W&B, or experiment of MLflow, unless the environment names another
_NAMED = 10


class Logger(Protocol):
    """Where figures go; any object with these methods can be passed to `RunLog`."""

    name: str

    def start(self, run: Run, known: str) -> str:
        """Begin, or continue what an earlier `start` returned for this run ("" the first time)."""
        ...

    def log(self, dataset: str, method: str, seed: int, figures: Mapping[str, float]) -> None:
        """Send the figures of one method on one dataset under one seed; they must have left when this returns."""
        ...

    def close(self, complete: bool) -> None:
        """End, with whether the run is complete."""
        ...


class TensorBoard:
    """Event files in `tensorboard/METHOD` of the run folder: each method is a line in the charts of a dataset."""

    name = "tensorboard"

    def __init__(self) -> None:
        self._module = _import("torch.utils.tensorboard", "tensorboard")
        self._writers: dict[str, Any] = {}

    def start(self, run: Run, known: str) -> str:
        self._folder = str(run.folder / "tensorboard")  # not what is known: the run may have been moved
        if not known:
            text = json.dumps(_described(run), indent=1)
            self._writer("run").add_text("manifest", f"```json\n{text}\n```")
            self._writer("run").flush()
        return self._folder

    def log(self, dataset: str, method: str, seed: int, figures: Mapping[str, float]) -> None:
        writer = self._writer(method)
        for name, value in figures.items():
            writer.add_scalar(f"{dataset}/{name}", value, seed)
        writer.flush()

    def close(self, complete: bool) -> None:
        for writer in self._writers.values():
            writer.close()

    def _writer(self, name: str) -> Any:
        if name not in self._writers:
            self._writers[name] = self._module.SummaryWriter(f"{self._folder}/{name}")
        return self._writers[name]


class WandB:
    """A run of Weights & Biases, in the project of WANDB_PROJECT or `cots`."""

    name = "wandb"

    def __init__(self) -> None:
        self._module = _import("wandb")

    def start(self, run: Run, known: str) -> str:
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self._run = self._module.init(
            project=project, name=run.folder.name, id=known or run.manifest.id or None, resume="allow"
        )
        self._run.config.update(_described(run), allow_val_change=True)
        # Seeds of several datasets repeat, which W&B's own step must not.
        self._run.define_metric("seed")
        self._run.define_metric("*", step_metric="seed")
        return self._run.id

    def log(self, dataset: str, method: str, seed: int, figures: Mapping[str, float]) -> None:
        self._run.log({"seed": seed, **{f"{dataset}/{method}/{name}": value for name, value in figures.items()}})

    def close(self, complete: bool) -> None:
        self._run.finish(exit_code=0 if complete else 1)


class MLflow:
    """A run of MLflow, in the experiment of MLFLOW_EXPERIMENT_NAME or `cots`, where MLFLOW_TRACKING_URI says."""

    name = "mlflow"

    def __init__(self) -> None:
        self._module = _import("mlflow")
        self._metric = _import("mlflow.entities", "mlflow").Metric

    def start(self, run: Run, known: str) -> str:
        self._client = self._module.MlflowClient()
        self._id = known or self._create(run)
        self._client.update_run(self._id, status="RUNNING")
        self._client.log_dict(self._id, _described(run), "manifest.json")
        return self._id

    def log(self, dataset: str, method: str, seed: int, figures: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        metrics = []
        for name, value in figures.items():
            key = re.sub(r"[^\w\-. /]", "_", f"{dataset}/{method}/{name}")  # other characters are refused
            metrics.append(self._metric(key, value, now, seed))
        self._client.log_batch(self._id, metrics=metrics)

    def close(self, complete: bool) -> None:
        self._client.set_terminated(self._id, status="FINISHED" if complete else "KILLED")

    def _create(self, run: Run) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        created = self._client.create_run(experiment, run_name=run.folder.name, tags={"cots.run": run.manifest.id})
        for key, value in _parameters(run).items():
            self._client.log_param(created.info.run_id, key, value)
        return created.info.run_id


LOGGERS = {logger.name: logger for logger in (WandB, MLflow, TensorBoard)}


def logger_of(name: str) -> Logger:
    """The logger of this name; an error says how to install its package."""
    if name not in LOGGERS:
        raise unknown_name("logger", name, LOGGERS)
    return LOGGERS[name]()


def _import(module: str, package: str = "") -> Any:
    package = package or module
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"The logger {package} needs the package {package} ({one_line(error)}). Install it with: pip install "
            f"{package} (or uv run --with {package} cots ...)."
        ) from None


def _parameters(run: Run) -> dict[str, str]:
    """The settings by which runs are compared."""
    manifest = run.manifest
    return {
        "model": manifest.model.name,
        "weights_hash": manifest.model.weights_hash,
        "precision": manifest.model.precision,
        "device": manifest.device,
        "cots": manifest.cots,
        "datasets": ", ".join(run.datasets)[:500],  # the longest that all versions of MLflow take
        "methods": ", ".join(run.methods)[:500],
        "seeds": ", ".join(map(str, run.seeds))[:500],
    }


def _described(run: Run) -> dict[str, Any]:
    """The manifest in JSON types, with only the first names of classes, of which there can be thousands."""
    entries = []
    for entry in run.manifest.datasets:
        entries.append(msgspec.structs.replace(entry, classes=entry.classes[:_NAMED]))
    return msgspec.to_builtins(msgspec.structs.replace(run.manifest, datasets=tuple(entries)))
