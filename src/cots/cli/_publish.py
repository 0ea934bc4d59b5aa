"""`cots pack`, `cots unpack`, `cots export-records` and `cots leaderboard`: runs to hand on."""

from pathlib import Path
from typing import Annotated

import typer

from ._shared import Bars, command_line


def pack(
    folder: Annotated[str, typer.Argument(help="Run folder, or its URL.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The archive to write; ends in .cots.tar.")],
) -> None:
    """Pack a finished run into one file. Manifest, records and checksums; no photos or features."""
    from ..bench import pack_run

    file = pack_run(folder, out)
    print(f"{file} ({file.stat().st_size / 1e6:.1f} MB)")


def unpack(
    file: Annotated[Path, typer.Argument(help="Archive of cots pack.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="New folder; default: FILE without its ending.")
    ] = None,
) -> None:
    """Unpack a run into a new folder, once every file is verified."""
    from ..bench import unpack_run

    run = unpack_run(file, out)
    print(f"{run.folder}\nnext: {command_line('report', run.folder)}")


def leaderboard(
    runs: Annotated[list[str], typer.Argument(help="Run folders, their URLs, or archives of cots pack.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the page.")],
    mixed: Annotated[
        bool, typer.Option("--mixed", help="Allow runs with other samples, seeds or views; the page says so.")
    ] = False,
    reports: Annotated[bool, typer.Option("--reports/--no-reports", help="Write each run's report beside it.")] = True,
    resamples: Annotated[int, typer.Option(min=2, help="Bootstrap resamples for the intervals.")] = 1000,
) -> None:
    """Write a table of many runs as one page. Sortable, with intervals, pairwise wins, cost and provenance."""
    from ..evaluate import write_leaderboard

    with Bars() as bars:
        page = write_leaderboard(runs, out, mixed=mixed, reports=reports, resamples=resamples, progress=bars.show)
    print(page)


def export_records(
    folder: Annotated[str, typer.Argument(help="Run folder, or its URL.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The table to write; ends in .csv or .parquet.")],
    probabilities: Annotated[bool, typer.Option("--probabilities", help="Also those of all classes.")] = False,
    partial: Annotated[bool, typer.Option("--partial", help="Also of an unfinished run.")] = False,
) -> None:
    """Write the records of a run as a table. One row per dataset, method, seed and sample."""
    from ..bench import export_records as export

    with Bars() as bars:

        def progress(done: int, total: int) -> None:
            bars.show("shards", done, total)

        exported = export(folder, out, probabilities=probabilities, partial=partial, progress=progress)
    print(f"{exported.file}: {exported.rows} rows, {exported.failed} with an error")
