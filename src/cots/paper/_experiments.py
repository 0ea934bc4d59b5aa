"""The paper's experiments: the runs behind each of its tables and figures.

The paper's source has no numbers for its figures, so the values on their axes are our choice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from .._errors import CotsError, InputError, unknown_name
from ..backbones import Backbone
from ..bench import Run, RunConfig
from ..calibrators import select
from ..data import PROTOCOLS
from ..methods import parse_method
from ._sides import name_in
from ._tables import NOT_STATED, PAPER_TABLES, load_table, read_data

Settings = Mapping[str, Mapping[str, Any]]
VIT = "ViT-B-16/openai"
VIEWS = 64  # of every protocol
ADAPTIVE = "adaptive"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Methods with one model, prompt and choice of settings.

    methods: without settings. settings: by adapter or calibrator, such as {"cots": {"k": 4}}. prompt: a template, or
    "coop" for a learned context. value: its position on the x axis of a figure.
    """

    name: str
    model: str | Backbone
    methods: tuple[str, ...]
    settings: Settings = field(default_factory=dict)
    prompt: str | None = None
    value: float | str | None = None

    def written(self, method: str, views: int | None = None, settings: Settings | None = None) -> str:
        """The name of one of its methods with the variant's settings: `tpt+cots(k=4)`.

        views: of a sample; the number of strong views that CoTS selects of so many by itself is left out, unless the
        `settings` of the run change it.
        """
        parsed = parse_method(method)
        own = []
        for part in (parsed.adapter, parsed.calibrator):
            chosen = dict(self.settings.get(part, {}))
            usual = select(torch.zeros(1, views, 2)).shape[1] if views else None
            if usual and chosen.get("k") == usual and "k" not in (settings or {}).get(part, {}):
                del chosen["k"]
            own.append(tuple(chosen.items()))
        return str(replace(parsed, adapter_settings=own[0], calibrator_settings=own[1]))

    def name_in(self, run: Run, method: str) -> str:
        """The run's name for one of its methods, in older runs without its settings; empty if the run lacks it."""
        views, settings = run.manifest.datasets[0].views, run.manifest.config.settings
        written, whole = self.written(method, views, settings), self.written(method)
        names = (written, str(parse_method(written)), whole, str(parse_method(whole)))
        for name in names:
            if name in run.methods:
                return name
        return next(filter(None, [name_in(run, name) for name in names]), "")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or a figure of the paper and the runs behind it. panels: labels of parts of a figure."""

    name: str
    title: str
    labels: tuple[str, ...]
    datasets: tuple[str, ...]
    variants: tuple[Variant, ...]
    table: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    panels: tuple[str, ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        names: dict[str, None] = {}
        for variant in self.variants:
            names |= dict.fromkeys(variant.methods)
        return tuple(names)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(variant.model) for variant in self.variants))

    @property
    def learned(self) -> bool:
        """Whether it starts from a context learned by CoOp."""
        return any(variant.prompt == "coop" for variant in self.variants)

    def text(self) -> str:
        """A description of the experiment for a terminal."""
        facts = {"models": self.models, "datasets": self.datasets, "methods": self.methods}
        if len(self.variants) > 1:
            facts[f"{len(self.variants)} variants"] = tuple(variant.name for variant in self.variants)
        lines = [f"{self.name}: {self.title} ({', '.join(self.labels)})"]
        lines += [f"  {name:9} {', '.join(values)}" for name, values in facts.items()]
        if self.note:
            lines.append(f"  {self.note}")
        return "\n".join(lines)

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
        """The runs of this experiment, one per model and prompt. They share a feature cache, so views are encoded once.

        data: the folder of the datasets. model, datasets, methods: replace the paper's. context: the CoOp checkpoint
        that `table:coop` starts from. options: other fields of `RunConfig`, such as seeds and limit.
        """
        groups = self.groups(model, methods)
        if context is not None and not self.learned:
            raise InputError(f"context= has no effect on {self.name}, which starts from a template; omit it.")
        if context is None and self.learned:
            raise InputError(
                f"{self.name} starts from a context learned by CoOp (ImageNet, 16 shots, 4 vectors); "
                "pass its checkpoint as context=PATH."
            )
        if options.get("template") and all(variant.prompt for variant in self.variants):
            raise InputError(f"template= has no effect on {self.name}, whose runs have their own prompts; omit it.")
        common = {"seeds": (0, 1, 2), "data": data, "datasets": tuple(datasets or self.datasets), "out": Path(out)}
        common |= {**self.options, **options}
        if len(groups) > 1:
            common.setdefault("cache", Path(out) / "cache")
        configs = []
        for variants in groups:
            first, names = variants[0], []
            for variant in variants:
                views, settings = options.get("views") or VIEWS, options.get("settings")
                names += [variant.written(method, views, settings) for method in variant.methods]
            values = {**common, "model": first.model, "methods": names}
            if len(groups) > 1:
                values["out"] = Path(out) / first.name
            if first.prompt == "coop":
                values["context"] = context
            elif first.prompt:
                values["template"] = first.prompt
            configs.append(RunConfig(**values))
        return configs

    def open_runs(self, out: str | Path) -> dict[str, Run]:
        """The runs that `run_configs` with the same `out` wrote, by variant, without missing ones.

        A folder that is itself a run can be compared with any table. Earlier versions wrote a folder per variant.
        """
        whole = Run.open(out) if (Path(out) / "manifest.json").exists() else None
        runs = {}
        for variant in self.variants:
            if (Path(out) / variant.name / "manifest.json").exists():
                runs[variant.name] = Run.open(Path(out) / variant.name)
            elif whole and self.table is None and any(variant.name_in(whole, method) for method in variant.methods):
                runs[variant.name] = whole
        if whole and self.table:
            runs = {self.variants[0].name: whole}
        if not runs:
            raise CotsError(f"{out} has no run of {self.name}; create one with: cots paper run {self.name}.")
        return runs

    def groups(self, model: str | Backbone | None = None, methods: Sequence[str] | None = None) -> list[list[Variant]]:
        """The variants that share a run, because they have the same model and prompt.

        model, methods: replace the paper's. Variants that no longer differ are merged.
        """
        groups: dict[Any, dict[Any, Variant]] = {}
        for variant in self.variants:
            if methods is not None:
                variant = replace(variant, methods=self._checked(variant, methods))
            if model is not None:
                variant = replace(variant, model=model)
            members = groups.setdefault((str(variant.model), variant.prompt), {})
            members.setdefault((repr(variant.settings), variant.methods), variant)
        return [list(members.values()) for members in groups.values()]

    def _checked(self, variant: Variant, methods: Sequence[str]) -> tuple[str, ...]:
        """The methods, of which one must have the settings that the variant varies."""
        parsed = list(map(parse_method, methods))
        used = {method.adapter for method in parsed} | {method.calibrator for method in parsed}
        names = tuple(map(str, parsed))
        if variant.settings and not used.intersection(variant.settings):
            raise InputError(
                f"{self.name} varies the settings of {', '.join(variant.settings)}, which none of the methods "
                f"{', '.join(names)} uses; add one that does, or omit methods."
            )
        return names


def _table(name: str) -> Experiment:
    """One run per backbone, or per prompt where the table compares prompts."""
    table = load_table(name)
    by_prompt, not_stated = len(table.prompts) > 1, NOT_STATED.get(table.backbones[0], "")
    variants = []
    for model, prompt in product(table.backbones, table.prompts):
        variant = Variant(name=model.replace("/", "-"), model=model, methods=table.methods)
        if by_prompt:
            short = prompt.removesuffix(" {}.").replace(" ", "-")
            variant = replace(variant, name=short, prompt=prompt, value=prompt)
        elif prompt == "coop":
            variant = replace(variant, prompt=prompt)
        variants.append(variant)
    return Experiment(
        name=f"table:{name}",
        title=table.title,
        labels=(table.label,),
        datasets=table.datasets,
        variants=tuple(variants),
        table=name,
        options={"batch_size": 1} if name == "timing" else {},
        note=table.note or not_stated[:1].upper() + not_stated[1:],
    )


def _figure(
    name: str,
    labels: Sequence[str],
    methods: Sequence[str] = (),
    settings: Settings | None = None,
    sweeps: Sequence[Mapping[str, Any]] = (),
    datasets: Sequence[str] = tuple(PROTOCOLS),
    **about: Any,
) -> Experiment:
    """A row of figures.json: one run of `methods`, or one run per value of a calibrator's setting.

    The baselines of a sweep run only with the given value.
    """
    variants = []
    if methods:
        variants.append(Variant(name="ViT-B-16-openai", model=VIT, methods=tuple(methods), settings=settings or {}))
    for sweep in sweeps:
        setting, calibrators, baselines = sweep["setting"], sweep["calibrators"], sweep.get("baselines", {})
        swept = tuple(f"tpt+{calibrator}" for calibrator in calibrators)
        for value in sweep["values"]:
            varied = {}
            if value != ADAPTIVE:
                varied = {calibrator: {setting: value} for calibrator in calibrators}
            run = (*baselines.get(value, ()), *swept)
            variants.append(Variant(name=f"{setting}-{value}", model=VIT, methods=run, settings=varied, value=value))
    where = {"labels": tuple(labels), "datasets": tuple(datasets), "variants": tuple(variants)}
    return Experiment(name=f"figure:{name}", **where, **about)


_FIGURES = (_figure(**row) for row in read_data("figures.json")["rows"])
EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {experiment.name: experiment for experiment in (*map(_table, PAPER_TABLES), *_FIGURES)}
)
"""All experiments by name: `table:...` for the 24 tables, `figure:...` for the 9 figures."""


def find_experiment(name: str) -> Experiment:
    """The experiment with this name, or with this label, of a panel too, in the paper's source."""
    for known, experiment in EXPERIMENTS.items():
        if name == known or name in (*experiment.labels, *experiment.panels):
            return experiment
    raise unknown_name("experiment", name, EXPERIMENTS)
