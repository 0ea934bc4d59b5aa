"""Pages: self-contained HTML files that work offline, in light and dark, on a phone and with a screen reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from .. import metrics
from . import _words as words
from ._figures import confidence_svg, overview_svg, reliability_svg, risk_svg
from ._summary import Column, Summary

if TYPE_CHECKING:
    from jinja2 import Environment

MAIN = ("accuracy", "ece")
DASHES = ("", "6 3", "2 3", "8 3 2 3")  # of a legend, as in the figures
HEADLINE = ("zeroshot", "tpt", "tpt+cots", "tpt+ecots")
COLUMNS = (("accuracy", "accuracy %"), ("ece", "ECE %"), ("nll", "NLL"), ("mean_confidence", "confidence %"))


def report_page(summary: Summary) -> str:
    """The page of a report."""
    # A wide table scrolls sideways: there, averages come first; elsewhere last, as in papers.
    wide = len(summary.columns) > 7
    columns = sorted(summary.columns, key=lambda column: not column.average) if wide else summary.columns
    shown = [column for column in summary.columns if column.average] or summary.datasets[:4]
    return render(
        "report.html",
        summary=summary,
        metrics=metrics.METRICS.infos(),
        main=MAIN,
        columns=columns,
        dashes=DASHES,
        samples=sum(summary.samples(column.name)[1] for column in summary.datasets),
        overviews=[(column, overview_svg(summary, column)) for column in shown if summary.shown(column)],
        sets=[_dataset(summary, column) for column in summary.datasets],
        costs=list(_costs(summary)),
    )


def demo_page(result: Any, sentences: Sequence[str], next_command: str) -> str:
    """The page of a `cots.demo.DemoResult`: the sentences, reliability diagrams, tables pooled and per dataset."""
    pooled = result.rows[-1]["dataset"]
    diagrams = []
    for method in HEADLINE:
        outcome = next(o for o in result.outcomes if (o.method, o.dataset) == (method, pooled))
        row = result.row(method, pooled)
        note = f"accuracy {row['accuracy']:.1f}%, mean confidence {row['mean_confidence']:.1f}%"
        diagrams.append(reliability_svg(outcome.scored.reliability(), method, note, "photos"))
    return render(
        "demo.html",
        result=result,
        sentences=sentences,
        next_command=next_command,
        pooled=pooled,
        datasets=list(dict.fromkeys(row["dataset"] for row in result.rows if row["dataset"] != pooled)),
        n=result.row("zeroshot")["n"],
        diagrams=diagrams,
        columns=COLUMNS,
        ours=HEADLINE[2:],
    )


def _dataset(summary: Summary, column: Column) -> dict[str, Any]:
    """The figures of a dataset; every part is empty where it has no records."""
    entries, reliability, confidence = [], [], []
    for i, method in summary.shown(column):
        pooled, area = summary.pooled(column.name, method), summary.cells[column.name, method, "aurc"].mean
        entries.append((i, method, f"{metrics.METRICS.info('aurc').show(area)}%"))
        below = f"accuracy {100 * pooled.correct.mean():.1f}%, mean confidence {100 * pooled.mean_confidence:.1f}%"
        bars = summary.reliability(column.name, method)
        reliability.append(reliability_svg(bars, method, below, f"records on {column.title}"))
        confidence.append(confidence_svg(pooled, method))
    risk = risk_svg(summary, column) if entries else ""
    return {"column": column, "entries": entries, "reliability": reliability, "confidence": confidence, "risk": risk}


def _costs(summary: Summary) -> Iterator[tuple[str, ...]]:
    """Mean temperature and milliseconds of each method."""
    for method in summary.methods:
        runs = [run for (_, name), found in summary.scored.items() if name == method for run in found.values()]
        if runs:
            means = (sum(getattr(run, what) for run in runs) / len(runs) for what in ("tau", "milliseconds"))
            yield method, *("–" if value != value else f"{value:.2f}" for value in means)


@cache
def _environment(tex: bool = False) -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # LaTeX is full of braces, so its templates have other delimiters.
    marks: dict[str, Any] = {"variable_start_string": "<<", "variable_end_string": ">>", "block_start_string": "<%"}
    marks |= {"block_end_string": "%>", "comment_start_string": "<#", "comment_end_string": "#>"}
    found = Environment(
        loader=PackageLoader("cots.evaluate"),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        **(marks if tex else {}),
    )
    found.globals |= {name: getattr(words, name) for name in vars(words) if not name.startswith("_")}
    found.globals["adapter"] = lambda method: method.partition("+")[0]
    return found


def render(template: str, filters: Mapping[str, Callable[[str], str]] | None = None, **given: Any) -> str:
    """A file of templates/ filled in; the functions of `_words` are available in it."""
    environment = _environment(template.endswith(".tex"))
    environment.filters |= filters or {}
    return environment.get_template(template).render(**given).lstrip()
