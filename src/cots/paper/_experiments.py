"""An experiment: the runs behind a table or a figure of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._errors import CotsError, InputError
from ..backbones import Backbone
from ..methods import parse_method

if TYPE_CHECKING:
    from ..bench import Run, RunConfig

Settings = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One run of an experiment.

    settings: by adapter or calibrator, such as {"cots": {"k": 4}}. prompt: a template, or "coop" for a learned context.
    value: the run's place on the x axis of a figure.
    """

    name: str
    model: str | Backbone
    methods: tuple[str, ...]
    settings: Settings = field(default_factory=dict)
    prompt: str | None = None
    value: float | str | None = None


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or a figure of the paper and the runs behind it."""

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
        """What the experiment runs, for a terminal."""
        facts = {"models": self.models, "datasets": self.datasets, "methods": self.methods}
        if len(self.variants) > 1:
            facts[f"{len(self.variants)} runs"] = tuple(variant.name for variant in self.variants)
        lines = [f"{self.name}: {self.title} ({', '.join(self.labels)})"]
        lines += [f"  {name:9} {', '.join(values)}" for name, values in facts.items()]
        return "\n".join([*lines, *([f"  {self.note}"] if self.note else [])])

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
        """The runs of this experiment, one per variant. They share a feature cache: views are encoded once per model.

        data: the folder of the datasets. model, datasets, methods: replace the paper's. context: the CoOp checkpoint
        that `table:coop` starts from. options: other fields of `RunConfig`, such as seeds and limit.
        """
        from ..bench import RunConfig

        variants = self._variants(model, methods)
        learned = any(variant.prompt == "coop" for variant in variants)
        if context is not None and not learned:
            raise InputError(f"context= has no effect on {self.name}, which starts from a template; leave it out.")
        if context is None and learned:
            raise InputError(
                f"{self.name} starts from a context learned by CoOp (ImageNet, 16 shots, 4 vectors); "
                "give its checkpoint as context=PATH."
            )
        common = {"seeds": (0, 1, 2), "data": data, "datasets": tuple(datasets or self.datasets)}
        common |= {**self.options, **options}
        if len(variants) > 1:
            common.setdefault("cache", Path(out) / "cache")
        configs = []
        for variant in variants:
            prompt = {"context": context} if variant.prompt == "coop" else {"template": variant.prompt}
            values = {
                **common,
                **(prompt if variant.prompt else {}),
                "model": variant.model,
                "methods": variant.methods,
                "out": Path(out) / variant.name if len(variants) > 1 else Path(out),
                "settings": _merge(common.get("settings", {}), self._settings(variant)),
            }
            configs.append(RunConfig(**values))
        return configs

    def open_runs(self, out: str | Path) -> dict[str, Run]:
        """The runs that `run_configs` with the same `out` wrote, by variant; missing ones are left out.

        A folder that is itself a run serves any table, however it was made.
        """
        from ..bench import Run

        folders = {variant.name: Path(out) / variant.name for variant in self.variants}
        if len(folders) == 1 or (self.table and (Path(out) / "manifest.json").exists()):
            folders = {self.variants[0].name: Path(out)}
        found = {name: Run.open(folder) for name, folder in folders.items() if (folder / "manifest.json").exists()}
        if not found:
            raise CotsError(f"{out} has no run of {self.name}; make one with: cots paper run {self.name}.")
        return found

    def _variants(self, model: str | Backbone | None, methods: Sequence[str] | None) -> tuple[Variant, ...]:
        """The variants with another model or other methods; those that no longer differ are merged."""
        variants = self.variants
        if methods is not None:
            wanted = tuple(str(parse_method(method)) for method in methods)
            variants = tuple(replace(variant, methods=wanted) for variant in variants)
        if model is not None:
            merged: dict[Any, Variant] = {}
            for variant in variants:
                key = (repr(variant.settings), variant.prompt, variant.methods)
                merged.setdefault(key, replace(variant, model=model))
            variants = tuple(merged.values())
        return variants

    def _settings(self, variant: Variant) -> Settings:
        """The variant's settings for the adapters and calibrators that its methods use."""
        methods = [parse_method(method) for method in variant.methods]
        used = {name for method in methods for name in (method.adapter, method.calibrator)}
        kept = {name: settings for name, settings in variant.settings.items() if name in used}
        if variant.settings and not kept:
            raise InputError(
                f"{self.name} varies the settings of {', '.join(variant.settings)}, which none of the methods "
                f"{', '.join(variant.methods)} uses; add one that does, or leave methods out."
            )
        return kept


def _merge(given: Settings, varied: Settings) -> dict[str, dict[str, Any]]:
    """Settings by method part; those that the experiment varies win."""
    parts = dict.fromkeys([*given, *varied])
    return {part: {**given.get(part, {}), **varied.get(part, {})} for part in parts}
