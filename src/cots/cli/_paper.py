"""`cots paper`: the paper's tables and figures by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ._bench import (
    GIVEN_UP,
    Cpus,
    Device,
    Engine,
    EngineOption,
    Gpus,
    Kind,
    Limit,
    MaxWorkers,
    Model,
    Precision,
    RayAddress,
    RetryFailed,
    Seeds,
    Wait,
    Workers,
    engine_of,
    list_things,
    run_config,
    split_names,
)

paper = typer.Typer(no_args_is_help=True, help="The paper's tables and figures by name.")
Name = Annotated[str, typer.Argument(help="table:NAME or figure:NAME (cots paper ls).")]


@paper.command("ls")
def paper_ls(name: Annotated[str | None, typer.Argument(help="Show one experiment in full.")] = None) -> None:
    """List the experiments, or show what one of them runs."""
    from ..paper import find_experiment

    if name is None:
        list_things(Kind.experiments)
    else:
        print(find_experiment(name).text())


@paper.command("run")
def paper_run(
    name: Name,
    data: Annotated[Path, typer.Option(help="Folder that holds the datasets.")],
    out: Annotated[Path | None, typer.Option(help="Default: runs/NAME.")] = None,
    model: Model = None,
    datasets: Annotated[str | None, typer.Option(help="Instead of the paper's, with commas.")] = None,
    methods: Annotated[str | None, typer.Option(help="Instead of the paper's, with commas.")] = None,
    seeds: Seeds = None,
    limit: Limit = None,
    device: Device = None,
    precision: Precision = None,
    workers: Workers = None,
    context: Annotated[Path | None, typer.Option(help="CoOp checkpoint, for table:coop.")] = None,
    engine: EngineOption = Engine.auto,
    ray_address: RayAddress = None,
    gpus_per_worker: Gpus = None,
    cpus_per_worker: Cpus = None,
    max_workers: MaxWorkers = None,
    wait: Wait = None,
    retry_failed: RetryFailed = False,
) -> None:
    """Run what a table or figure of the paper shows; the same command goes on where it stopped."""
    from ..paper import find_experiment

    experiment = find_experiment(name)
    options = {
        "seeds": seeds, "limit": limit, "device": device, "precision": precision, "workers": workers, "wait": wait,
        "engine": engine_of(engine or Engine.auto), "ray_address": ray_address, "gpus_per_worker": gpus_per_worker,
        "cpus_per_worker": cpus_per_worker, "max_workers": max_workers,
    }  # fmt: skip
    folder = out or Path("runs") / experiment.name.replace(":", "-")
    configs = experiment.run_configs(
        data,
        folder,
        model,
        datasets=split_names(datasets) if datasets else None,
        methods=split_names(methods) if methods else None,
        context=context,
        **{key: value for key, value in options.items() if value is not None},
    )
    given_up = sum([run_config(config, retry_failed=retry_failed) for config in configs])
    verb = "compare" if experiment.table else "draw"
    print(f"next: cots paper {verb} {folder} {experiment.name}")
    if given_up:
        raise typer.Exit(GIVEN_UP)


@paper.command("compare")
def paper_compare(
    folder: Annotated[Path, typer.Argument(help="A run's folder.")],
    name: Name,
    markdown: Annotated[bool, typer.Option("--markdown", help="As Markdown tables.")] = False,
) -> None:
    """Set a run beside a table of the paper: ours, paper, difference, cells outside the paper's spread marked."""
    from .._errors import InputError
    from ..paper import compare, find_experiment

    experiment = find_experiment(name)
    if experiment.table is None:
        raise InputError(f"{experiment.name} is a figure; draw it: cots paper draw {folder} {experiment.name}.")
    comparison = compare(experiment.open_runs(folder), experiment.table)
    print(comparison.markdown() if markdown else comparison.text())


@paper.command("draw")
def paper_draw(
    folder: Annotated[Path, typer.Argument(help="The folder that `cots paper run` wrote.")],
    name: Name,
    out: Annotated[Path | None, typer.Option(help="Default: FOLDER/figures.")] = None,
    formats: Annotated[str, typer.Option(help="svg, png, pdf, with commas.")] = "svg,png,pdf",
) -> None:
    """Draw a figure of the paper from runs of your own."""
    from ..paper import draw, find_experiment

    experiment = find_experiment(name)
    print(draw(experiment, experiment.open_runs(folder), out or folder / "figures", split_names(formats)).text())
