"""From records to figures, for reports, paper comparisons, the server, the demo and `cots calibrate`.

    scored = score(run.records("pets", "tpt+cots", seed=0))         # every metric of one method, dataset and seed
    scored = score_columns(confidence, correct, {"nll": losses})    # the same from arrays
    pooled = pool([scored, another])                                # datasets or seeds as one set
    scored.values["ece"], scored.mean_confidence, scored.reliability().counts, scored.risk_coverage(points=200).risk
    checked = check(probabilities, labels)                          # a verdict, a threshold and sets from a few labels
    summary = summarise(run)                                    # averages, bootstrap intervals, paired changes
    compare_methods(run, ["tpt", "otpt"]).text()               # paired differences of any methods, also of two runs
    RunLog(["tensorboard"])                                         # of a run as it proceeds, for other tools
    write_leaderboard(["runs/x", "runs/y"], "page")               # one page of many runs
    write_report(run, "report", figures=("svg",))                   # page, tables and figures of a summary

For one figure with its interval: `cots.metrics.bootstrap(cots.metrics.ece, confidence, correct, centre=True)`.
"""

from ._answers import count_labels, is_asked, read_export, read_table
from ._ask_page import ask_page
from ._asked import Asked
from ._check import ENOUGH, Checked, check
from ._demo import demo_page, save_demo_picture
from ._labels import NOBODY, NONE, Labels
from ._leaderboard import Leaderboard, make_leaderboard
from ._leaderboard_page import write_leaderboard
from ._log import RunLog
from ._loggers import LOGGERS, Logger
from ._paired import Comparisons, Difference, compare_methods
from ._score import Scored, deviation, pool, read_seeds, score, score_columns, score_predictions
from ._summary import Column, Estimate, Summary, base_of, summarise
from ._trial import Trial, try_out
from ._write import Report, save_reliability, write_report
from .claims import Acted, act
from .text import aligned

__all__ = [
    "ENOUGH", "LOGGERS", "NOBODY", "NONE", "Acted", "Asked", "Checked", "Column", "Comparisons", "Difference",
    "Estimate", "Labels", "Leaderboard", "Logger", "Report", "RunLog", "Scored", "Summary", "Trial", "act", "aligned",
    "ask_page", "base_of", "check", "compare_methods", "count_labels", "demo_page", "deviation", "is_asked",
    "make_leaderboard", "pool", "read_export", "read_seeds", "read_table", "save_demo_picture", "save_reliability",
    "score", "score_columns", "score_predictions", "summarise", "try_out", "write_leaderboard", "write_report",
]  # fmt: skip
