"""All experiments of the paper that the data on disk allows, in as few runs as possible, and one page of results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from .._errors import CotsError, InputError
from ..adapters import ADAPTERS
from ..backbones import Backbone
from ..bench import Run, RunConfig
from ..data import PROTOCOLS, available
from ..evaluate.plots import inline_svg
from ..evaluate.text import counted, render
from ..methods import parse_method
from ._claims import claims_text
from ._compare import compare
from ._experiments import EXPERIMENTS, VIEWS, Experiment
from ._figures import draw
from ._shown import preview
from ._tables import load_table

PAGE = "paper.html"
# Milliseconds per sample on one H200 with 16 cores, 64 views of ViT-B/16. Measured in benchmarks/results/h200.json:
# "files" (JPEG files with AugMix to probabilities) and "text" (a method on features, per class), both in bfloat16.
# float32 is computed: 2.25 TFLOP per sample ("operations") at the card's 67 TFLOP/s, which no program quite reaches.
ENCODE = {"bfloat16": 5.2, "float16": 5.2, "float32": 2.25e12 / 67e12 * 1000}
PER_CLASS = 0.00093
PIXELS = 3  # encodings of a method that takes pixels: before and after its step, and the step through 3 of 12 blocks
RATES = {"bfloat16": 766, "float16": 766, "float32": 67}  # TFLOP/s of matrix products, for other cards
CONVOLUTIONAL = ("mini", "RN")  # names of models without the attention that TTL adapts start like this
WIDTHS = {"RN50/openai": 1024, "ViT-B-16-SigLIP/webli": 768, "mini": 256}  # of features; 512 for others


@dataclass(frozen=True, kw_only=True)
class PaperPlan:
    """The plan of `cots paper run all`: runs, each for several experiments, and experiments that cannot be run.

    runs: by name. folders: run names by experiment and variant. skipped: reasons by experiment. missing: datasets.
    """

    out: Path
    runs: Mapping[str, RunConfig]
    folders: Mapping[str, Mapping[str, str]]
    skipped: Mapping[str, str]
    missing: tuple[str, ...]
    sizes: Mapping[str, int] = field(repr=False)

    @property
    def encodings(self) -> set[tuple[str, str, int]]:
        """Every (model, dataset, seed) to encode, each once."""
        encodings = set()
        for config in self.runs.values():
            encodings |= set(product([_model(config)], map(str, config.datasets), config.seeds))
        return encodings

    @property
    def gpu_hours(self) -> float:
        """An estimate for one H200 with 16 cores at the runs' precision, from measured times; see `ENCODE`."""
        encode = ENCODE[self.precision] * self._views / VIEWS
        spent = 0.0
        for _, name, _ in self.encodings:
            spent += encode * self.sizes[name]
        for config in self.runs.values():
            adapters = {method.base: ADAPTERS.info(method.adapter) for method in config.parsed}
            on_pixels = sum(info.takes == "pixels" for info in adapters.values())
            for name in map(str, config.datasets):
                per_sample = PIXELS * encode * on_pixels
                per_sample += PER_CLASS * PROTOCOLS[name].classes * (len(adapters) - on_pixels)
                if config.batch_size == 1:  # table:timing encodes for itself
                    per_sample += encode
                spent += per_sample * self.sizes[name] * len(config.seeds)
        return spent / 3.6e6

    @property
    def precision(self) -> str:
        """That of the image encoder, which the estimate depends on."""
        config = next(iter(self.runs.values()))
        return config.model.precision if isinstance(config.model, Backbone) else config.precision

    @property
    def gigabytes(self) -> float:
        """Disk space of the features in half precision."""
        numbers = 0
        for model, name, _ in self.encodings:
            numbers += self.sizes[name] * self._views * WIDTHS.get(model, 512)
        return 2 * numbers / 1e9

    @property
    def _views(self) -> int:
        return next(iter(self.runs.values())).views or VIEWS

    def text(self) -> str:
        """The plan for a terminal."""
        lines = []
        if self.missing:
            lines.append(f"missing datasets: {', '.join(self.missing)}")
        for name, reason in self.skipped.items():
            lines.append(f"skipped {name}: {reason}")
        for name, config in self.runs.items():
            methods, datasets = counted(len(config.methods), "method"), counted(len(config.datasets), "dataset")
            served = [experiment for experiment, runs in self.folders.items() if name in runs.values()]
            lines.append(f"run {name}: {methods} on {datasets}, for {', '.join(served)}")
        lines += self._previews()
        if not self.runs:
            return "\n".join([*lines, "nothing to run"])
        precision, faster = self.precision, ""
        if precision == "float32":
            faster = "; --precision bfloat16 is several times faster"
        timed = "; table:timing encodes again, to time it" if "table:timing" in self.folders else ""
        lines += [
            f"{len(self.folders)} of {len(EXPERIMENTS)} experiments in {counted(len(self.runs), 'run')}; "
            f"{len(self.encodings)} encodings of (model, dataset, seed), each once; {_about(self.gigabytes)} GB of "
            f"features{timed}",
            f"{_about(self.gpu_hours)} GPU-hours on one H200 with 16 cores in {precision}{faster}. Other cards: in "
            f"proportion to their {precision} matrix products (H200: {RATES[precision]} TFLOP/s)",
        ]
        return "\n".join(lines)

    def _previews(self) -> list[str]:
        """What each table will show, where datasets are missing."""
        here = set(PROTOCOLS).difference(self.missing)
        lines = []
        for name in self.folders:
            table = EXPERIMENTS[name].table
            shown = preview(load_table(table), here) if table else ""
            if shown:
                lines.append(f"{name} will show {shown}")
        return lines

    def run(self, execute: Callable[[RunConfig], int]) -> tuple[int, Path]:
        """Execute every run with `execute` and write the page; returns the number of failed records and the page."""
        failed = sum([execute(config) for config in self.runs.values()])
        return failed, self.write_page()

    def write_page(self) -> Path:
        """Write a page that compares every table and figure of the finished runs with the paper's."""
        page, runs = self.out / PAGE, {}
        for name, config in self.runs.items():
            if (Path(str(config.out)) / "DONE").exists():
                runs[name] = Run.open(str(config.out))
        sections = []
        for name, variants in self.folders.items():
            finished = {variant: runs[run] for variant, run in variants.items() if run in runs}
            sections.append(_section(EXPERIMENTS[name], finished))
        skipped = [(name, EXPERIMENTS[name].title, reason) for name, reason in self.skipped.items()]
        claims = claims_text(list(runs.values()))
        text = render("paper.html", plan=self.text(), sections=sections, skipped=skipped, claims=claims)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
        return page


def plan_all(
    data: str | Path,
    out: str | Path,
    model: str | Backbone | None = None,
    *,
    partial: bool = False,
    context: str | Path | None = None,
    cache: str | Path | None = None,
    **options: Any,
) -> PaperPlan:
    """Plan all experiments on the datasets below `data`; with `partial`, missing datasets are left out.

    Experiments that run the same model and prompt share a run, so each adapter runs once on each dataset and its
    calibrators, with any settings, share its logits. All runs share a feature cache. Other options are those of
    `RunConfig`, such as seeds and limit.
    """
    here = {protocol.name for protocol in available(data)}
    missing = tuple(name for name in PROTOCOLS if name not in here)
    if missing and not partial:
        raise InputError(
            f"{data} lacks {len(missing)} of {len(PROTOCOLS)} datasets: {', '.join(missing)}. Add them "
            "(`cots ls datasets` has their folders), or pass --available to run on the others."
        )
    base = Path(out)
    given = {**options, "cache": cache or base / "cache", "context": context}
    # Configs that can share a run, by what they have in common, and the name of that run.
    groups: dict[Any, list[RunConfig]] = {}
    labels: dict[Any, str] = {}
    folders: dict[str, dict[str, str]] = {}
    skipped: dict[str, str] = {}
    # Grouped by model, so that its features stay in the page cache, else in the paper's order.
    models = list(dict.fromkeys(experiment.models[0] for experiment in EXPERIMENTS.values()))
    for experiment in sorted(EXPERIMENTS.values(), key=lambda one: models.index(one.models[0])):
        datasets = tuple(dataset for dataset in experiment.datasets if dataset in here)
        reason = _reason_to_skip(experiment, datasets, model, given)
        if reason:
            skipped[experiment.name] = reason
            continue
        configs = experiment.run_configs(
            data, base / "unused", model, datasets=datasets, **_options_for(experiment, datasets, given)
        )
        folders[experiment.name] = {}
        for variants, config in zip(experiment.groups(model), configs, strict=True):
            key = (_model(config), config.template, str(config.context), config.batch_size, _alone(experiment))
            if key not in labels:
                labels[key] = _label(experiment, variants[0].name, config, labels.values())
            groups.setdefault(key, []).append(config)
            for variant in variants:
                folders[experiment.name][variant.name] = labels[key]
    runs = {labels[key]: _united(members, base / "runs" / labels[key]) for key, members in groups.items()}
    sizes = {name: min(p.test_size, options.get("limit") or p.test_size) for name, p in PROTOCOLS.items()}
    return PaperPlan(out=base, runs=runs, folders=folders, skipped=skipped, missing=missing, sizes=sizes)


def _reason_to_skip(
    experiment: Experiment, datasets: Sequence[str], model: str | Backbone | None, options: Mapping[str, Any]
) -> str:
    """Why an experiment cannot run on these datasets with these options; empty if it can."""
    if not datasets:
        names = experiment.datasets
        return f"no dataset of it ({', '.join(names) if len(names) < 5 else f'any of {len(names)}'})"
    if experiment.learned and options["context"] is None:
        return "needs a CoOp checkpoint (--context)"
    metrics = load_table(experiment.table).metrics if experiment.table else ("ece",)
    if len(options.get("seeds", (0, 1, 2))) < 2 and all(metric.endswith("_std") for metric in metrics):
        return "needs at least two seeds (--seeds)"
    if str(getattr(model, "name", model)).startswith(CONVOLUTIONAL):
        adapters = [parse_method(method).adapter for method in experiment.methods]
        if any(ADAPTERS.info(adapter).takes == "pixels" for adapter in adapters):
            return "needs a vision transformer (--model)"
    most = 0
    for variant in experiment.variants:
        for parameters in variant.settings.values():
            most = max(most, parameters.get("k", 0))
    if options.get("views") and options["views"] <= most:
        return f"needs {most + 1} views (--views)"
    return ""


def _options_for(experiment: Experiment, datasets: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that have an effect on an experiment."""
    without = set()
    if not experiment.learned:
        without.add("context")
    if "food" not in datasets:
        without.add("published_names")
    if all(variant.prompt for variant in experiment.variants):
        without.add("template")
    kept = {name: value for name, value in options.items() if name not in without}
    if experiment.options.get("batch_size") == 1:  # it times encoding, so it must encode
        kept["cache"] = None
    return kept


def _alone(experiment: Experiment) -> tuple[str, ...] | None:
    """The datasets of a sweep on some of them, which has a run of its own: others would compute it on all datasets."""
    sweep = any(variant.settings for variant in experiment.variants)
    return experiment.datasets if sweep and len(experiment.datasets) < len(PROTOCOLS) else None


def _label(experiment: Experiment, variant: str, config: RunConfig, taken: Collection[str]) -> str:
    short = experiment.name.partition(":")[2]
    if config.template is not None or config.context is not None:
        label = f"{short}-{variant}"
    else:
        label = _model(config).replace("/", "-").replace(":", "-")
    return f"{short}-{label}" if label in taken else label


def _about(value: float) -> str:
    return f"about {value:.1f}" if value >= 0.05 else "less than 0.1"


def _model(config: RunConfig) -> str:
    return config.model.name if isinstance(config.model, Backbone) else config.model


def _united(configs: Sequence[RunConfig], out: Path) -> RunConfig:
    """One run with all methods and datasets of `configs`, which agree in everything else."""
    methods: dict[str, None] = {}
    wanted, published = set(), False
    for config in configs:
        methods |= dict.fromkeys(config.methods)
        wanted |= set(map(str, config.datasets))
        published |= bool(config.published_names)
    datasets = tuple(name for name in PROTOCOLS if name in wanted)
    return configs[0].replace(methods=tuple(methods), datasets=datasets, out=out, published_names=published)


def _section(experiment: Experiment, runs: Mapping[str, Run]) -> dict[str, Any]:
    """What the page shows of an experiment: its comparison, its figure, or why there is none."""
    shown: dict[str, Any] = {"name": experiment.name, "title": experiment.title, "note": experiment.note}
    shown |= {"comparison": None, "figure": "", "caption": "", "problem": ""}
    try:
        if not runs:
            raise CotsError("not run yet")
        if experiment.table:
            shown["comparison"] = compare(list(dict.fromkeys(runs.values())), experiment.table)
        else:
            drawn = draw(experiment, runs)
            width = round(120 * drawn.figure.get_figwidth())  # pixels: the same size of type in every figure
            shown |= {"figure": inline_svg(drawn.figure, drawn.caption), "width": width, "caption": drawn.caption}
    except CotsError as error:
        shown["problem"] = str(error)
    return shown
