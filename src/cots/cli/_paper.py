"""`cots paper`: the paper's tables and figures by name."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from .._errors import InputError
from .._notation import split_methods
from . import _shared as option
from ._bench import INCOMPLETE, list_things, run_config
from ._shared import check_methods, given_options, split_names, with_plugins

paper = typer.Typer(no_args_is_help=True, help="The paper's tables and figures by name.")
Name = Annotated[str, typer.Argument(help="table:NAME or figure:NAME (cots paper ls).")]


def paper_ls(name: Annotated[str | None, typer.Argument(help="Show one experiment in full.")] = None) -> None:
    """List the experiments, or show what one of them runs."""
    from ..paper import find_experiment

    if name is None:
        list_things("experiments")
    else:
        print(find_experiment(name).text())


def paper_run(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="table:NAME, figure:NAME (cots paper ls), or all.")],
    data: Annotated[Path, typer.Option(help="Folder that contains the datasets.")],
    out: Annotated[Path | None, typer.Option(help="Default: runs/NAME.")] = None,
    available: Annotated[bool, typer.Option("--available", help="Run only on the datasets in --data.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With all: print the plan and its cost.")] = False,
    model: Annotated[str | None, typer.Option(help="Default: the paper's, mostly ViT-B-16/openai.")] = None,
    datasets: Annotated[str | None, typer.Option(help="Comma-separated; default: the paper's.")] = None,
    methods: Annotated[str | None, typer.Option(help="Comma-separated; default: the paper's.")] = None,
    seeds: option.Seeds = None,
    limit: option.Limit = None,
    device: option.Device = None,
    precision: option.Precision = None,
    workers: option.Workers = None,
    cache: option.Cache = None,
    views: option.ViewsOfRun = None,
    augmix: option.AugMix = None,
    template: option.Template = None,
    context: Annotated[Path | None, typer.Option(help="CoOp checkpoint, for table:coop.")] = None,
    solver: option.SolverOfRun = None,
    stream_order: option.StreamOrder = None,
    published_names: option.PublishedNames = None,
    engine: option.Engine = None,
    ray_address: option.RayAddress = None,
    gpus_per_worker: option.Gpus = None,
    cpus_per_worker: option.Cpus = None,
    max_workers: option.MaxWorkers = None,
    wait: option.Wait = None,
    part: option.Part = None,
    retry_failed: option.RetryFailed = False,
    allow_errors: option.AllowErrors = False,
) -> None:
    """Run the experiment behind a table or figure, or all. Re-run the same command to resume."""
    check_methods(split_methods(methods or ""))
    if dry_run and name != "all":
        raise InputError(f"--dry-run has no effect on {name}; `cots paper ls {name}` shows what it runs.")
    if name == "all" and (datasets or methods):
        raise InputError("--datasets and --methods have no effect on all; run one experiment, or omit them.")
    own = {"name", "data", "out", "model", "datasets", "methods", "context", "retry_failed", "allow_errors"}
    options = given_options(ctx, without=own | {"available", "dry_run"})
    options |= {"model": model, "context": context}
    execute = functools.partial(run_config, retry_failed=retry_failed)
    if name == "all":
        failed = _run_all(data, out or Path("runs/paper"), available, dry_run, execute, options)
    else:
        wanted = {"datasets": split_names(datasets or ""), "methods": split_methods(methods or "") or None}
        failed = _run_one(name, data, out, available, execute, options | wanted)
    if failed and not allow_errors:
        raise typer.Exit(INCOMPLETE)


def _run_all(
    data: Path, out: Path, available: bool, dry_run: bool, execute: Callable[..., int], options: dict[str, Any]
) -> int:
    """Run every experiment that the data allows, or print what would run; the number of failed records."""
    from ..paper import plan_all

    plan = plan_all(data, out, partial=available or dry_run, **options)
    print(plan.text(), flush=True)
    if dry_run:
        return 0
    if not plan.runs:
        raise InputError(f"{data} has no dataset to run on. Add some (`cots ls datasets` has their folders).")
    failed, page = plan.run(execute)
    print(f"every table and figure: {page}")
    return failed


def _run_one(
    name: str, data: Path, out: Path | None, available: bool, execute: Callable[..., int], options: dict[str, Any]
) -> int:
    """Run one experiment; the number of failed records."""
    from ..paper import find_experiment

    experiment = find_experiment(name)
    folder = out or Path("runs") / experiment.name.replace(":", "-")
    options["datasets"] = _present(options["datasets"] or experiment.datasets, data, available)
    failed = sum([execute(config) for config in experiment.run_configs(data, folder, **options)])
    print(f"next: cots paper {'compare' if experiment.table else 'draw'} {folder} {experiment.name}")
    return failed


def _present(datasets: Sequence[str], data: Path, only: bool) -> tuple[str, ...]:
    """The datasets, all of which must be below `data`; with `only`, those that are."""
    from ..data import available, find_protocol

    here = {protocol.name for protocol in available(data)}
    missing = [name for name in datasets if find_protocol(name).name not in here]
    if missing and (not only or len(missing) == len(datasets)):
        remedy = "Add them" if only else "Add them, or pass --available to run on the others"
        raise InputError(f"{data} lacks {', '.join(missing)}. {remedy} (`cots ls datasets` has their folders).")
    return tuple(name for name in datasets if name not in missing)


def paper_compare(
    folder: Annotated[Path, typer.Argument(help="Run folder.")],
    name: Name,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown tables.")] = False,
) -> None:
    """Compare a run with a table of the paper. Cells outside the paper's spread are marked."""
    from ..paper import compare, find_experiment

    experiment = find_experiment(name)
    if experiment.table is None:
        raise InputError(f"{experiment.name} is a figure; draw it: cots paper draw {folder} {experiment.name}.")
    comparison = compare(experiment.open_runs(folder), experiment.table)
    print(comparison.markdown() if markdown else comparison.text())


def paper_claims(
    folder: Annotated[Path | None, typer.Argument(help="Folder of a run, or of several.")] = None,
) -> None:
    """Check the paper's claims on its tables, and on every run in a folder."""
    from ..paper import claims_text, runs_in

    print(claims_text([] if folder is None else runs_in(folder)))


def paper_draw(
    folder: Annotated[Path, typer.Argument(help="Folder that `cots paper run` wrote.")],
    name: Name,
    out: Annotated[Path | None, typer.Option(help="Default: FOLDER/figures.")] = None,
    formats: option.Figures = "svg,png,pdf",
) -> None:
    """Draw a figure of the paper from your own runs."""
    from ..paper import draw, find_experiment

    experiment = find_experiment(name)
    print(draw(experiment, experiment.open_runs(folder), out or folder / "figures", split_names(formats)).text())


for command in (paper_ls, paper_run, paper_compare, paper_claims, paper_draw):
    paper.command(command.__name__.removeprefix("paper_"))(with_plugins(command))
