"""Records -> figures, once: what reports, paper comparisons, the server, the demo and `cots calibrate` show.

score(records, metrics=None, bins=20) -> Scored
    Every (or the named) metric of one method on one dataset with one seed: `.values`, `.mean_confidence`,
    `.milliseconds`, `.reliability()`, `.risk_coverage(points)`. Reads probabilities only where a metric needs them.
score_columns(confidence, correct, {"nll": losses}, metrics=None, bins=20) -> Scored
    The same from arrays.
pool(scoreds) -> Scored
    Several datasets or seeds as one set.
deviation(values), noise_floor(confidence, seed)
    Standard deviation over seeds; the ECE that chance gives a calibrated model.
summarise(run, bins=20, resamples=1000, level=0.95) -> Summary
    All figures of a run: averages over datasets and seeds, bootstrap intervals, paired changes against the adapter.
write_report(run, out, formats, figures=...) -> Report
    The page, tables and figures of a summary.

For one figure with its interval: `cots.metrics.bootstrap(cots.metrics.ece, confidence, correct, centre=True)`.
"""

from ._compare import Cell, base_of
from ._page import demo_page
from ._score import Scored, deviation, noise_floor, pool, score, score_columns
from ._summary import Column, Summary, summarise
from ._tables import aligned
from ._write import Report, write_report

__all__ = [
    "Cell", "Column", "Report", "Scored", "Summary", "aligned", "base_of", "demo_page", "deviation", "noise_floor",
    "pool", "score", "score_columns", "summarise", "write_report",
]  # fmt: skip
