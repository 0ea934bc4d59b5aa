"""`cots demo` and `cots serve`: figures in the terminal and on a page, and the HTTP service with its page."""

import ipaddress
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._errors import InputError
from ._shared import Bars, Model, Precision, Solver, Taxonomy, Views, command_line, sleep_while_waiting, split_names

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ..demo import DemoResult
    from ..evaluate import Scored
    from ..serve import ServeSettings

BINS, WIDTH = 10, 25
RIGHT, OVER, UNDER, DIAGONAL = "█", "░", "▒", "│"
_STYLES = {RIGHT: "blue", OVER: "red", UNDER: "yellow", DIAGONAL: "bold"}
NEXT_COMMAND = (
    f'{command_line("predict", "your-photo.jpg", "--classes")} "tabby cat,golden retriever,sports car,espresso"'
)


def demo(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="100 photos, none of them on the page; takes seconds.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Run all methods; takes minutes.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the --quick photos and the bootstrap resamples.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Where to write the page; default: cots-demo.html, or cots-demo-quick.html.")
    ] = None,
) -> None:
    """Show on 1,000 photos what TPT and CoTS do, and what 300 labels buy. Works offline."""
    out = out or Path("cots-demo-quick.html" if quick else "cots-demo.html")
    if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise InputError(f"The page cannot be written to {out}; name a file in a writable folder with --out.")
    sleep_while_waiting()
    started = time.perf_counter()
    with Bars() as bars:
        bars.show("demo", 0, None, "loading the model")
        result = _run(bars, seed, quick, everything)
        bars.show("demo", 0, None, "drawing the page")
        from ..demo import ALL_TEST_PHOTOS
        from ..evaluate import demo_page

        page = demo_page(result, NEXT_COMMAND, ALL_TEST_PHOTOS)
    # Figures first, so that nothing is lost if the page cannot be written.
    if json:
        print(result.as_json())
    from rich.console import Console

    console = Console(quiet=json)
    _print(console, result, quick, time.perf_counter() - started)
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"The figures above are complete, but the page could not be written to {out}: {error.strerror}. Choose "
            "another --out."
        ) from None
    photos = "" if quick else "photos and "
    console.print(f"\nPage with {photos}reliability diagrams: [bold]{out}[/bold]\nTry your own photo:")
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


def _print(console: "Console", result: "DemoResult", quick: bool, seconds: float) -> None:
    from ..demo import ALL_TEST_PHOTOS, KNOWN
    from ..methods import method_title

    console.print(_table(result))
    for kind in result.kinds:
        console.print(f"\n[bold]{kind.name.capitalize()}, {len(kind)} photos[/bold]")
        scored = {method_title(method): kind.outcomes[method].scored for method in ("tpt", "tpt+cots")}
        console.print(reliability_chart(scored), no_wrap=True, crop=False)
        console.print(f"\n{' '.join(kind.sentences)}", highlight=False)
        if kind.name == KNOWN:
            console.print(f"So far on {len(kind)} photos. {ALL_TEST_PHOTOS}", highlight=False)
    console.print()
    console.print(_acting_table(result))
    for kind in result.kinds:
        console.print(f"\n{kind.labels} {kind.used}", highlight=False)
    few = " These photos are too few to compare ECE; omit --quick." if quick else ""
    never = f" It was not trained on the names {', '.join(result.untrained)}." if result.untrained else ""
    floors = " and ".join(f"{kind.noise_floor:.1f}%" for kind in result.kinds)
    console.print(
        f"\n[dim]{result.model} (weights {result.weights_hash[:12]}) is a small model that ships with cots, not CLIP. "
        f"It was trained on other photos of the known classes, not on photos of the unknown ones.{never} Brackets: 95% "
        f"intervals. 20-bin ECE; a perfectly calibrated model would show about {floors} here.{few} "
        f"{seconds:.0f} s.[/dim]",
        highlight=False,
    )


def _table(result: "DemoResult") -> "Table":
    from ..methods import method_title

    table = _plain_table("method", "accuracy %", "confidence %", "ECE %", "NLL")
    for kind in result.kinds:
        table.add_row(kind.name, style="italic")
        for method in kind.outcomes:
            row = result.row(method, kind.name)
            low, high = row["intervals"]["ece"]
            ece = f"{row['ece']:.1f} [dim][{low:.1f}, {high:.1f}][/dim]"
            cells = f"{row['accuracy']:.1f}", f"{row['mean_confidence']:.1f}", ece
            table.add_row(method_title(method), *cells, f"{row['nll']:.2f}")
    return table


def _acting_table(result: "DemoResult") -> "Table":
    from ..methods import method_title

    table = _plain_table("with labels", "errors promised", "used", "of these wrong", "promise")
    for kind in result.kinds:
        table.add_row(kind.name, style="italic")
        for method, acted in kind.acted.items():
            table.add_row(method_title(method), *acted.cells)
    return table


def _plain_table(first: str, *columns: str) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    table.show_edge = False
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def reliability_chart(methods: "dict[str, Scored]") -> "Text":
    """A reliability diagram in characters: one bar per confidence bin and method, with the gap to the confidence.

    The marks of perfect calibration, one per bar, form the diagonal.
    """
    from rich.text import Text

    found = {title: _bars(scored) for title, scored in methods.items()}
    heads = (f"{title}, share right".ljust(WIDTH + 7) for title in found)
    chart = Text(f"confidence  {'  '.join(heads)}".rstrip(), "bold")
    for i in range(BINS):
        chart.append(f"\n{100 * i // BINS:>3}–{100 * (i + 1) // BINS:>3}%    ")
        for j, bars in enumerate(found.values()):
            bar, note = bars[i]
            chart.append("  " if j else "")
            for cell in bar:
                chart.append(cell, _STYLES.get(cell))
            chart.append(f"{note:>7}")
    chart.append("\n")
    for cell, word in ((RIGHT, "right"), (OVER, "gap: over-confident"), (UNDER, "gap: under-confident")):
        chart.append(cell, _STYLES[cell]).append(f" {word}   ")
    return chart.append(f"{DIAGONAL} perfect calibration")


def _bars(scored: "Scored") -> list[tuple[str, str]]:
    """The bar of each bin and the number next to it; empty for an empty bin."""
    from ..metrics import ece

    score, found = ece(scored.confidence, scored.correct, BINS), []
    for count, right, claimed in zip(score.counts, score.accuracy, score.mean_confidence, strict=True):
        if not count:
            found.append((" " * WIDTH, ""))
            continue
        filled, mark = round(WIDTH * right), min(WIDTH - 1, round(WIDTH * claimed))
        cells = [RIGHT] * filled + [" "] * (WIDTH - filled)
        low, high = min(filled, mark), max(filled, mark)
        cells[low:high] = [OVER if claimed > right else UNDER] * (high - low)
        cells[mark] = DIAGONAL
        found.append(("".join(cells), f"{100 * right:.0f}%"))
    return found


def serve(
    model: Model = None,
    host: Annotated[str, typer.Option(help="Address to listen on; by default only this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8000,
    runs: Annotated[Path | None, typer.Option(help="Folder of run folders; default: runs, if it exists.")] = None,
    token: Annotated[str | None, typer.Option(envvar="COTS_TOKEN", help="Token for /v1 and /metrics.")] = None,
    allow_host: Annotated[list[str] | None, typer.Option(help="Another host name to accept; repeatable.")] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="Web origin whose pages may call the API (CORS), or *; repeatable.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or a comma-separated list, one worker each.")] = None,
    precision: Precision = None,
    queue: Annotated[int, typer.Option(min=1, help="Maximum waiting requests; others get status 429.")] = 64,
    batch_size: Annotated[int, typer.Option(min=1, help="Maximum number of requests per batch.")] = 16,
    timeout: Annotated[float, typer.Option(help="Seconds until a request times out.")] = 60.0,
    max_body_mib: Annotated[int, typer.Option(min=1, help="Maximum size of a request in MiB.")] = 20,
    max_pixels: Annotated[int, typer.Option(min=1, help="Largest photo in pixels of 8-bit RGB.")] = 50_000_000,
    max_classes: Annotated[int, typer.Option(min=1, help="Maximum number of classes per request.")] = 5000,
    task_cache_mib: Annotated[
        int | None, typer.Option(min=1, help="MiB for cached class lists; default: 512, or a fifth of a GPU.")
    ] = None,
    solver: Solver = None,
    views: Views = None,
    policy: Annotated[Path | None, typer.Option(help="Policy of cots check, for requests with its classes.")] = None,
    taxonomy: Taxonomy = None,
    monitor: Annotated[Path | None, typer.Option(help="File that records what is acted on under the policy.")] = None,
    ask: Annotated[float, typer.Option(help="Share of these predictions whose labels are asked for.")] = 0.1,
) -> None:
    """Serve predictions over HTTP, with a page at /. SIGTERM finishes running requests and stops."""
    if runs is not None and not runs.is_dir():
        raise InputError(f"--runs {runs} is not a folder; pass the folder that contains the run folders.")
    if runs is None and Path("runs").is_dir():
        runs = Path("runs")
    devices = split_names(device) if device else (None,)
    if len(set(devices)) < len(devices):
        raise InputError(f"--device {device} names a device twice; name each device once.")
    from ..backbones import load
    from ..conformal import Policy
    from ..serve import ServeSettings, create_app, require_packages, run_server
    from ..taxonomy import TaxonomyFile

    settings = ServeSettings(
        max_body=max_body_mib * 2**20, max_pixels=max_pixels, max_classes=max_classes, queue=queue, timeout_s=timeout,
        batch_size=batch_size, views=views, solver=solver, token=token or None, runs=runs,
        task_cache_bytes=task_cache_mib and task_cache_mib * 2**20,
        hosts=_hosts(host, allow_host or [], token), origins=frozenset(allow_origin or ()),
        policy=None if policy is None else Policy.load(policy),
        taxonomy=None if taxonomy is None else TaxonomyFile.read(taxonomy), monitor=monitor, ask=ask,
    )  # fmt: skip
    require_packages()
    backbones = [load(model or "mini", device=name, precision=precision or "float32") for name in devices]
    _print_warnings(host, settings, precision or "float32")
    run_server(create_app(backbones, settings), host, port, grace_s=timeout)


def _print_warnings(host: str, settings: "ServeSettings", precision: str) -> None:
    from ..watch import NO_REFERENCE

    if not _is_loopback(host) and settings.token is None:
        print(
            f"cots: listening on {host} without a token: anyone who can reach this address can use the server. Set "
            "--token or COTS_TOKEN, or put a reverse proxy with authentication in front of it.",
            file=sys.stderr,
        )
    if settings.policy is not None:
        for message in settings.policy.warnings(replace(settings.policy, precision=precision)):
            print(f"cots: {message}", file=sys.stderr)
        if settings.policy.signals is None:
            print(f"cots: {NO_REFERENCE}", file=sys.stderr)


def _hosts(host: str, further: list[str], token: str | None) -> frozenset[str] | None:
    """Accepted host names; None accepts any, the default with a token or on a network address."""
    from ..serve import host_name

    if not further and (token or not _is_loopback(host)):
        return None
    return frozenset(host_name(name) for name in ("localhost", "127.0.0.1", "::1", host, *further))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
