"""Write a report: page, tables and figures of a run; and the page of the demo."""

import os
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._errors import CotsError, InputError, one_of
from ..bench import Run
from ..conformal import Policy
from ..methods import method_title
from ..metrics import METRICS
from ._check import set_rows, sets_table
from ._figures import confidence_svg, draw_figures, overview_svg, reliability_svg, risk_svg
from ._plots import FORMATS as FIGURE_FORMATS
from ._plots import save_figure
from ._summary import Column, Progress, Summary, summarise
from ._tables import costs, latex_document, latex_tables, markdown, render, text_table, tidy_csv

FORMATS = ("html", "md", "tex", "csv")


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
        """Accuracy and ECE of every method, and where the files are."""
        drawn = [file for file in self.files if file.parent.name == "figures"]
        where = [str(file) for file in self.files if file not in drawn]
        where += [f"{drawn[0].parent} ({len(drawn)} files)"] if drawn else []
        return "\n".join([text_table(self.summary), "", "Written:", *(f"  {place}" for place in where)])


def write_report(
    run: Run,
    out: str | os.PathLike[str],
    formats: Sequence[str] = FORMATS,
    *,
    figures: Sequence[str] = FIGURE_FORMATS,
    policy: Policy | None = None,
    bins: int = 20,
    resamples: int = 1000,
    level: float = 0.95,
    progress: Progress = lambda what, done, total: None,
) -> Report:
    """Write report.html, report.md, report.tex with tables.tex, report.csv and out/figures for a run.

        report = write_report(cots.bench.Run.open("runs/x"), "runs/x/report")
        print(report.text())

    figures: the formats of out/figures; empty for none. The page contains its own figures. policy: from `cots check`;
    its prediction sets are evaluated instead of sets fitted on half of the samples. progress: called with the current
    step, the number of steps done and their total.
    """
    formats, figures = _known("report format", formats, FORMATS), _known("figure format", figures, FIGURE_FORMATS)
    if not formats and not figures:
        raise InputError(f"Nothing to write. Pass at least one report format of {', '.join(FORMATS)}.")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; pass a folder for the report.")
    summary = summarise(run, bins=bins, resamples=resamples, level=level, progress=progress)
    sets = sets_table(list(set_rows(run, policy)))
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
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CotsError(f"The report could not be written to {folder}: {error.strerror or error}.") from error
    return Report(files=(*(folder / name for name in texts), *files), summary=summary)


def report_page(summary: Summary, sets: dict[str, Any] | None = None) -> str:
    """The page of a report: one file that works offline, in light and dark, on phones and with screen readers."""
    # Wide tables scroll sideways, so averages come first; otherwise last, as in papers.
    wide = len(summary.columns) > 7
    columns = sorted(summary.columns, key=lambda column: not column.average) if wide else summary.columns
    shown = [column for column in summary.columns if column.average] or summary.datasets[:4]
    return render(
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


def demo_page(result: Any, next_command: str) -> str:
    """The page of a `cots.demo.DemoResult`: sentences, table, reliability diagrams, photos, selective prediction."""
    pooled = result.rows[-1]["dataset"]
    diagrams = []
    for method in ("zeroshot", "tpt", "tpt+cots", "tpt+ecots"):
        row = result.row(method, pooled)
        note = f"accuracy {row['accuracy']:.1f}%, mean confidence {row['mean_confidence']:.1f}%"
        diagrams.append(reliability_svg(result.pooled(method).reliability(), method_title(method), note, "photos"))
    return render(
        "demo.html",
        result=result,
        title_of=method_title,
        next_command=next_command,
        pooled=pooled,
        datasets=list(dict.fromkeys(row["dataset"] for row in result.rows if row["dataset"] != pooled)),
        diagrams=diagrams,
        photos=[(b64encode(photo.file.read_bytes()).decode(), photo) for photo in result.shown],
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
    risk = risk_svg(summary, column) if entries else ""
    return {"column": column, "entries": entries, "reliability": reliability, "confidence": confidence, "risk": risk}


def _texts(
    summary: Summary,
    formats: Sequence[str],
    drawn: Sequence[tuple[str, str, str]],
    figures: Sequence[str],
    sets: dict[str, Any] | None = None,
) -> dict[str, str]:
    """The content of every text file, by name."""

    def linked(*endings: str) -> list[tuple[str, str, str]]:
        ending = next((ending for ending in endings if ending in figures), None)
        return [(f"figures/{name}.{ending}", title, caption) for name, title, caption in drawn] if ending else []

    texts = {
        "report.html": lambda: report_page(summary, sets),
        "report.md": lambda: markdown(summary, linked("svg", "png"), sets),
        "tables.tex": lambda: latex_tables(summary),
        "report.tex": lambda: latex_document(linked("pdf", "png")),  # pdflatex cannot read SVG
        "report.csv": lambda: tidy_csv(summary),
    }
    return {name: text() for name, text in texts.items() if name.partition(".")[2] in formats}


def _known(kind: str, given: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    names = given.split(",") if isinstance(given, str) else given
    names = tuple(dict.fromkeys(name.strip().lower() for name in names))
    for name in names:
        one_of(kind, name, known)
    return names
