"""The types of a run, and the one reader of its manifest and its config.

manifest = read_as(json.loads(text), Manifest)        # ValueError: "n must be a whole number >= 1, not 0"
write_json(file, plain(manifest))
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

SCHEMA = 1
_SURROGATES = "\ud800-\udfff"  # halves of a pair, which cannot be written or printed
Text = Annotated[str, Meta(pattern=f"\\A[^\0{_SURROGATES}]*\\Z")]
Name = Annotated[str, Meta(pattern=f"\\A(?!\\.{{1,2}}\\Z)[^/\\\\\0{_SURROGATES}]+\\Z")]  # of a file or folder
Positive = Annotated[int, Meta(ge=1, le=10**9)]
Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Amount = Annotated[float, Meta(ge=0, le=1e9)]
Finite = Annotated[float, Meta(ge=-1e30, le=1e30)]
Number = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | Finite
Settings = dict[str, Any]  # of an adapter or calibrator, by parameter

T = TypeVar("T")


class _Typed(Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Model(_Typed, frozen=True, kw_only=True):
    """The model of a run."""

    name: Text
    weights_hash: Text
    precision: Text


class Environment(_Typed, frozen=True, kw_only=True):
    """What can change the rounding of results: versions and threads."""

    cots: Text
    versions: dict[Text, Text]
    threads: int

    def versions_and_threads(self) -> dict[str, Any]:
        return {"cots": self.cots, "threads": self.threads, **self.versions}


class Resumption(Environment, frozen=True, kw_only=True):
    """The environment of a later command on the same folder."""

    when: Text


class DatasetEntry(_Typed, frozen=True, kw_only=True):
    """A dataset of a run.

    n: number of samples, at most `limit`.
    view_settings: the fields of `cots.ViewSettings`, or the hash of view features.
    context, descriptions, attributes: hashes of the CoOp checkpoint and of the files of sentences and of words.
    alpha: weight of the ensemble, from the class names.
    average: the group of datasets in a report.
    """

    name: Name
    title: Text | None
    n: Positive
    limit: Positive | None
    classes: Annotated[tuple[Text, ...], Meta(min_length=1)]
    split_hash: Text
    views: Positive
    augmix: bool
    view_settings: dict[Text, Any]
    template: Text
    context: Text | None = None
    descriptions: Text | None = None
    attributes: Text | None = None
    corrupt: Text | None = None
    alpha: Finite | None
    average: Text | None = None


class MethodSettings(_Typed, frozen=True, kw_only=True):
    """The settings of a method on a dataset. The run supplies a seed or an alpha that is not set."""

    adapter: Settings
    calibrator: Settings
    stream_order: Text | None = None


class CommonOptions(_Typed, frozen=True, kw_only=True, dict=True):
    """The options of a run whose type is the same everywhere."""

    limit: Positive | None = None
    batch_size: Positive | None = None
    shard_size: Positive | None = None
    device: str | None = None
    precision: str = "float32"
    workers: Natural = 0
    settings: Mapping[str, Mapping[str, Any]] = {}
    solver: str = "adam"
    template: Text | None = None
    published_names: bool = False
    stream_order: str = "shuffled"
    corrupt: str | None = None
    views: Positive | None = None
    augmix: bool | None = None
    renderer: str = "auto"
    engine: str = "inline"
    ray_address: str | None = None
    gpus_per_worker: Amount | None = None
    cpus_per_worker: Amount | None = None
    max_workers: Positive | None = None
    wait: Amount | None = None


class RunOptions(CommonOptions, frozen=True, kw_only=True):
    """The options of a run in a TOML file or a manifest; `RunConfig` takes Python objects too."""

    model: Text = "mini"
    data: Text | None = None
    datasets: tuple[Text, ...] = ()
    methods: tuple[Text, ...] = ()
    seeds: tuple[Natural, ...] = (0,)
    out: Text = ""
    cache: Text | None = None
    classes: Text | None = None
    context: Text | None = None
    descriptions: Text | None = None
    attributes: Text | None = None
    part: Text | None = None
    plugins: tuple[Text, ...] = ()


class Manifest(Environment, frozen=True, kw_only=True):
    """All settings of a run folder. id: of the run, in every file that belongs to it; empty in runs of cots 0.1.0."""

    schema: int
    id: Text = ""
    created: Text
    model: Model
    device: Text
    renderer: Text = "pil"
    seeds: Annotated[tuple[int, ...], Meta(min_length=1)]
    methods: Annotated[tuple[Name, ...], Meta(min_length=1)]
    batch_size: Positive
    shard_size: Positive
    datasets: Annotated[tuple[DatasetEntry, ...], Meta(min_length=1)]
    settings: dict[Text, dict[Text, MethodSettings]]
    plugins: dict[Text, Text] = {}
    config: RunOptions = RunOptions()
    resumed: tuple[Resumption, ...] = ()


def plain(value: Any) -> Any:
    """`value` in JSON types: structs become dicts, tuples lists, numbers of NumPy numbers, paths strings."""
    if isinstance(value, Struct):
        return plain(msgspec.structs.asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def read_as(content: Any, kind: type[T]) -> T:
    """`content`, in JSON types, as a `kind`; ValueError names the key, what it must be, and its value."""
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise ValueError(_explain(str(error), content)) from None


def upgrade(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a manifest of cots 0.1.0 in today's form; anything else unchanged."""
    if "id" in content:
        return content
    try:
        settings = {
            dataset: {method: _without_sentinels(of) for method, of in methods.items()}
            for dataset, methods in content["settings"].items()
        }
        renderer = {"torch": "gpu"}.get(content.get("renderer", "pil"), content.get("renderer", "pil"))
        known = RunOptions.__struct_fields__
        config = {key: value for key, value in content.get("config", {}).items() if key in known}
        return {**content, "settings": settings, "renderer": renderer, "config": config}
    except (AttributeError, KeyError, TypeError):  # damaged: its reader says how
        return content


def _without_sentinels(settings: Any) -> Any:
    """Settings of a method without the words that stood for the run's seed and the task's alpha."""
    kept = {}
    for part, values in settings.items():
        kept[part] = values
        if isinstance(values, dict):
            kept[part] = {key: value for key, value in values.items() if value not in ("task", "run seed")}
    return kept


_WORDS = {
    "int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "array": "a list",
    "object": "a mapping",
}  # fmt: skip
_KINDS = {type(None): "null", int: "int", float: "float", str: "str", bool: "bool", list: "array", dict: "object"}


def _explain(text: str, content: Any) -> str:
    """An error of msgspec in the words of cots: key, what it must be, value."""
    problem, _, where = text.partition(" - at ")
    path = [name or index for name, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", where.partition("$")[2])]
    if match := re.search(r"missing required field `(.*)`|unknown field `(.*)`", problem):
        key = _joined([*path, match[1] or match[2]])
        return f"{key} is missing" if match[1] else f"{key} is unknown"
    match = re.fullmatch(r"Expected `([^`]*)`(.*?)(?:, got `(.*)`)?", problem)
    if match is None:
        return f"{_joined(path)}: {problem}"
    kinds = match[1].removesuffix(" | null").replace("int | float", "float").split(" | ")
    names = [_WORDS.get(name, name) for name in kinds]
    wanted = " or ".join(dict.fromkeys(names))
    limit = re.fullmatch(r" ([<>]=?) (\S+)", match[2])
    if limit:
        wanted += f" {limit[1]} {float(limit[2]):g}"
    elif match[2]:
        wanted = "printable text, without / if it names a file" if "regex" in match[2] else f"{wanted}{match[2]}"
    path, value = next(_located(content, path, match[3]), (path, None))
    return f"{_joined(path)} must be {wanted}, not {_shown(value)}"


def _located(value: Any, path: Sequence[str], kind: str | None) -> Iterator[tuple[list[str], Any]]:
    """The paths with `...` in place of a key, as msgspec writes it for dicts, that lead to a value of the kind."""
    if not path:
        if kind in (None, _KINDS.get(type(value), type(value).__name__)):
            yield [], value
        return
    step, rest = path[0], path[1:]
    inner = dict(enumerate(value)) if isinstance(value, list) else value
    for key in inner if step == "..." else [key for key in inner if str(key) == step]:
        for below, end in _located(inner[key], rest, kind):
            yield [str(key), *below], end


def _joined(path: Sequence[str]) -> str:
    joined = "".join(f"[{step}]" if step.isdigit() else f".{step}" for step in path)
    return joined.removeprefix(".") or "it"


def _shown(value: Any) -> str:
    text = ascii(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
