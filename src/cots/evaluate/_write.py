"""Write a report: the page, the tables and the figures of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .._errors import CotsError, InputError, unknown_name
from ._figures import draw_figures
from ._page import report_page
from ._plots import FORMATS as FIGURE_FORMATS
from ._plots import save_figure
from ._summary import Progress, Summary, summarise
from ._tables import latex_document, latex_tables, markdown, text_table, tidy_csv

if TYPE_CHECKING:
    from ..bench import Run

FORMATS = ("html", "md", "tex", "csv")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was written, and the figures it was written from."""

    files: tuple[Path, ...]
    summary: Summary = field(repr=False)

    @property
    def page(self) -> Path | None:
        """The HTML page, where there is one."""
        return next((file for file in self.files if file.suffix == ".html"), None)

    def text(self) -> str:
        """Accuracy and ECE of every method, and where the files are."""
        main = [file for file in self.files if file.parent.name != "figures"]
        drawn = len(self.files) - len(main)
        where = [str(file) for file in main]
        if drawn:
            where.append(f"{next(f.parent for f in self.files if f not in main)} ({drawn} files)")
        return "\n".join([text_table(self.summary), "", "Written:", *(f"  {place}" for place in where)])


def write_report(
    run: Run,
    out: str | os.PathLike[str],
    formats: Sequence[str] = FORMATS,
    *,
    figures: Sequence[str] = FIGURE_FORMATS,
    bins: int = 20,
    resamples: int = 1000,
    level: float = 0.95,
    progress: Progress = lambda what, done, total: None,
) -> Report:
    """Write report.html, report.md, report.tex with tables.tex, report.csv and out/figures for a run.

        report = write_report(cots.bench.Run.open("runs/x"), "runs/x/report")
        print(report.text())

    `figures` are the formats of out/figures, none for no figures; the page has its own inside. `progress` is called
    with what is being done, how many steps are done and how many there are.
    """
    formats, figures = _known("report format", formats, FORMATS), _known("figure format", figures, FIGURE_FORMATS)
    if not formats and not figures:
        raise InputError(f"Nothing to write: give at least one report format of {', '.join(FORMATS)}.")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder to write the report to.")
    summary = summarise(run, bins=bins, resamples=resamples, level=level, progress=progress)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        drawn, files = _draw(summary, folder / "figures", figures, progress)
        texts = _texts(summary, formats, drawn, figures)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CotsError(f"The report could not be written to {folder}: {error.strerror or error}.") from error
    return Report(files=(*(folder / name for name in texts), *files), summary=summary)


def _texts(
    summary: Summary, formats: Sequence[str], drawn: Sequence[tuple[str, str, str]], figures: Sequence[str]
) -> dict[str, str]:
    """File name -> content of everything that is text."""
    texts = {}
    shown = next((ending for ending in ("svg", "png") if ending in figures), None)
    if "html" in formats:
        texts["report.html"] = report_page(summary)
    if "md" in formats:
        linked = [(f"figures/{name}.{shown}", title, caption) for name, title, caption in drawn] if shown else []
        texts["report.md"] = markdown(summary, linked)
    if "tex" in formats:
        texts["tables.tex"] = latex_tables(summary)
        # pdflatex reads PDF and PNG, not SVG.
        ending = next((ending for ending in ("pdf", "png") if ending in figures), None)
        included = (
            [(f"figures/{name}.{ending}", f"{title}. {caption}") for name, title, caption in drawn] if ending else []
        )
        texts["report.tex"] = latex_document("tables.tex", included)
    if "csv" in formats:
        texts["report.csv"] = tidy_csv(summary)
    return texts


def _draw(
    summary: Summary, folder: Path, formats: tuple[str, ...], progress: Progress
) -> tuple[list[tuple[str, str, str]], list[Path]]:
    """(name, title, caption) of each figure, and the files."""
    if not formats:
        return [], []
    folder.mkdir(parents=True, exist_ok=True)
    drawn, files = [], []
    total = 3 * len(summary.datasets)
    for name, title, caption, figure in draw_figures(summary):
        progress(f"figure {name}", len(drawn), max(total, len(drawn) + 1))
        files += save_figure(figure, folder / name, title, caption, formats)
        drawn.append((name, title, caption))
    return drawn, files


def _known(kind: str, given: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        given = given.split(",")
    names = tuple(dict.fromkeys(name.strip().lower() for name in given))
    for name in names:
        if name not in known:
            raise unknown_name(kind, name, known)
    return names
