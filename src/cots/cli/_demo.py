"""`cots demo`."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .._errors import InputError
from ._shared import Bars

# uv sets UV for the commands that it runs.
NEXT_COMMAND = (
    f"{'uv run ' if 'UV' in os.environ else ''}cots predict your-photo.jpg "
    '--classes "tabby cat,golden retriever,sports car,espresso"'
)


def demo(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="8 photos per dataset, in seconds.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Draws the photos of --quick and the bootstrap resamples.")] = 0,
    out: Annotated[Path, typer.Option(help="Where to write the page.")] = Path("cots-demo.html"),
) -> None:
    """Show on real photos what TPT does to the confidence and what CoTS does about it; offline, about a minute."""
    from ..demo import QUICK, read_photos, run_demo, summary
    from ..evaluate import demo_page

    if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise InputError(f"The page cannot be written to {out}; name a file in a writable folder with --out.")
    started = time.perf_counter()
    photos = read_photos()
    total = sum(min(QUICK, len(s.labels)) if quick else len(s.labels) for s in photos)
    done = 0
    with Bars() as bars:
        bars.show("demo", 0, total, "loading the model")

        def advance(what: str, count: int) -> None:
            nonlocal done
            done += count
            bars.show("demo", done, total, what)

        result = run_demo(seed=seed, quick=quick, photos=photos, progress=advance)
    sentences = summary(result)
    page = demo_page(result, sentences, NEXT_COMMAND)
    # Figures first: if the page cannot be written, nothing computed is lost.
    if json:
        print(result.as_json())
    console = Console(quiet=json)
    for dataset in dict.fromkeys(row["dataset"] for row in result.rows):
        console.print(_table(result, dataset), "")
    console.print(
        f"[dim]After each figure its 95% bootstrap interval; 20-bin ECE, bins (lo, hi]; perfect calibration shows "
        f"about {result.noise_floor:.1f}% on this many photos. Model {result.model} {result.weights_hash[:12]}: a "
        f"small embedded model, not CLIP. {time.perf_counter() - started:.0f} s.[/dim]\n"
    )
    for sentence in sentences:
        console.print(sentence)
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"The figures above are complete, but the page could not be written to {out}: {error.strerror}. Choose "
            "another --out."
        ) from None
    console.print(f"\nPage with reliability diagrams: [bold]{out}[/bold]\nNext, on a photo of yours:")
    if not json:
        print(NEXT_COMMAND)  # not wrapped, so that it can be copied


def _table(result, dataset: str) -> Table:
    rows = [row for row in result.rows if row["dataset"] == dataset]
    table = Table(title=f"{dataset}: {rows[0]['n']} photos", title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.show_edge = False  # so that value and interval of all four fit in 80 columns
    table.add_column("method")
    for column in ("accuracy %", "ECE %", "NLL", "confidence %"):
        table.add_column(column, justify="right")
    for row in rows:
        cells = []
        for name, digits in (("accuracy", 1), ("ece", 1), ("nll", 3), ("mean_confidence", 1)):
            ends = ["100" if end == 100.0 else f"{end:.{min(digits, 2)}f}" for end in row["intervals"][name]]
            cells.append(f"{row[name]:.{digits}f} [dim]{'–'.join(ends)}[/dim]")
        table.add_row(row["method"], *cells, style="bold" if row["method"] in {"tpt+cots", "tpt+ecots"} else None)
    return table
