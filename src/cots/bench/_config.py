"""RunConfig: what to run, on which data, and where to write it; Part: the share of one process."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from msgspec.structs import asdict, force_setattr, replace

from .._errors import InputError, check_one_of, unknown_name
from .._notation import split_methods
from .._registry import load_plugin
from ..backbones import Backbone
from ..calibrators import CALIBRATORS, SOLVERS
from ..data import PROTOCOLS, Dataset
from ..methods import Method, check_attributes, parse_method
from ..views import RENDERERS, parse_corruption
from ._schema import CommonOptions, RunOptions, plain, read_as

SHARD_SIZE = 64
ENGINES = ("inline", "ray")
STREAM_ORDERS = SHUFFLED, LISTED = ("shuffled", "list")
_RAY_ONLY = ("ray_address", "gpus_per_worker", "cpus_per_worker", "max_workers", "wait")
_WAIT = 60.0  # seconds
_LARGEST_FILE = 2**20  # bytes of a config; the parser takes seconds for a line of some megabytes


@dataclass(frozen=True)
class Part:
    """Part `index` of `count` of a run, from 1: the share of one of several processes."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From "2/4"."""
        match = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text)
        if match is None or int(match[1]) > int(match[2]):
            raise InputError(f"part must be i/n, such as 1/4 to 4/4, not {text!r}.")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


class RunConfig(CommonOptions, frozen=True, kw_only=True):
    """One benchmark run: every method on every dataset with every seed, written to the folder `out`.

    What to run:

    - model: a name for `cots.load`, or a Backbone.
    - data: the folder that contains the datasets of the protocols.
    - datasets: protocol names, paths of your own data (see `cots.data.open_dataset`), or Datasets.
    - classes: the class-name file of your own data.
    - methods: `adapter+calibrator`, with settings where they differ, such as `tpt(steps=2)+cots(k=4)`.
    - seeds: of the views.
    - limit: number of samples per dataset, evenly spaced.
    - plugins: Python files that register your own methods; resuming with changed files is an error.

    How, which changes results:

    - settings: by adapter or calibrator, such as {"ctpt": {"weight": 20}}; they override the protocol's, and those in
      the name of a method override them.
    - solver: for calibrators that fit a temperature.
    - views, augmix, template: override the protocol's.
    - context: a CoOp checkpoint.
    - descriptions, attributes: JSON files of sentences about each class, and of words for `tca` (`cots.Task`).
    - published_names: class names as in published code, including its mistakes.
    - stream_order: order of the samples for online methods, "shuffled" by seed or "list".
    - corrupt: a corruption of ImageNet-C with its severity, such as "gaussian_noise:3", applied before views are made.
    - renderer: "pil" or "gpu"; default: the GPU, if any.
    - device, precision: of the model.
    - batch_size: 16, or 64 on a GPU; it changes only the rounding.

    Where, which does not:

    - out: the run folder; like `cache`, it may be an fsspec URL, such as s3://bucket/run.
    - cache: a folder of view features shared between runs.
    - workers: processes that read images (and make views, with PIL).
    - shard_size: samples per file of records.
    - engine: "inline" (this process) or "ray" (a Ray cluster: `ray_address`, RAY_ADDRESS, or a local one).
    - gpus_per_worker (fractions allowed), cpus_per_worker, max_workers: resources to request from Ray.
    - wait: seconds to wait for them.
    - part: "2/4" for the second of four processes that share the run.

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
    cache: str | Path | None = None
    classes: str | Path | None = None
    context: str | Path | None = None
    descriptions: str | Path | None = None
    attributes: str | Path | None = None
    part: str | Part | None = None
    plugins: Sequence[str | Path] = ()

    def __post_init__(self) -> None:
        if isinstance(self.methods, str):
            force_setattr(self, "methods", split_methods(self.methods))
        for name in ("datasets", "methods", "seeds", "plugins"):
            force_setattr(self, name, _several(getattr(self, name)))
        force_setattr(self, "seeds", tuple(int(s) if isinstance(s, str) and s.isdigit() else s for s in self.seeds))
        try:
            options = self.options
        except ValueError as error:
            raise InputError(f"{error}. Correct this option, or its line in the config.") from None
        _check_presence(options)
        force_setattr(self, "plugins", tuple(load_plugin(file) for file in options.plugins))
        force_setattr(self, "settings", options.settings)
        force_setattr(self, "methods", _named(options))
        force_setattr(self, "seeds", tuple(dict.fromkeys(options.seeds)))
        if isinstance(self.part, str):
            force_setattr(self, "part", Part.parse(self.part))
        self._set_sizes()
        _check_choices(self)
        _check_engine(self)
        _check_settings(self)

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
        values = {**(defaults or {}), **_read_toml(path)}
        values |= {key: given for key, given in overrides.items() if given is not None}
        for key in values:
            if key not in RunOptions.__struct_fields__:
                raise unknown_name(f"key in {path}:", key, RunOptions.__struct_fields__)
        return cls(**values)

    @property
    def options(self) -> RunOptions:
        """The config in the types of a TOML file; ValueError if a value has another type."""
        values = asdict(self)
        if isinstance(self.model, Backbone):
            values["model"] = self.model.name
        if isinstance(self.part, Part):
            values["part"] = str(self.part)
        values["datasets"] = [item.name if isinstance(item, Dataset) else item for item in self.datasets]
        return read_as(plain(values), RunOptions)

    def replace(self, **changes: Any) -> Self:
        """The config with other values in some fields."""
        return replace(self, **changes)

    @property
    def device_kind(self) -> str:
        """The type of device, "cuda" or "cpu": as configured, else the GPU, if any."""
        if isinstance(self.model, Backbone):
            return self.model.device.type
        if self.device is not None:
            return self.device.partition(":")[0]
        if self.gpus_per_worker is not None:
            return "cuda" if self.gpus_per_worker else "cpu"
        return "cuda" if torch.cuda.is_available() else "cpu"

    @cached_property
    def parsed(self) -> tuple[Method, ...]:
        """The parsed methods."""
        return tuple(parse_method(method, simplify=False) for method in self.methods)

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

    def _set_sizes(self) -> None:
        batch, size = self.batch_size, self.shard_size
        if batch is None:
            # With 16 samples, a GPU spends more time waiting for kernel launches than computing.
            batch = 64 if self.device_kind == "cuda" else 16
        if size is None:
            size = -(-SHARD_SIZE // batch) * batch
        if size % batch:
            raise InputError(f"shard_size={size} is not a multiple of batch_size={batch}. Omit it or use {batch * 4}.")
        force_setattr(self, "batch_size", batch)
        force_setattr(self, "shard_size", size)


def _named(options: RunOptions) -> tuple[str, ...]:
    """The methods as a run names them: once each, without settings at their default.

    A setting that the options or a protocol change is kept, because the method without it would have another value.
    """
    names: dict[str, None] = {}
    for text in options.methods:
        method, overridden = parse_method(text, simplify=False), set()
        for part in (method.adapter, method.calibrator):
            overridden |= {(part, key) for key in options.settings.get(part, {})}
        for protocol in PROTOCOLS.values():
            overridden |= {(method.adapter, key) for key in protocol.settings(method.adapter)}
        if options.solver != SOLVERS[0]:
            overridden.add((method.calibrator, "solver"))
        names[str(method.simplified(overridden))] = None
    return tuple(names)


def _several(value: Any) -> tuple[Any, ...]:
    """A tuple from a sequence, from one value, or from names with commas between them."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(value) if isinstance(value, Iterable) else (value,)


def _read_toml(path: str | Path) -> dict[str, Any]:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}). Check the path of the config.") from None
    if len(data) > _LARGEST_FILE:
        raise InputError(f"{path} has {len(data)} bytes; a config has at most {_LARGEST_FILE}. Check the path.")
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"config file {path} is not valid TOML: {error}.") from None
    except RecursionError:
        raise InputError(f"config file {path} is nested too deeply. Its values are lists and tables at most.") from None


def _check_presence(options: RunOptions) -> None:
    examples = {"datasets": "pets,caltech", "methods": "tpt,tpt+cots", "seeds": "0,1,2"}
    for name, example in examples.items():
        if not getattr(options, name):
            raise InputError(f"{name} is empty. Pass at least one, such as {example}.")
    if not options.out:
        raise InputError("out is empty. Name the folder to write the run to, such as runs/first.")


def _check_choices(config: RunConfig) -> None:
    if isinstance(config.model, Backbone) and (config.device is not None or config.precision != "float32"):
        raise InputError("device and precision have no effect on a loaded Backbone. Pass them to cots.load.")
    if config.classes is not None and len(config.datasets) != 1:
        raise InputError(f"classes applies to one dataset, not to {len(config.datasets)}. Run the datasets separately.")
    check_attributes(config.parsed, config.attributes)
    check_one_of("renderer", config.renderer, RENDERERS)
    check_one_of("engine", config.engine, ENGINES)
    check_one_of("stream_order", config.stream_order, STREAM_ORDERS)
    check_one_of("solver", config.solver, SOLVERS)
    if config.corrupt is not None:
        parse_corruption(config.corrupt)
    fitted = [method for method in config.parsed if "solver" in CALIBRATORS.settings(method.calibrator)]
    if config.solver != SOLVERS[0] and not fitted:
        raise InputError(f"solver={config.solver!r} has no effect: no method fits a temperature. Omit it.")


def _check_engine(config: RunConfig) -> None:
    for name in _RAY_ONLY:
        if getattr(config, name) is not None and config.engine == "inline":
            raise InputError(f"{name} has no effect with engine={config.engine!r}. Omit it or set engine='ray'.")
    if config.gpus_per_worker is not None:
        if config.gpus_per_worker > 1:
            raise InputError(f"gpus_per_worker must be at most 1, not {config.gpus_per_worker}: a worker uses one GPU.")
        if (config.device_kind == "cuda") != (config.gpus_per_worker > 0):
            raise InputError(f"gpus_per_worker={config.gpus_per_worker:g} contradicts device={config.device_kind!r}.")
    if config.engine == "ray" and config.part is not None:
        raise InputError(f"part={str(config.part)!r} has no effect with engine='ray', which shares the work. Omit it.")
    if (config.engine == "ray" or config.part is not None) and str(config.out).startswith("memory:"):
        raise InputError(f"{config.out} is private to this process. Several processes need a shared location.")


def _check_settings(config: RunConfig) -> None:
    """Refuse settings that no method of the run uses."""
    parts = {part for method in config.parsed for part in (method.adapter, method.calibrator)}
    for part in config.settings:
        if part not in parts:
            raise unknown_name("adapter or calibrator in settings", part, parts, "Others would have no effect.")
