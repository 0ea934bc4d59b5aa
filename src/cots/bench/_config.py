"""RunConfig: what to run, on what, and where to."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from .._errors import InputError, unknown_name
from ..backbones import Backbone
from ..data import Dataset
from ..methods import Method, parse_method
from ..views import RENDERERS
from ._paths import is_private, location
from ._protocol import check_solver, plain, resolve

SHARD_SIZE = 64
ENGINES = ("inline", "ray", "rank")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One benchmark run: every method on every dataset with every seed, into the folder `out`.

    model: a name for `cots.load`, or a Backbone. datasets: names of protocols (found below `data`), paths of your own
    data (see `cots.data.open_dataset`; `classes` is their class-name file), or Datasets. methods: `adapter+calibrator`.
    limit: that many samples of each dataset, at even distances. settings: method part -> its settings, such as
    {"ctpt": {"weight": 20}}; they win over the protocol's. solver: of calibrators that fit a temperature.
    views, augmix, template: instead of the protocol's; context: a CoOp checkpoint. renderer: of the views, "pil" or
    "gpu" (Triton kernels); by default gpu on a GPU. workers: processes that read images (and make views,
    where PIL does). cache: a folder for view features that several runs share, instead of the run's own.
    out and cache may be fsspec URLs, such as s3://bucket/run.

    engine: "inline" (this process), "ray" (a Ray cluster: `ray_address`, or RAY_ADDRESS, or one started here) or "rank"
    (this process's part of a job of RANK/WORLD_SIZE or SLURM_PROCID/SLURM_NTASKS). gpus_per_worker (fractions allowed),
    cpus_per_worker, max_workers: what Ray is asked for; wait: seconds until a cluster without room, or a rank 0 that
    does not come, is an error.

    Results depend on none of data, out, shard_size, workers, cache and engine; batch_size (16, on a GPU 64) changes
    them by rounding alone.

    >>> config = RunConfig(datasets="pets,dtd", methods=["tpt+none", "tpt+cots"], out="runs/x", batch_size=24)
    >>> config.datasets, config.methods, config.shard_size
    (('pets', 'dtd'), ('tpt', 'tpt+cots'), 72)
    """

    model: str | Backbone = "mini"
    data: str | Path | None = None
    datasets: Sequence[str | Path | Dataset] = ()
    methods: Sequence[str] = ()
    seeds: Sequence[int] = (0,)
    out: str | Path = ""
    limit: int | None = None
    batch_size: int | None = None
    shard_size: int | None = None
    device: str | None = None
    precision: str = "float32"
    workers: int = 0
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    solver: str = "adam"
    cache: str | Path | None = None
    classes: str | Path | None = None
    template: str | None = None
    context: str | Path | None = None
    views: int | None = None
    augmix: bool | None = None
    renderer: str = "auto"
    engine: str = "inline"
    ray_address: str | None = None
    gpus_per_worker: float | None = None
    cpus_per_worker: float | None = None
    max_workers: int | None = None
    wait: float | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "datasets", _several("datasets", self.datasets, "pets,caltech"))
        put(self, "methods", _distinct(str(parse_method(m)) for m in _several("methods", self.methods, "tpt,tpt+cots")))
        put(self, "seeds", _distinct(_whole("seeds", s, 0) for s in _seeds(self.seeds)))
        if not str(self.out):
            raise InputError("out is empty: give the folder that the run is written to, such as runs/first.")
        # A GPU waits for its next kernel longer than it works on 16 samples.
        by_device = 64 if self.device_kind == "cuda" else 16
        batch = _whole("batch_size", by_device if self.batch_size is None else self.batch_size, 1)
        put(self, "batch_size", batch)
        size = _whole("shard_size", SHARD_SIZE if self.shard_size is None else self.shard_size, 1)
        if self.shard_size is None:
            size = -(-size // batch) * batch
        if size % batch:
            raise InputError(
                f"shard_size must be a multiple of batch_size, so that batches are the same whatever the shards: "
                f"{size} is no multiple of {batch}. Leave shard_size out, or give {batch * 4}."
            )
        put(self, "shard_size", size)
        for name, least in (("limit", 1), ("views", 1), ("workers", 0), ("max_workers", 1)):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), least)
        if isinstance(self.model, Backbone) and (self.device is not None or self.precision != "float32"):
            raise InputError("device and precision belong to cots.load when a Backbone is given.")
        if self.classes is not None and len(self.datasets) != 1:
            raise InputError(
                f"classes names the classes of one dataset; there are {len(self.datasets)}. Run them apart."
            )
        if self.renderer not in RENDERERS:
            raise unknown_name("renderer", self.renderer, RENDERERS)
        _check_engine(self)
        put(self, "settings", _settings(self.settings, self.parsed, self.solver))

    @classmethod
    def from_toml(cls, path: str | Path, defaults: Mapping[str, Any] | None = None, **overrides: Any) -> RunConfig:
        """A config from a TOML file whose keys are the fields above; an override that is not None wins.

        defaults: for fields that neither has.

        model = "ViT-B-16/openai"
        datasets = ["pets", "dtd"]
        methods = ["tpt", "tpt+cots"]
        [settings.ctpt]
        weight = 20.0
        """
        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"config file {path} cannot be read ({error.strerror or error}).") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"config file {path} is not valid TOML: {error}.") from None
        values = {**(defaults or {}), **values, **{key: given for key, given in overrides.items() if given is not None}}
        known = [f.name for f in fields(cls)]
        for key in values:
            if key not in known:
                raise unknown_name(f"key in {path}:", key, known)
        return cls(**values)

    @property
    def device_kind(self) -> str:
        """What the work is done on: as asked for, else a GPU where there is one."""
        if isinstance(self.model, Backbone):
            return self.model.device.type
        if self.device is not None:
            return str(self.device).partition(":")[0]
        if self.gpus_per_worker is not None:
            return "cuda" if self.gpus_per_worker else "cpu"
        return "cuda" if torch.cuda.is_available() else "cpu"

    @cached_property
    def parsed(self) -> tuple[Method, ...]:
        """The methods, in parts."""
        return tuple(parse_method(method) for method in self.methods)

    def as_dict(self) -> dict[str, Any]:
        """The config as given, in types that JSON and TOML have."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["model"] = self.model.name if isinstance(self.model, Backbone) else self.model
        values["datasets"] = [d.name if isinstance(d, Dataset) else d for d in self.datasets]
        return plain(values)

    def resolved(self, datasets: Sequence[Dataset], backbone: Backbone) -> dict[str, Any]:
        """All that decides the results, with every default filled in, as it stands in the run's manifest."""
        return resolve(self, datasets, backbone)


def _check_engine(config: RunConfig) -> None:
    if config.engine not in ENGINES:
        raise unknown_name("engine", config.engine, ENGINES)
    of_ray = ("ray_address", "gpus_per_worker", "cpus_per_worker", "max_workers")
    for name in (*of_ray, "wait"):
        value = getattr(config, name)
        if value is None:
            continue
        if config.engine == "inline" or (config.engine == "rank" and name != "wait"):
            raise InputError(f"{name} has no effect with engine={config.engine!r}; leave it out, or set engine='ray'.")
        if name != "ray_address" and (isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0):
            raise InputError(f"{name} must be a number, 0 or more, not {value!r}.")
    if config.gpus_per_worker and config.gpus_per_worker > 1:
        raise InputError(f"gpus_per_worker must be at most 1, as a worker uses one GPU: not {config.gpus_per_worker}.")
    if config.engine != "inline" and is_private(location(config.out)):
        raise InputError(
            f"{config.out} is one process's memory; engine={config.engine!r} needs a place that all share."
        )


def _several(name: str, value: Any, example: str) -> tuple[Any, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    elif isinstance(value, (Path, Dataset)):
        value = [value]
    if not value:
        raise InputError(f"{name} is empty: name at least one, such as {example}.")
    return tuple(value)


def _seeds(value: Any) -> Sequence[Any]:
    if isinstance(value, str):
        value = [int(part) if part.strip().isdigit() else part for part in value.split(",")]
    if isinstance(value, int):
        value = [value]
    if not value:
        raise InputError("seeds is empty: give at least one, such as 0,1,2.")
    return value


def _distinct(values: Any) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        what = "must be whole numbers" if name.endswith("seeds") else "must be a whole number"
        raise InputError(f"{name} {what}, {least} or more, not {value!r}.")
    return value


def _settings(given: Any, methods: Sequence[Method], solver: str) -> dict[str, dict[str, Any]]:
    """The settings by part; one that no method of the run would read is an error."""
    if not isinstance(given, Mapping) or not all(isinstance(part, Mapping) for part in given.values()):
        raise InputError(
            f'settings maps a method part to its settings, such as {{"ctpt": {{"weight": 20}}}}: not {given!r}.'
        )
    adapters, calibrators = {method.adapter for method in methods}, {method.calibrator for method in methods}
    parts = adapters | calibrators
    for part in given:
        if part in adapters & calibrators:
            raise InputError(
                f"settings of {part!r}: both an adapter and a calibrator of this run have that name, so that it is not "
                "clear which is meant. Register one of them under another name, or run them apart."
            )
        if part not in parts:
            raise unknown_name("method part in settings", part, parts, "Others would have no effect.")
    check_solver(solver, methods)
    return {part: dict(values) for part, values in given.items()}
