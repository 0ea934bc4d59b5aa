"""The paper's experiments by name: what to run for a table or a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .._errors import CotsError, InputError
from ..backbones import Backbone
from ..methods import parse_method

if TYPE_CHECKING:
    from ..bench import Run, RunConfig

Settings = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One run of an experiment: where it differs from the others, and the value it has on a figure's axis.

    settings: by part of a method, such as {"cots": {"k": 4}}. prompt: a template, or "coop" for a learnt context.
    """

    name: str
    model: str | Backbone
    methods: tuple[str, ...]
    settings: Settings = field(default_factory=dict)
    prompt: str | None = None
    value: float | str | None = None


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or a figure of the paper and the runs behind it.

    >>> from cots.paper import find_experiment
    >>> experiment = find_experiment("table:imagenet-variants")
    >>> experiment.datasets
    ('imagenet-a', 'imagenet-v2', 'imagenet-r', 'imagenet-sketch')
    >>> [variant.model for variant in experiment.variants]
    ['ViT-B-16/openai']
    """

    name: str
    title: str
    labels: tuple[str, ...]
    datasets: tuple[str, ...]
    variants: tuple[Variant, ...]
    table: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(method for variant in self.variants for method in variant.methods))

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(variant.model) for variant in self.variants))

    def text(self) -> str:
        """What would be run, for a terminal."""
        lines = [f"{self.name}: {self.title} ({', '.join(self.labels)})"]
        lines.append(f"  models    {', '.join(self.models)}")
        lines.append(f"  data sets {', '.join(self.datasets)}")
        lines.append(f"  methods   {', '.join(self.methods)}")
        if len(self.variants) > 1:
            lines.append(f"  runs      {len(self.variants)}: {', '.join(variant.name for variant in self.variants)}")
        return "\n".join([*lines, *([f"  {self.note}"] if self.note else [])])

    def folders(self, out: str | Path, model: str | Backbone | None = None) -> dict[str, Path]:
        """Where each variant's run lies: `out` itself for a single one, else a folder of its name below it."""
        variants = self._variants(model, None)
        return {v.name: Path(out) / v.name if len(variants) > 1 else Path(out) for v in variants}

    def run_configs(
        self,
        data: str | Path,
        out: str | Path,
        model: str | Backbone | None = None,
        *,
        datasets: Sequence[str] | None = None,
        methods: Sequence[str] | None = None,
        context: str | Path | None = None,
        **options: Any,
    ) -> list[RunConfig]:
        """The runs to make, one for each variant; they share one feature cache, so views are encoded once a model.

        data: the folder of the data sets. model, datasets, methods: instead of the paper's. context: the CoOp
        checkpoint that `table:coop` starts from. options: other fields of `RunConfig`, such as seeds and limit.
        """
        from ..bench import RunConfig

        variants = self._variants(model, methods)
        learnt = any(variant.prompt == "coop" for variant in variants)
        if context is not None and not learnt:
            raise InputError(f"context= has no effect on {self.name}, which starts from words; leave it out.")
        if context is None and learnt:
            raise InputError(
                f"{self.name} starts from a context that CoOp has learnt (ImageNet, 16 shots, 4 vectors): give its "
                "checkpoint as context=PATH."
            )
        given = {"seeds": (0, 1, 2), **self.options, **options}
        if len(variants) > 1:
            given.setdefault("cache", Path(out) / "cache")
        known = {f.name for f in fields(RunConfig)}
        folders = self.folders(out, model)
        configs = []
        for variant in variants:
            values = {
                **given,
                "model": variant.model,
                "data": data,
                "out": folders[variant.name],
                "datasets": tuple(datasets or self.datasets),
                "methods": variant.methods,
                "settings": _merged(given.get("settings", {}), self._varied(variant)),
            }
            if variant.prompt == "coop":
                values["context"] = context
            elif variant.prompt is not None:
                values["template"] = variant.prompt
            unknown = sorted(set(values) - known)
            if unknown:
                raise InputError(f"{self.name}: a run has no setting {', '.join(unknown)}; it has {sorted(known)}.")
            configs.append(RunConfig(**values))
        return configs

    def _varied(self, variant: Variant) -> Settings:
        """The variant's settings of the parts that its methods have; with other methods some may have gone."""
        methods = [parse_method(method) for method in variant.methods]
        parts = {part for method in methods for part in (method.adapter, method.calibrator)}
        kept = {part: settings for part, settings in variant.settings.items() if part in parts}
        if variant.settings and not kept:
            raise InputError(
                f"{self.name} varies the settings of {', '.join(variant.settings)}, which none of the methods "
                f"{', '.join(variant.methods)} has; keep one that does, or leave methods out."
            )
        return kept

    def open_runs(self, out: str | Path) -> dict[str, Run]:
        """The runs that `run_configs` with the same `out` made, by variant; those not there yet are left out.

        A folder that is a run itself serves any table, whoever made it.
        """
        from ..bench import Run

        folders = self.folders(out)
        if len(folders) == 1 or (self.table and _is_run(Path(out))):
            folders = {self.variants[0].name: Path(out)}
        found = {name: path for name, path in folders.items() if _is_run(path)}
        if not found:
            raise CotsError(f"There is no run of {self.name} in {out}; make it first: cots paper run {self.name}.")
        return {name: Run.open(path) for name, path in found.items()}

    def _variants(self, model: str | Backbone | None, methods: Sequence[str] | None) -> tuple[Variant, ...]:
        """The variants with another model or other methods; those that then no longer differ are run once."""
        variants = self.variants
        if methods is not None:
            wanted = tuple(str(parse_method(method)) for method in methods)
            variants = tuple(replace(variant, methods=wanted) for variant in variants)
        if model is not None:
            same: dict[Any, Variant] = {}
            for variant in variants:
                key = (repr(variant.settings), variant.prompt, variant.methods)
                same.setdefault(key, replace(variant, model=model))
            variants = tuple(same.values())
        return variants


def _is_run(folder: Path) -> bool:
    return (folder / "manifest.json").exists()


def _merged(first: Settings, second: Settings) -> dict[str, dict[str, Any]]:
    """Settings by part; the experiment's own win, because they are what it is about."""
    parts = dict.fromkeys([*first, *second])
    return {part: {**first.get(part, {}), **second.get(part, {})} for part in parts}


def frozen(experiments: Sequence[Experiment]) -> Mapping[str, Experiment]:
    return MappingProxyType({experiment.name: experiment for experiment in experiments})
