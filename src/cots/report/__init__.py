"""Reports: figures and pages from finished results."""

from ._cells import Cell, Column
from ._demo_page import demo_page
from ._metrics import METRICS, Metric
from ._reliability import reliability_svg
from ._summary import Summary, summarize
from ._write import Report, write_report

__all__ = [
    "METRICS",
    "Cell",
    "Column",
    "Metric",
    "Report",
    "Summary",
    "demo_page",
    "reliability_svg",
    "summarize",
    "write_report",
]
