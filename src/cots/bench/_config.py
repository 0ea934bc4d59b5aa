"""RunConfig: what to run, on which data, and where to write it; Part: the share of one process."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch

from .._errors import InputError, check_one_of, unknown_name, whole_number
from .._registry import load_plugin
from ..backbones import Backbone
from ..calibrators import CALIBRATORS, SOLVERS
from ..data import Dataset
from ..methods import Method, parse_method
from ..views import RENDERERS, parse_corruption
from ._protocol import SHUFFLED, STREAM_ORDERS, plain

SHARD_SIZE = 64
ENGINES = ("inline", "ray")
_RAY_ONLY = ("ray_address", "gpus_per_worker", "cpus_per_worker", "max_workers", "wait")
_WAIT = 60.0  # seconds


@dataclass(frozen=True)
class Part:
    """Part `index` of `count` of a run, from 1: the share of one of several processes."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From "2/4"."""
        match = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", str(text))
        if match is None or int(match[1]) > int(match[2]):
            raise InputError(f"part must be i/n, such as 1/4 to 4/4, not {text!r}.")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One benchmark run: every method on every dataset with every seed, written to the folder `out`.

    model: a name for `cots.load`, or a Backbone. datasets: protocol names (found below `data`), paths of your own data
    (see `cots.data.open_dataset`; `classes` is the class-name file), or Datasets. methods: `adapter+calibrator`.
    limit: number of samples per dataset, evenly spaced. settings: by adapter or calibrator, such as
    {"ctpt": {"weight": 20}}; they override the protocol's. solver: for calibrators that fit a temperature. views,
    augmix, template: override the protocol's. context: a CoOp checkpoint. published_names: class names as in published
    code, including its mistakes. stream_order: order of the samples for online methods, "shuffled" by seed or "list".
    corrupt: a corruption of ImageNet-C with its severity, such as "gaussian_noise:3", applied before views are made.
    renderer: "pil" or "gpu"; default: the GPU, if any. workers: processes that read images (and make views, with PIL).
    cache: a folder of view features shared between runs. out and cache may be fsspec URLs, such as s3://bucket/run.
    plugins: Python files that register your own methods; resuming with changed files is an error.

    engine: "inline" (this process) or "ray" (a Ray cluster: `ray_address`, RAY_ADDRESS, or a local one).
    gpus_per_worker (fractions allowed), cpus_per_worker, max_workers: resources to request from Ray. wait: seconds to
    wait for them. part: "2/4" for the second of four processes that share the run.

    Results do not depend on data, out, shard_size, workers, cache, engine or part; batch_size (16, or 64 on a GPU)
    changes only the rounding.

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
    published_names: bool = False
    stream_order: str = SHUFFLED
    corrupt: str | None = None
    views: int | None = None
    augmix: bool | None = None
    renderer: str = "auto"
    engine: str = "inline"
    ray_address: str | None = None
    gpus_per_worker: float | None = None
    cpus_per_worker: float | None = None
    max_workers: int | None = None
    wait: float | None = None
    part: Part | str | None = None
    plugins: Sequence[str | Path] = ()

    def __post_init__(self) -> None:
        put = object.__setattr__
        files = [self.plugins] if isinstance(self.plugins, (str, Path)) else self.plugins
        put(self, "plugins", tuple(load_plugin(file) for file in files))
        put(self, "datasets", _several("datasets", self.datasets, "pets,caltech"))
        methods = [str(parse_method(method)) for method in _several("methods", self.methods, "tpt,tpt+cots")]
        seeds = [_seed(seed) for seed in _several("seeds", self.seeds, "0,1,2")]
        put(self, "methods", tuple(dict.fromkeys(methods)))
        put(self, "seeds", tuple(dict.fromkeys(seeds)))
        if not str(self.out):
            raise InputError("out is empty. Name the folder to write the run to, such as runs/first.")
        # With 16 samples, a GPU spends more time waiting for kernel launches than computing.
        by_device = 64 if self.device_kind == "cuda" else 16
        batch = whole_number("batch_size", by_device if self.batch_size is None else self.batch_size, 1)
        size = -(-SHARD_SIZE // batch) * batch
        if self.shard_size is not None and (size := whole_number("shard_size", self.shard_size, 1)) % batch:
            raise InputError(f"shard_size={size} is not a multiple of batch_size={batch}. Omit it or use {batch * 4}.")
        put(self, "batch_size", batch)
        put(self, "shard_size", size)
        for name, least in (("limit", 1), ("views", 1), ("workers", 0), ("max_workers", 1)):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), least)
        if isinstance(self.model, Backbone) and (self.device is not None or self.precision != "float32"):
            raise InputError("device and precision have no effect on a loaded Backbone. Pass them to cots.load.")
        if self.classes is not None and len(self.datasets) != 1:
            raise InputError(
                f"classes applies to one dataset, not to {len(self.datasets)}. Run the datasets separately."
            )
        check_one_of("renderer", self.renderer, RENDERERS)
        check_one_of("engine", self.engine, ENGINES)
        if self.corrupt is not None:
            parse_corruption(self.corrupt)
        check_one_of("stream_order", self.stream_order, STREAM_ORDERS)
        if self.part is not None and not isinstance(self.part, Part):
            put(self, "part", Part.parse(self.part))
        _check_engine(self)
        check_one_of("solver", self.solver, SOLVERS)
        if self.solver != SOLVERS[0] and not any("solver" in CALIBRATORS.settings(m.calibrator) for m in self.parsed):
            raise InputError(f"solver={self.solver!r} has no effect: no method fits a temperature. Omit it.")
        put(self, "settings", _settings(self.settings, self.parsed))

    @classmethod
    def from_toml(cls, path: str | Path, defaults: Mapping[str, Any] | None = None, **overrides: Any) -> Self:
        """A config from a TOML file whose keys are the fields of this class.

        overrides: values that take precedence over the file's, unless None. defaults: values for the other fields.

            model = "ViT-B-16/openai"
            datasets = ["pets", "dtd"]
            methods = ["tpt", "tpt+cots"]
            [settings.ctpt]
            weight = 20.0
        """
        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(
                f"{path} cannot be read ({error.strerror or error}). Check the path of the config."
            ) from None
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
        """The type of device, "cuda" or "cpu": as configured, else the GPU, if any."""
        if isinstance(self.model, Backbone):
            return self.model.device.type
        if self.device is not None:
            return str(self.device).partition(":")[0]
        if self.gpus_per_worker is not None:
            return "cuda" if self.gpus_per_worker else "cpu"
        return "cuda" if torch.cuda.is_available() else "cpu"

    @cached_property
    def parsed(self) -> tuple[Method, ...]:
        """The parsed methods."""
        return tuple(parse_method(method) for method in self.methods)

    @property
    def patience(self) -> float:
        """Seconds to wait for cluster resources."""
        return _WAIT if self.wait is None else self.wait

    @property
    def worker_resources(self) -> tuple[float, float]:
        """CPUs and GPUs per Ray worker: by default one GPU, and CPUs for its torch threads and image readers."""
        gpus = self.gpus_per_worker if self.gpus_per_worker is not None else float(self.device_kind == "cuda")
        busy = max(1, self.workers) if gpus else torch.get_num_threads() + self.workers
        return float(busy if self.cpus_per_worker is None else self.cpus_per_worker), float(gpus)

    @property
    def worker_demand(self) -> str:
        """The resources per Ray worker as text."""
        cpus, gpus = self.worker_resources
        return f"{cpus:g} CPU" + (f" and {gpus:g} GPU" if gpus else "")

    def as_dict(self) -> dict[str, Any]:
        """The config in JSON types."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["model"] = self.model.name if isinstance(self.model, Backbone) else self.model
        del values["part"]  # of one process, not of the run
        values["datasets"] = [d.name if isinstance(d, Dataset) else d for d in self.datasets]
        return plain(values)


def _check_engine(config: RunConfig) -> None:
    for name in _RAY_ONLY:
        value = getattr(config, name)
        if value is None:
            continue
        if config.engine == "inline":
            raise InputError(f"{name} has no effect with engine={config.engine!r}. Omit it or set engine='ray'.")
        if name != "ray_address" and (isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0):
            raise InputError(f"{name} must be a number >= 0, not {value!r}.")
    if config.gpus_per_worker is not None:
        if config.gpus_per_worker > 1:
            raise InputError(f"gpus_per_worker must be at most 1, not {config.gpus_per_worker}: a worker uses one GPU.")
        if (config.device_kind == "cuda") != (config.gpus_per_worker > 0):
            raise InputError(f"gpus_per_worker={config.gpus_per_worker:g} contradicts device={config.device_kind!r}.")
    if config.engine == "ray" and config.part is not None:
        raise InputError(f"part={str(config.part)!r} has no effect with engine='ray', which shares the work. Omit it.")
    if (config.engine == "ray" or config.part is not None) and str(config.out).startswith("memory:"):
        raise InputError(f"{config.out} is private to this process. Several processes need a shared location.")


def _several(name: str, value: Any, example: str) -> tuple[Any, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    elif isinstance(value, (Path, Dataset, int)):
        value = [value]
    if not value:
        raise InputError(f"{name} is empty. Pass at least one, such as {example}.")
    return tuple(value)


def _seed(value: Any) -> int:
    return whole_number("seeds", int(value) if isinstance(value, str) and value.isdigit() else value)


def _settings(given: Any, methods: Sequence[Method]) -> dict[str, dict[str, Any]]:
    """The settings by adapter or calibrator; refuses those that no method of the run uses."""
    if not isinstance(given, Mapping) or not all(isinstance(part, Mapping) for part in given.values()):
        raise InputError(f'settings must be a mapping such as {{"ctpt": {{"weight": 20}}}}, not {given!r}.')
    parts = {part for method in methods for part in (method.adapter, method.calibrator)}
    for part in given:
        if part not in parts:
            raise unknown_name("adapter or calibrator in settings", part, parts, "Others would have no effect.")
    return {part: dict(values) for part, values in given.items()}
