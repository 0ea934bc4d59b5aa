"""`cots run`, `report`, `validate` and `ls`."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._errors import CotsError, InputError
from ._bars import Bars

if TYPE_CHECKING:
    from ..bench import ClusterState

Out = Annotated[Path, typer.Option(help="The run's folder; the same command goes on in it.")]
Data = Annotated[Path | None, typer.Option(help="Folder that holds the datasets, in CoOp's layout.")]
Model = Annotated[str | None, typer.Option(help="Model, as for cots.load; default mini.")]
Seeds = Annotated[str | None, typer.Option(help="Comma-separated seeds of the views.")]
Limit = Annotated[int | None, typer.Option(help="That many samples of each dataset.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; default: the GPU where there is one.")]
Precision = Annotated[str | None, typer.Option(help="Of the image encoder: float32, bfloat16 or float16.")]
Workers = Annotated[int | None, typer.Option(help="Processes that read images and make views.")]
RayAddress = Annotated[str | None, typer.Option(help="Cluster of --engine ray; default: RAY_ADDRESS, else here.")]
Gpus = Annotated[float | None, typer.Option(help="GPUs of a worker with --engine ray; fractions share one.")]
Cpus = Annotated[float | None, typer.Option(help="CPUs of a worker with --engine ray.")]
MaxWorkers = Annotated[int | None, typer.Option(help="Workers with --engine ray, at most; default: all that fit.")]
Wait = Annotated[float | None, typer.Option(help="Seconds to wait for room in the cluster, or for rank 0.")]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Do the shards again that have errors in them.")]


GIVEN_UP = 3  # exit status of a run that came to its end, but not with all of its shards


class Engine(StrEnum):
    auto = "auto"
    inline = "inline"
    ray = "ray"
    rank = "rank"


EngineOption = Annotated[
    Engine | None,
    typer.Option(help="inline; ray; rank: this process's part under torchrun or srun; auto: rank there, else inline."),
]


class Kind(StrEnum):
    models = "models"
    datasets = "datasets"
    methods = "methods"
    metrics = "metrics"
    experiments = "experiments"


def run(
    config: Annotated[Path | None, typer.Option(help="TOML file with these options; the command line wins.")] = None,
    model: Model = None,
    data: Data = None,
    datasets: Annotated[str | None, typer.Option(help="Protocols (cots ls datasets) or paths, with commas.")] = None,
    methods: Annotated[str | None, typer.Option(help="adapter or adapter+calibrator, with commas.")] = None,
    seeds: Seeds = None,
    out: Annotated[
        str | None, typer.Option(help="The run's folder, or an fsspec URL; the same command goes on in it.")
    ] = None,
    limit: Limit = None,
    device: Device = None,
    precision: Precision = None,
    workers: Workers = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Episodes at a time (16, on a GPU 64); changes rounding only.")
    ] = None,
    cache: Annotated[str | None, typer.Option(help="Folder of view features that several runs share.")] = None,
    classes: Annotated[Path | None, typer.Option(help="Class-name file for data of your own.")] = None,
    solver: Annotated[str | None, typer.Option(help="Temperature solver: adam (the paper) or exact.")] = None,
    renderer: Annotated[str | None, typer.Option(help="Renderer of the views: auto, pil or gpu.")] = None,
    engine: EngineOption = None,
    ray_address: RayAddress = None,
    gpus_per_worker: Gpus = None,
    cpus_per_worker: Cpus = None,
    max_workers: MaxWorkers = None,
    wait: Wait = None,
    retry_failed: RetryFailed = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print errors only.")] = False,
) -> None:
    """Run methods on datasets into a folder that survives anything; the same command goes on where it stopped."""
    from ..bench import RunConfig

    given = {
        "model": model, "data": data, "datasets": datasets, "methods": methods, "seeds": seeds, "out": out,
        "limit": limit, "device": device, "precision": precision, "workers": workers, "batch_size": batch_size,
        "cache": cache, "classes": classes, "solver": solver, "renderer": renderer,
        "engine": engine and engine_of(engine), "ray_address": ray_address, "gpus_per_worker": gpus_per_worker,
        "cpus_per_worker": cpus_per_worker, "max_workers": max_workers, "wait": wait,
    }  # fmt: skip
    given = {key: value for key, value in given.items() if value is not None}
    defaults = {"engine": engine_of(Engine.auto)}
    settings = RunConfig.from_toml(config, defaults, **given) if config else RunConfig(**{**defaults, **given})
    if run_config(settings, quiet, retry_failed):
        raise typer.Exit(GIVEN_UP)


def engine_of(engine: Engine) -> str:
    """The engine of a run's settings."""
    from ..bench import Rank

    if engine is Engine.auto:
        return "rank" if Rank.launched() else "inline"
    return str(engine)


def run_config(config: Any, quiet: bool = False, retry_failed: bool = False) -> int:
    """Plan, print the plan, run with bars, and say what to do next; how many records shards left that were given up."""
    from ..bench import plan

    planned = plan(config)
    first = planned.rank is None or planned.rank.index == 0  # one of several ranks speaks for all
    if first and not quiet:
        print(planned.text(), flush=True)
    with Bars(hidden=not first) as bars:

        def progress(stage: str, dataset: str, seed: int, done: int, total: int) -> None:
            if config.engine != "ray":
                bars.update(f"{dataset} seed {seed} {stage}", done, total)

        def watch(state: ClusterState) -> None:
            failures = f", {state.failures} failures" if state.failures else ""
            failures += f", {state.given_up} given up" if state.given_up else ""
            shown = "waiting for room" if state.waiting else f"{state.workers} workers{failures}"
            bars.update("cluster", state.done, state.total, shown)

        finished = planned.run(progress, watch, retry_failed=retry_failed)
    if planned.rank is not None and (unfinished := planned.unfinished()):
        print(f"{planned.rank.text()} is done.\n{unfinished}", flush=True)
        print("Where a rank is gone, give the command again, with any number of ranks.", flush=True)
        return 0
    if not first:
        return 0
    names = [dataset["name"] for dataset in planned.resolved["datasets"]]
    cells = [finished.failures(d, m, s) for d in names for m in config.methods for s in config.seeds]
    failed, given_up = sum(cell.records for cell in cells), sum(cell.given_up for cell in cells)
    if not quiet:
        print(f"done: {finished.folder}" + (f"; {failed} records with errors" if failed else ""))
        print(f"next: cots report {finished.folder}")
    if given_up:
        print(
            f"cots: {given_up} of the records hold errors of shards that failed as a whole. Remove the cause, then "
            "give the same command with --retry-failed.",
            file=sys.stderr,
        )
    return given_up


def report(
    folder: Annotated[str, typer.Argument(help="A run's folder, or its URL.")],
    format: Annotated[str, typer.Option(help="html, md, tex, csv, with commas.")] = "html,md,tex,csv",
    figures: Annotated[
        str, typer.Option(help="Formats of the figures: svg, png, pdf; empty for none.")
    ] = "svg,png,pdf",
    out: Annotated[Path | None, typer.Option(help="Default: FOLDER/report.")] = None,
    resamples: Annotated[int, typer.Option(min=2, help="Bootstrap resamples of the intervals.")] = 1000,
) -> None:
    """Tables, reliability diagrams and risk-coverage curves of a run: one HTML page, Markdown, TeX and CSV."""
    from ..bench import Run
    from ..evaluate import write_report

    if out is None and "://" in folder:
        raise InputError(f"The report of {folder} needs a folder of its own: give --out.")
    with Bars() as bars:
        written = write_report(
            Run.open(folder),
            out or Path(folder) / "report",
            split_names(format),
            figures=split_names(figures),
            resamples=resamples,
            progress=bars.update,
        )
    print(written.text())


def validate(
    names: Annotated[list[str] | None, typer.Argument(help="Protocols or paths; default: all found.")] = None,
    data: Data = None,
    classes: Annotated[Path | None, typer.Option(help="Class-name file for data of your own.")] = None,
    per_class: Annotated[int, typer.Option(min=0, help="Images decoded of each class.")] = 1,
    everything: Annotated[bool, typer.Option("--all-images", help="Decode every image.")] = False,
) -> None:
    """Check datasets on disk against what their protocols expect, and say what to fix."""
    from ..data import available, open_dataset
    from ..data import validate as check

    if not names:
        if data is None:
            raise InputError("Give --data DIR, the folder that holds the datasets, or the path of one dataset.")
        names = [protocol.name for protocol in available(data)]
        if not names:
            raise InputError(f"{data} holds none of the fifteen datasets; `cots ls datasets` names their folders.")
    problems = 0
    with Bars() as bars:
        for name in names:
            try:
                dataset = open_dataset(name, data, classes)
            except InputError as error:
                print(f"{name}: {error}\n")
                problems += 1
                continue
            shown = check(
                dataset,
                per_class=None if everything else per_class,
                progress=lambda done, total, name=name: bars.update(name, done, total),
            )
            print(shown.text() + "\n")
            problems += not shown.ok
    if problems:
        print(f"{problems} of {len(names)} with problems", file=sys.stderr)
        raise typer.Exit(1)


def list_things(what: Annotated[Kind, typer.Argument(help="What to list.")]) -> None:
    """List the models, datasets, methods, metrics or experiments that cots knows by name."""
    for line in _LISTS[what]():
        print(line)


def _models() -> list[str]:
    import open_clip

    known = [f"{arch}/{tag}" for arch, tag in open_clip.list_pretrained()]
    return ["mini", *known, "hf-hub:ORG/NAME", "local-dir:FOLDER", "ARCH//FILE", "random:ARCH"]


def _datasets() -> list[str]:
    from ..data import PROTOCOLS

    lines = []
    for p in PROTOCOLS.values():
        views = f"{p.views} views{' with AugMix' if p.augmix else ''}"
        lines.append(
            f"{p.name:<16}{p.title:<16}{p.classes:>5} classes {p.test_size:>6} images  {views:<22} {p.folder}/  "
            f"({', '.join(p.aliases)})"
        )
    return [*lines, "or a folder of class folders, a .tar pattern, or a .csv with the header path,label"]


def _methods() -> list[str]:
    from .._registry import describe
    from ..adapters import ADAPTERS
    from ..calibrators import CALIBRATORS

    lines = []
    for title, registry in (("adapters", ADAPTERS), ("calibrators", CALIBRATORS)):
        lines.append(f"{title}:")
        width = max(map(len, registry)) + 2
        for name in registry:
            try:
                registry.get(name)
            except CotsError as error:  # of another package: no reason to hide all the others
                lines.append(f"  {name:<{width}}{error}")
                continue
            settings = ", ".join(f"{key}={value!r}" for key, value in registry.settings(name).items())
            lines.append(f"  {name:<{width}}{describe(registry.get(name))}" + (f" [{settings}]" if settings else ""))
    return [*lines, "A method is adapter or adapter+calibrator, such as tpt+cots."]


def _metrics() -> list[str]:
    from ..metrics import METRICS

    known = METRICS.infos()
    width = max(len(metric.name) for metric in known) + 2
    return [f"{m.name:<{width}}{m.title}: {m.explained} ({m.unit}, {m.direction})" for m in known]


def _experiments() -> list[str]:
    from ..paper import EXPERIMENTS

    width = max(map(len, EXPERIMENTS))
    return [f"{name:<{width}}  {experiment.title}" for name, experiment in EXPERIMENTS.items()]


_LISTS = {
    Kind.models: _models,
    Kind.datasets: _datasets,
    Kind.methods: _methods,
    Kind.metrics: _metrics,
    Kind.experiments: _experiments,
}


def split_names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
