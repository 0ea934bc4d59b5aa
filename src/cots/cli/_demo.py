"""`cots demo`."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._errors import InputError
from ._shared import Bars

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..demo import DemoResult

# uv sets UV for the commands that it runs.
NEXT_COMMAND = (
    f"{'uv run ' if 'UV' in os.environ else ''}cots predict your-photo.jpg "
    '--classes "tabby cat,golden retriever,sports car,espresso"'
)


def demo(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="60 photos, and none on the page: in seconds.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Every other method too, in minutes.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Draws the photos of --quick and the bootstrap resamples.")] = 0,
    out: Annotated[Path, typer.Option(help="Where to write the page.")] = Path("cots-demo.html"),
) -> None:
    """Show on 1,000 real photos what TPT does to the confidence and what CoTS does about it; offline."""
    if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise InputError(f"The page cannot be written to {out}; name a file in a writable folder with --out.")
    started = time.perf_counter()
    with Bars() as bars:
        bars.show("demo", 0, None, "loading the model")
        result = _run(bars, seed, quick, everything)
        bars.show("demo", 0, None, "drawing the page")
        from ..evaluate import demo_page

        page = demo_page(result, NEXT_COMMAND)
    # Figures first: if the page cannot be written, nothing computed is lost.
    if json:
        print(result.as_json())
    from rich.console import Console

    console = Console(quiet=json)
    _print(console, result, time.perf_counter() - started)
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"The figures above are complete, but the page could not be written to {out}: {error.strerror}. Choose "
            "another --out."
        ) from None
    console.print(f"\nPage with photos and reliability diagrams: [bold]{out}[/bold]\nNext, on a photo of yours:")
    if not json:
        print(NEXT_COMMAND)  # not wrapped, so that it can be copied


def _run(bars: Bars, seed: int, quick: bool, everything: bool) -> "DemoResult":
    from dataclasses import replace

    from .. import demo as demos
    from ..backbones import load

    photos = demos.short_lists(demos.read_photos())
    if quick:
        photos = demos.draw_photos(photos, demos.QUICK, seed)
    methods = demos.ALL_METHODS if everything else demos.METHODS
    backbone = load("mini")
    total, done = sum(len(s.labels) for s in photos), 0

    def advance(what: str, count: int) -> None:
        nonlocal done
        done += count
        bars.show("demo", done, total if count else None, what)

    shown = [] if quick else demos.show_photos(backbone, progress=advance)
    result = demos.run_demo(photos, seed=seed, methods=methods, backbone=backbone, progress=advance)
    return replace(result, shown=shown)


def _print(console: "Console", result: "DemoResult", seconds: float) -> None:
    from ..methods import method_title
    from ._chart import reliability_chart

    console.print(_table(result))
    console.print()
    chart = reliability_chart({method_title(m): result.pooled(m) for m in ("tpt", "tpt+cots")})
    console.print(chart, no_wrap=True, crop=False)
    console.print()
    for sentence in result.sentences:
        console.print(sentence, highlight=False)
    never = f" It was not trained on the names {', '.join(result.untrained)}." if result.untrained else ""
    console.print(
        f"\n[dim]Photos that {result.model} {result.weights_hash[:12]}, a small embedded model, never saw.{never} "
        f"20-bin ECE with its 95% bootstrap interval; perfect calibration shows about {result.noise_floor:.1f}% here. "
        f"{seconds:.0f} s.[/dim]",
        highlight=False,
    )


def _table(result: "DemoResult") -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from ..demo import POOLED
    from ..methods import method_title

    rows = [row for row in result.rows if row["dataset"] == POOLED]
    title = f"{rows[0]['n']:,} photos that the model never saw"
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.show_edge = False
    table.add_column("method")
    for column in ("accuracy %", "confidence %", "ECE %", "NLL"):
        table.add_column(column, justify="right")
    for row in rows:
        ends = "–".join(f"{end:.1f}" for end in row["intervals"]["ece"])
        cells = f"{row['accuracy']:.1f}", f"{row['mean_confidence']:.1f}", f"{row['ece']:.1f} [dim]{ends}[/dim]"
        ours = row["method"] in {"tpt+cots", "tpt+ecots"}
        table.add_row(method_title(row["method"]), *cells, f"{row['nll']:.2f}", style="bold" if ours else None)
    return table
