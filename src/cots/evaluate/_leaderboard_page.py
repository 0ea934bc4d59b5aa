"""Write a leaderboard: index.html, which works offline, the same table as CSV and JSON, and the report of each run."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from .._errors import CotsError, InputError
from ..bench import PACKED, Run, unpack_run
from ..methods import method_kind
from . import text
from ._leaderboard import JUDGED, Leaderboard, Row, Source, make_leaderboard
from ._summary import ReportProgress
from ._write import write_report

PAGE, TABLE, DATA = "index.html", "leaderboard.csv", "leaderboard.json"
MARK = "Made with cots leaderboard"


def write_leaderboard(
    sources: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    mixed: bool = False,
    reports: bool = True,
    resamples: int = 1000,
    progress: ReportProgress = lambda what, done, total: None,
) -> Path:
    """Write the leaderboard of run folders, or archives of `cots pack`, into the folder `out`; returns the page.

    mixed: see `make_leaderboard`. reports: also write the report of each run, for the links of the page.
    """
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; pass a folder for the page.")
    page = folder / PAGE
    if page.exists() and MARK not in page.read_text(encoding="utf-8", errors="replace"):
        raise InputError(f"{page} was not written by cots leaderboard. Choose another folder with --out.")
    with _opened(sources) as runs:
        table = make_leaderboard(runs, mixed=mixed, resamples=resamples, progress=progress)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, run in runs.items() if reports else ():
                write_report(
                    run, folder / "reports" / name, ("html",), figures=(), resamples=resamples, progress=progress
                )
            page.write_text(leaderboard_page(table, reports), encoding="utf-8")
            (folder / TABLE).write_text(leaderboard_csv(table), encoding="utf-8")
            (folder / DATA).write_text(json.dumps(leaderboard_json(table), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise CotsError(f"The page could not be written to {folder}: {error.strerror or error}.") from error
    return page


@contextmanager
def _opened(sources: Sequence[str | os.PathLike[str]]) -> Iterator[dict[str, Run]]:
    """The runs by name; archives are verified and unpacked for as long as this lasts."""
    runs: dict[str, Run] = {}
    with TemporaryDirectory(prefix="cots-leaderboard-") as temporary:
        for number, source in enumerate(sources):
            where = os.fspath(source).rstrip("/")
            parts = PurePosixPath(where.replace(os.sep, "/")).parts
            name = parts[-1].removesuffix(PACKED)
            if name in runs and len(parts) > 1:
                name = f"{parts[-2]}-{name}"
            if name in runs:
                raise InputError(f"Two runs are called {name!r}. Rename a folder: the name tells their rows apart.")
            packed = where.endswith(PACKED)
            runs[name] = unpack_run(where, Path(temporary) / str(number)) if packed else Run.open(where)
        yield runs


def leaderboard_page(table: Leaderboard, reports: bool = True) -> str:
    """The page, as one file."""
    style = text.source("base.css") + text.source("report.css") + text.source("leaderboard.css")
    script = text.source("leaderboard.js")
    return text.render(
        "leaderboard.html", table=table, rows=[_cells(table, row) for row in table.rows],
        facts=[_provenance(source) for source in table.sources], reports=reports, judged=JUDGED, mark=MARK,
        mixed=len({source.protocol for source in table.sources}) > 1, version=version("cots"),
        models=sorted({source.run.manifest.model.name for source in table.sources}),
        style=style, script=script, style_hash=text.source_hash(style), script_hash=text.source_hash(script),
    )  # fmt: skip


def _cells(table: Leaderboard, row: Row) -> dict[str, Any]:
    """A row for the template: its texts, and the values that it is sorted by."""
    figures = []
    for metric in table.metrics:
        value, low, high = row.figures[metric.name]
        figures.append((metric.goodness(value), metric.show(value), text.interval(metric, low, high)))
    wins = []
    for name in JUDGED:
        won, lost = row.wins[name]
        wins.append((won - lost, f"{won}–{lost}"))
    cost = "–" if row.milliseconds != row.milliseconds else f"{row.milliseconds:.2f}"
    return {"row": row, "figures": figures, "wins": wins, "cost": cost, "kind": method_kind(row.method)}


def _provenance(source: Source) -> dict[str, Any]:
    """Where the rows of a run come from."""
    manifest = source.run.manifest
    sets, prompts = [], {}
    for entry in manifest.datasets:
        sets.append(f"{entry.title or entry.name} {entry.n:,}")
        given = [entry.template]
        for name in ("context", "descriptions", "attributes"):
            value = getattr(entry, name)
            if value is not None:
                given.append(f"{name} {value[:12]}")
        prompts[", ".join(given)] = None
    views = sorted({f"{entry.views}{' AugMix' if entry.augmix else ''}" for entry in manifest.datasets})
    return {
        "run": source.name, "protocol": source.protocol, "model": manifest.model.name,
        "weights": manifest.model.weights_hash, "precision": manifest.model.precision, "device": manifest.device,
        "samples": ", ".join(sets), "views": ", ".join(views), "seeds": ", ".join(map(str, manifest.seeds)),
        "prompt": "; ".join(prompts), "cots": manifest.cots, "created": manifest.created[:10],
    }  # fmt: skip


def leaderboard_json(table: Leaderboard) -> dict[str, Any]:
    """The table with its provenance; figures are fractions, NLL in nats."""
    rows = []
    for row in table.rows:
        figures = {}
        for name, (value, low, high) in row.figures.items():
            figures[name] = {"value": value, "low": low, "high": high}
        rows.append({
            "dataset": row.column.name, "protocol": row.source.protocol, "run": row.source.name,
            "model": row.source.run.manifest.model.name, "method": row.method, "samples": row.samples,
            "failed": row.failed, "milliseconds": None if row.milliseconds != row.milliseconds else row.milliseconds,
            "figures": figures, "wins": {name: list(counts) for name, counts in row.wins.items()},
        })  # fmt: skip
    about = {"cots": version("cots"), "level": table.level, "resamples": table.resamples, "notes": list(table.notes)}
    return {**about, "runs": [_provenance(source) for source in table.sources], "rows": rows}


def leaderboard_csv(table: Leaderboard) -> str:
    """The rows of `leaderboard_json`, one line each, with the weights' hash."""
    data, out = leaderboard_json(table), io.StringIO()
    weights = {run["run"]: run["weights"] for run in data["runs"]}
    lines = []
    for row in data["rows"]:
        line = {name: value for name, value in row.items() if name not in ("figures", "wins")}
        line["weights_hash"] = weights[row["run"]]
        for name, figure in row["figures"].items():
            line |= {name: figure["value"], f"{name}_low": figure["low"], f"{name}_high": figure["high"]}
        for name, (won, lost) in row["wins"].items():
            line |= {f"{name}_wins": won, f"{name}_losses": lost}
        lines.append(line)
    writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()
