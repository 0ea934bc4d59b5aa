"""`cots run`, `report`, `validate` and `ls`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from .._errors import CotsError, InputError
from .._notation import split_methods
from . import _shared as option
from ._shared import Bars, check_methods, command_line, given_options, print_table, split_names

if TYPE_CHECKING:
    from .._registry import Registry
    from ..bench import ClusterState

INCOMPLETE = 3  # exit status of a run that finished, but with errors in its records


def run(
    ctx: typer.Context,
    config: Annotated[Path | None, typer.Option(help="TOML file of these options; the command line wins.")] = None,
    model: option.Model = None,
    data: option.Data = None,
    datasets: Annotated[
        str | None, typer.Option(help="Comma-separated names (cots ls datasets), paths, or hf:FOLDER.")
    ] = None,
    methods: Annotated[str | None, typer.Option(help="Comma-separated methods (cots ls methods).")] = None,
    seeds: option.Seeds = None,
    out: Annotated[str | None, typer.Option(help="Run folder, or an fsspec URL; re-run to resume.")] = None,
    limit: option.Limit = None,
    device: option.Device = None,
    precision: option.Precision = None,
    workers: option.Workers = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples per batch; default: 16, or 64 on a GPU.")] = None,
    cache: option.Cache = None,
    classes: option.Classes = None,
    views: option.ViewsOfRun = None,
    augmix: option.AugMix = None,
    template: option.Template = None,
    context: option.Context = None,
    descriptions: option.Descriptions = None,
    attributes: option.Attributes = None,
    solver: option.SolverOfRun = None,
    stream_order: option.StreamOrder = None,
    published_names: option.PublishedNames = None,
    corrupt: option.Corrupt = None,
    renderer: Annotated[Literal["auto", "pil", "gpu"] | None, typer.Option(help="View renderer.")] = None,
    engine: option.Engine = None,
    ray_address: option.RayAddress = None,
    gpus_per_worker: option.Gpus = None,
    cpus_per_worker: option.Cpus = None,
    max_workers: option.MaxWorkers = None,
    wait: option.Wait = None,
    part: option.Part = None,
    retry_failed: option.RetryFailed = False,
    allow_errors: option.AllowErrors = False,
    log: option.Log = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print errors only.")] = False,
) -> None:
    """Run methods on datasets and record the results. Re-run the same command to resume."""
    for name in ("datasets", "methods", "out"):
        if config is None and not ctx.params[name]:
            raise InputError(f"--{name} is missing. Pass it here, or in a TOML file with --config.")
    check_methods(split_methods(methods or ""))
    from ..bench import RunConfig

    options = given_options(ctx, without=("config", "retry_failed", "allow_errors", "log", "quiet"))
    settings = RunConfig.from_toml(config, **options) if config else RunConfig(**options)
    if run_config(settings, quiet, retry_failed, log or ()) and not allow_errors:
        raise typer.Exit(INCOMPLETE)


def run_config(config: Any, quiet: bool = False, retry_failed: bool = False, log: Sequence[str] = ()) -> int:
    """Plan and execute a run with progress bars, and print the next step; returns the number of error records."""
    from ..bench import plan
    from ..evaluate import RunLog

    if log and config.part is not None:
        raise InputError("--log has no effect with --part. When all parts are done, run the command without --part.")
    logs = RunLog(log)  # first, because a package may be missing
    planned = plan(config)
    if not quiet:
        print(planned.text(), flush=True)
    with Bars() as bars, logs:

        def progress(stage: str, dataset: str, seed: int, done: int, total: int) -> None:
            if config.engine != "ray":
                bars.show(f"{dataset} seed {seed} {stage}", done, total)

        def watch(state: ClusterState) -> None:
            shown = "waiting for resources" if state.waiting else f"{state.workers} workers"
            shown += f", {state.failures} failures" if state.failures else ""
            shown += f", {state.given_up} abandoned" if state.given_up else ""
            bars.show("cluster", state.done, state.total, shown)

        finished = planned.run(progress, watch, finished=logs, retry_failed=retry_failed)
    if planned.part is not None and (unfinished := planned.unfinished_parts()):
        print(f"part {planned.part} is done; not done yet: {', '.join(map(str, unfinished))}")
        return 0
    names = [entry.name for entry in planned.manifest.datasets]
    cells = [finished.failures(d, m, s) for d in names for m in config.methods for s in config.seeds]
    failed, abandoned = sum(cell.records for cell in cells), sum(cell.given_up for cell in cells)
    if not quiet:
        print(f"done: {finished.folder}")
        print(f"next: {command_line('report', finished.folder)}")
    if failed:
        of = f", {abandoned} of them from abandoned shards" if abandoned else ""
        print(
            f"cots: {failed} records contain errors{of}; cots report lists them. Fix the cause, then re-run the same "
            "command with --retry-failed, or accept them with --allow-errors.",
            file=sys.stderr,
        )
    return failed


def report(
    folder: Annotated[str, typer.Argument(help="Run folder, or its URL.")],
    format: Annotated[str, typer.Option(help="Comma-separated formats: html, md, tex, csv.")] = "html,md,tex,csv",
    figures: option.Figures = "svg,png,pdf",
    out: Annotated[Path | None, typer.Option(help="Default: FOLDER/report.")] = None,
    resamples: Annotated[int, typer.Option(min=2, help="Bootstrap resamples for the intervals.")] = 1000,
    policy: Annotated[Path | None, typer.Option(help="Policy of cots check, to evaluate its prediction sets.")] = None,
    baseline: Annotated[str | None, typer.Option(help="Method to compare with; default: each adapter alone.")] = None,
) -> None:
    """Write the report of a run. Tables, diagrams and curves, as HTML, Markdown, TeX and CSV."""
    if out is None and "://" in folder:
        raise InputError(f"The report of {folder} needs a local folder. Pass --out.")
    from ..bench import Run
    from ..conformal import Policy
    from ..evaluate import write_report

    with Bars() as bars:
        written = write_report(
            Run.open(folder), out or Path(folder) / "report", split_names(format), figures=split_names(figures),
            resamples=resamples, policy=None if policy is None else Policy.load(policy), baseline=baseline,
            progress=bars.show,
        )  # fmt: skip
    print(written.text())


def compare(
    folder: Annotated[str, typer.Argument(help="Run folder, or its URL.")],
    methods: Annotated[list[str] | None, typer.Argument(help="Default: all of the run.")] = None,
    other: Annotated[str | None, typer.Option("--with", help="A second run, for the last method.")] = None,
    metric: Annotated[list[str] | None, typer.Option(help="Comma-separated; default: accuracy,ece.")] = None,
    resamples: Annotated[int, typer.Option(min=2, help="Bootstrap resamples for the intervals.")] = 1000,
) -> None:
    """Compare methods of a run on the same images. Paired differences of two, a matrix of wins of more."""
    from ..bench import Run
    from ..evaluate import compare_methods

    second = None if other is None else Run.open(other)
    for name in methods or ():
        if Path(name).is_dir():
            raise InputError(
                f"{name} is a folder, not a method. To compare with another run: "
                f"cots compare {folder} METHOD --with {name}"
            )
    names = split_methods(",".join(methods or ()))
    metrics = split_names(",".join(metric or ("accuracy", "ece")))
    found = compare_methods(Run.open(folder), names, other=second, metrics=metrics, resamples=resamples)
    print(found.text())


def validate(
    names: Annotated[list[str] | None, typer.Argument(help="Dataset names or paths, or run folders.")] = None,
    data: option.Data = None,
    classes: option.Classes = None,
    per_class: Annotated[int, typer.Option(min=0, help="Images to decode per class.")] = 1,
    everything: Annotated[bool, typer.Option("--all-images", help="Decode every image.")] = False,
) -> None:
    """Check datasets, or every file of a run. Says what to fix."""
    if not names and data is None:
        raise InputError("Pass --data DIR, the folder that contains the datasets, or the path of a dataset or run.")
    from .._files import location
    from ..bench import check_run
    from ..data import available, open_dataset
    from ..data import validate as check

    names = names or [protocol.name for protocol in available(data or "")]
    if not names:
        raise InputError(f"{data} contains none of the fifteen datasets; `cots ls datasets` lists their folders.")
    failed = 0
    with Bars() as bars:
        for name in names:
            progress = functools.partial(bars.show, name)
            if "://" in name or (Path(name) / "manifest.json").is_file():  # a run, not a dataset
                result = check_run(location(name), progress)
            else:
                try:
                    dataset = open_dataset(name, data, classes)
                except InputError as error:
                    print(f"{name}: {error}\n")
                    failed += 1
                    continue
                result = check(dataset, per_class=None if everything else per_class, progress=progress)
            print(result.text() + "\n")
            failed += not result.ok
    if failed:
        print(f"{failed} of {len(names)} datasets or runs have errors", file=sys.stderr)
        raise typer.Exit(1)


Kind = Literal["models", "datasets", "classes", "methods", "metrics", "experiments"]


def list_things(
    what: Annotated[Kind, typer.Argument(help="What to list.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown tables.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Every model of open_clip too.")] = False,
) -> None:
    """List models, datasets, classes, methods, metrics, experiments."""
    if everything and what != "models":
        raise InputError(f"--all has no effect on {what}, which are all listed. Omit it.")
    for i, (columns, rows) in enumerate(_tables(what, markdown, everything)):
        print(end="\n" if i else "")
        print_table(columns, rows, markdown=markdown)


def _tables(what: Kind, brief: bool, everything: bool) -> Iterator[tuple[Sequence[str], Iterable[Sequence[str]]]]:
    """The (columns, rows) of each table to list; `brief` omits settings and combinations of methods."""
    if what == "models":
        from ..backbones import known_models

        yield ("model", "parameters", "pretraining data", "licence of the weights"), known_models(everything)
    elif what == "datasets":
        from ..data import PROTOCOLS

        rows = []
        for p in PROTOCOLS.values():
            counts = str(p.classes), str(p.test_size), "yes" if p.augmix else "no"
            rows.append((p.name, p.title, *counts, f"{p.folder}/", ", ".join(p.aliases)))
        yield ("dataset", "title", "classes", "images", "AugMix", "folder", "aliases"), rows
    elif what == "classes":
        from ..classes import class_list, class_lists

        rows = []
        for name in class_lists():
            names = class_list(name)
            rows.append((name, str(len(names)), ", ".join(names[:4])))
        yield ("list", "classes", "first"), rows
    elif what == "methods":
        from ..adapters import ADAPTERS
        from ..calibrators import CALIBRATORS

        for registry in (ADAPTERS, CALIBRATORS):
            columns, rows = (registry.kind, "summary", "citation", "settings"), _methods(registry)
            if brief:
                columns, rows = columns[:3], ((f"`{name}`", *row) for name, *row, _ in rows if "(" not in name)
            yield columns, rows
    elif what == "metrics":
        from ..metrics import METRICS

        rows = [(m.name, f"{m.title}: {m.explained}", m.unit, m.direction) for m in METRICS.infos()]
        yield ("metric", "meaning", "unit", "direction"), rows
    else:
        from ..paper import EXPERIMENTS

        yield ("experiment", "title"), [(name, experiment.title) for name, experiment in EXPERIMENTS.items()]


def _methods(registry: Registry[Any]) -> Iterator[tuple[str, str, str, str]]:
    infos = registry.infos()
    for info in infos:
        title = f"{info.title} ({info.kind})" if hasattr(info, "kind") else info.title
        settings = ", ".join(f"{key}={value!r}" for key, value in info.settings.items() if key != "state")
        summary = info.summary.removeprefix(f"{info.title}: ")
        yield info.name, f"{title}: {summary}" if summary else title, info.cite, settings
    for name in set(registry) - {info.name for info in infos}:  # of third-party packages
        try:
            registry.info(name)
        except CotsError as error:
            yield name, str(error), "", ""
