"""Write a report: page, tables, CSV and figures of a run."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._errors import CotsError, InputError, check_one_of
from ..bench import Run
from ..conformal import Policy
from ..metrics import METRICS, BinnedScore, Metric
from . import plots, text
from ._score import Scored
from ._sets import SetTable, sets_table
from ._summary import Column, Estimate, ReportProgress, Summary, summarise
from .plots import inline_svg, save_figure, single_panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("html", "md", "tex", "csv")
CSV_COLUMNS = (
    "model", "weights_hash", "dataset", "group", "method", "base", "metric", "unit", "statistic", "seed", "value", "n",
    "failed", "bins", "edges", "level", "resamples",
)  # fmt: skip
# What each text file of a report contains, so that no other file of that name is overwritten.
MARKS = {
    "report.html": "Made with cots",
    "report.md": "Made with cots",
    "tables.tex": r"\usepackage{booktabs}",
    "report.tex": r"\title{Calibration report}",
    "report.csv": ",".join(CSV_COLUMNS),
}


@dataclass(frozen=True, kw_only=True)
class Report:
    """The written files, and the figures behind them."""

    files: tuple[Path, ...]
    summary: Summary = field(repr=False)

    @property
    def page(self) -> Path | None:
        """The HTML page, if any."""
        return next((file for file in self.files if file.suffix == ".html"), None)

    def text(self) -> str:
        """Accuracy, ECE and NLL of every method, and where the files are."""
        drawn, lines = [], [text.text_table(self.summary), "", "Written:"]
        for file in self.files:
            if file.parent.name == "figures":
                drawn.append(file)
            else:
                lines.append(f"  {file}")
        if drawn:
            lines.append(f"  {drawn[0].parent} ({len(drawn)} files)")
        return "\n".join(lines)


def write_report(
    run: Run,
    out: str | os.PathLike[str],
    formats: Sequence[str] = FORMATS,
    *,
    figures: Sequence[str] = plots.FORMATS,
    policy: Policy | None = None,
    baseline: str | None = None,
    bins: int = 20,
    resamples: int = 1000,
    level: float = 0.95,
    progress: ReportProgress = lambda what, done, total: None,
) -> Report:
    """Write report.html, report.md, report.tex with tables.tex, report.csv and out/figures for a run.

        report = write_report(cots.bench.Run.open("runs/x"), "runs/x/report")
        print(report.text())

    figures: the formats of out/figures; empty for none. The page contains its own figures. policy: from `cots check`;
    its prediction sets are evaluated instead of sets fitted on half of the samples. baseline: see `summarise`.
    progress: called with the current step, the number of steps done and their total.
    """
    formats, figures = _known("report format", formats, FORMATS), _known("figure format", figures, plots.FORMATS)
    if not formats and not figures:
        raise InputError(f"Nothing to write. Pass at least one report format of {', '.join(FORMATS)}.")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; pass a folder for the report.")
    _refuse_foreign_files(folder, formats)
    summary = summarise(run, baseline=baseline, bins=bins, resamples=resamples, level=level, progress=progress)
    sets = sets_table(run, policy)
    if policy is not None and sets is None:
        raise InputError("No dataset of the run has the classes, method and weights of the policy; omit --policy.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        drawn, files = [], []
        for name, title, caption, figure in draw_figures(summary) if figures else ():
            progress(f"figure {name}", len(drawn), max(3 * len(summary.datasets), len(drawn) + 1))
            (folder / "figures").mkdir(exist_ok=True)
            files += save_figure(figure, folder / "figures" / name, title, caption, figures)
            drawn.append((name, title, caption))
        texts = _texts(summary, formats, drawn, figures, sets)
        for name, content in texts.items():
            (folder / name).write_text(content, encoding="utf-8")
    except OSError as error:
        raise CotsError(f"The report could not be written to {folder}: {error.strerror or error}.") from error
    return Report(files=(*(folder / name for name in texts), *files), summary=summary)


def _refuse_foreign_files(folder: Path, formats: Sequence[str]) -> None:
    """Refuse a folder with another program's file of the same name."""
    for name, mark in MARKS.items():
        file = folder / name
        if name.partition(".")[2] not in formats or not file.exists():
            continue
        if not file.is_file() or mark not in file.read_text(encoding="utf-8", errors="replace"):
            raise InputError(f"{file} was not written by cots report. Move it, or choose another folder with --out.")


def _texts(
    summary: Summary,
    formats: Sequence[str],
    drawn: Sequence[tuple[str, str, str]] = (),
    figures: Sequence[str] = (),
    sets: SetTable | None = None,
) -> dict[str, str]:
    """The content of every text file, by name; `drawn` has name, title and caption of each figure."""

    def linked(*endings: str) -> list[tuple[str, str, str]]:
        for ending in endings:
            if ending in figures:
                return [(f"figures/{name}.{ending}", title, caption) for name, title, caption in drawn]
        return []

    given = {"summary": summary, "metrics": METRICS.infos(), "costs": list(costs(summary)), "sets": sets}
    texts = {
        "report.html": lambda: report_page(summary, sets),
        "report.md": lambda: text.render("report.md", figures=linked("svg", "png"), **given).rstrip() + "\n",
        "tables.tex": lambda: text.render("tables.tex", **given),
        "report.tex": lambda: text.render("report.tex", figures=linked("pdf", "png")),  # pdflatex cannot read SVG
        "report.csv": lambda: tidy_csv(summary),
    }
    return {name: content() for name, content in texts.items() if name.partition(".")[2] in formats}


def costs(summary: Summary) -> Iterator[tuple[str, ...]]:
    """Mean temperature of each method, and milliseconds of encoding and of adaptation with calibration."""
    for method in summary.methods:
        runs = []
        for (_, name), by_seed in summary.scored.items():
            if name == method:
                runs += by_seed.values()
        if runs:
            means = [method]
            for name in ("tau", "encoding", "milliseconds"):
                mean = sum(getattr(run, name) for run in runs) / len(runs)
                means.append("–" if math.isnan(mean) else f"{mean:.2f}")
            yield tuple(means)


def tidy_csv(summary: Summary) -> str:
    """One row per figure: each seed's, then mean, std, low, high and the change against the base, as fractions."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for column, method, metric in product(summary.columns, summary.methods, METRICS.infos()):
        if cell := summary.cell(column.name, method, metric.name):
            writer.writerows(_csv_rows(summary, metric, cell, column.group or ""))
    return out.getvalue()


def _csv_rows(summary: Summary, metric: Metric, cell: Estimate, group: str) -> Iterator[list[object]]:
    runs = summary.scored.get((cell.column, cell.method), {})
    total = ["", ""]  # of an average
    if runs:
        total = [sum(map(len, runs.values())), sum(run.failed for run in runs.values())]
    unit = "fraction" if metric.unit == "%" else metric.unit
    binned = [summary.bins if metric.bins else "", metric.bins]
    head = [summary.model, summary.weights_hash, cell.column, group, cell.method, cell.base or "", metric.name, unit]
    for seed, value in zip(cell.seeds, cell.values, strict=True):
        counts = [len(runs[seed]), runs[seed].failed] if runs else total
        yield [*head, "seed", seed, repr(value), *counts, *binned, "", ""]
    for statistic in ("mean", "std", "low", "high", "change", "change_low", "change_high"):
        value = getattr(cell, statistic)
        drawn = [summary.level, summary.resamples] if statistic.endswith(("low", "high")) else ["", ""]
        if value is not None:
            yield [*head, statistic, "all", repr(float(value)), *total, *binned, *drawn]


def draw_figures(summary: Summary) -> Iterator[tuple[str, str, str, Figure]]:
    """Every figure of a report: (file name without ending, title, caption, matplotlib figure)."""
    for column in summary.columns:
        if column.average or len(summary.datasets) == 1:
            caption, figure = text.overview_caption(summary, column), plots.overview_figure(summary, column)
            yield _framed(column, "overview", "Accuracy and ECE", caption, figure)
    for column in filter(summary.shown, summary.datasets):
        bars, pooled = {}, {}
        for _, method in summary.shown(column):
            bars[method] = summary.reliability(column.name, method)
            pooled[method] = summary.pooled(column.name, method)
        for kind, words, figure in (
            ("reliability", text.RELIABILITY, plots.panel_grid(plots.draw_reliability, bars, 1.36)),
            ("confidence", text.HISTOGRAM, plots.panel_grid(plots.draw_confidence, pooled, 1.0)),
            ("risk-coverage", text.RISK, plots.risk_figure(summary, column)),
        ):
            title = kind.capitalize().replace("-", " and ")
            yield _framed(column, kind, title, text.figure_caption(summary, column, words), figure)


def _framed(column: Column, kind: str, title: str, caption: str, figure: Figure) -> tuple[str, str, str, Figure]:
    """(name, title, caption, figure) of a figure without title and caption, which the document adds."""
    width, height = figure.get_size_inches()
    figure.subplots_adjust(left=0.62 / width, top=1 - 0.3 / height, bottom=0.5 / height)
    name = re.sub(r"[^\w.-]", "-", column.name).strip("-.") or "data"
    return f"{name}-{kind}", f"{title}, {column.title}", caption, figure


def reliability_svg(score: BinnedScore, title: str, below: str = "", samples: str = "samples") -> str:
    """A reliability diagram as an SVG element of a page; `score` is a result of `cots.metrics.ece`."""
    filled = score.counts > 0
    gap = float(np.average(score.gap[filled], weights=score.counts[filled]))
    spoken = (
        f"Reliability of {title}: expected calibration error {100 * score.value:.1f}%, on average "
        f"{100 * abs(gap):.1f} points {'over' if gap > 0 else 'under'}-confident, {score.n:,} {samples} in "
        f"{len(score.counts)} bins."
    )
    return inline_svg(single_panel(4.15, plots.draw_reliability, score, title, below), spoken)


def confidence_svg(scored: Scored, title: str) -> str:
    """A confidence histogram as an SVG element of a page."""
    right, wrong = plots.right_and_wrong(scored)
    spoken = (
        f"Confidences of {title}: mean {100 * scored.mean_confidence:.1f}%, accuracy "
        f"{100 * scored.correct.mean():.1f}%, {len(scored):,} records, {right[-1]:,} right and {wrong[-1]:,} wrong "
        "ones in the highest bin."
    )
    return inline_svg(single_panel(2.6, plots.draw_confidence, scored, title), spoken)


def overview_svg(summary: Summary, column: Column) -> str:
    """Accuracy against ECE as an SVG element, without the legend, which the page has."""
    spoken = f"Accuracy against calibration error of every method, {column.title}; the tables have the figures."
    return inline_svg(plots.overview_figure(summary, column, legend=False), spoken, "wide")


def save_reliability(score: BinnedScore, stem: Path, title: str, caption: str) -> Path:
    """Write a reliability diagram as stem.svg."""
    figure = single_panel(4.15, plots.draw_reliability, score, title, f"{score.n:,} photos")
    return save_figure(figure, stem, title, caption, ("svg",))[0]


def report_page(summary: Summary, sets: SetTable | None = None) -> str:
    """The page of a report: one file that works offline, in light and dark, on phones and with screen readers."""
    columns, shown = summary.columns, summary.averages or summary.datasets[:4]
    if len(columns) > 7:  # wide tables scroll sideways, so averages come first; otherwise last, as in papers
        columns = [*summary.averages, *summary.datasets]
    return text.render(
        "report.html",
        summary=summary,
        metrics=METRICS.infos(),
        columns=columns,
        samples=sum(summary.samples(column.name)[1] for column in summary.datasets),
        overviews=[(column, overview_svg(summary, column)) for column in shown if summary.shown(column)],
        sets=[_dataset(summary, column) for column in summary.datasets],
        costs=list(costs(summary)),
        sets_table=sets,
    )


def _dataset(summary: Summary, column: Column) -> dict[str, Any]:
    """The figures of a dataset; empty parts if it has no records."""
    entries, reliability, confidence = [], [], []
    for i, method in summary.shown(column):
        pooled, area = summary.pooled(column.name, method), summary.cells[column.name, method, "aurc"].mean
        entries.append((i, method, f"{METRICS.info('aurc').show(area)}%"))
        below = f"accuracy {100 * pooled.correct.mean():.1f}%, mean confidence {100 * pooled.mean_confidence:.1f}%"
        bars = summary.reliability(column.name, method)
        reliability.append(reliability_svg(bars, method, below, f"records on {column.title}"))
        confidence.append(confidence_svg(pooled, method))
    risk = ""
    if entries:
        spoken = f"Risk against coverage of every method on {column.title}; the AURC table has the areas."
        risk = inline_svg(plots.risk_figure(summary, column, legend=False), spoken, "wide")
    return {"column": column, "entries": entries, "reliability": reliability, "confidence": confidence, "risk": risk}


def _known(kind: str, given: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    names = given.split(",") if isinstance(given, str) else given
    names = tuple(dict.fromkeys(name.strip().lower() for name in names))
    for name in names:
        check_one_of(kind, name, known)
    return names
