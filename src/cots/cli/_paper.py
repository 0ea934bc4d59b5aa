"""`cots paper`: the paper's tables and figures by name."""

from pathlib import Path
from typing import Annotated

import typer

from .._errors import InputError
from . import _shared as option
from ._bench import INCOMPLETE, list_things, resolve_engine, run_config
from ._shared import check_methods, given_options, split_names

paper = typer.Typer(no_args_is_help=True, help="The paper's tables and figures by name.")
Name = Annotated[str, typer.Argument(help="table:NAME or figure:NAME (cots paper ls).")]


@paper.command("ls")
def paper_ls(name: Annotated[str | None, typer.Argument(help="Show one experiment in full.")] = None) -> None:
    """List the experiments, or show what one of them runs."""
    from ..paper import find_experiment

    if name is None:
        list_things("experiments")
    else:
        print(find_experiment(name).text())


@paper.command("run")
def paper_run(
    ctx: typer.Context,
    name: Name,
    data: Annotated[Path, typer.Option(help="Folder that contains the datasets.")],
    out: Annotated[Path | None, typer.Option(help="Default: runs/NAME.")] = None,
    model: Annotated[str | None, typer.Option(help="Default: the paper's.")] = None,
    datasets: Annotated[str | None, typer.Option(help="Comma-separated; default: the paper's.")] = None,
    methods: Annotated[str | None, typer.Option(help="Comma-separated; default: the paper's.")] = None,
    seeds: option.Seeds = None,
    limit: option.Limit = None,
    device: option.Device = None,
    precision: option.Precision = None,
    workers: option.Workers = None,
    context: Annotated[Path | None, typer.Option(help="CoOp checkpoint, for table:coop.")] = None,
    engine: option.Engine = "auto",
    ray_address: option.RayAddress = None,
    gpus_per_worker: option.Gpus = None,
    cpus_per_worker: option.Cpus = None,
    max_workers: option.MaxWorkers = None,
    wait: option.Wait = None,
    retry_failed: option.RetryFailed = False,
    allow_errors: option.AllowErrors = False,
) -> None:
    """Run the experiment behind a table or figure of the paper; re-run the same command to resume."""
    check_methods(split_names(methods or ""))
    from ..paper import find_experiment

    experiment = find_experiment(name)
    own = ("name", "data", "out", "model", "datasets", "methods", "context", "retry_failed", "allow_errors")
    options = given_options(ctx, without=own) | {"engine": resolve_engine(engine or "auto")}
    folder = out or Path("runs") / experiment.name.replace(":", "-")
    chosen = {"datasets": split_names(datasets or "") or None, "methods": split_names(methods or "") or None}
    configs = experiment.run_configs(data, folder, model, context=context, **chosen, **options)
    failed = sum([run_config(config, retry_failed=retry_failed) for config in configs])
    print(f"next: cots paper {'compare' if experiment.table else 'draw'} {folder} {experiment.name}")
    if failed and not allow_errors:
        raise typer.Exit(INCOMPLETE)


@paper.command("compare")
def paper_compare(
    folder: Annotated[Path, typer.Argument(help="Run folder.")],
    name: Name,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown tables.")] = False,
) -> None:
    """Compare a run with a table of the paper; cells outside the paper's spread are marked."""
    from ..paper import compare, find_experiment

    experiment = find_experiment(name)
    if experiment.table is None:
        raise InputError(f"{experiment.name} is a figure; draw it: cots paper draw {folder} {experiment.name}.")
    comparison = compare(experiment.open_runs(folder), experiment.table)
    print(comparison.markdown() if markdown else comparison.text())


@paper.command("draw")
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
