"""The paper's tables as data, its experiments by name, and comparisons with runs.

>>> from cots.paper import PAPER_TABLES, load_table
>>> len(PAPER_TABLES), load_table("imagenet-variants").value("accuracy", "tpt+ecots", "average:variants")
(24, 62.95)
"""

from ._all import PaperPlan, plan_all
from ._claims import CLAIMS, Claim, Verdict, claims_text, judge, runs_in
from ._compare import Comparison, ComparisonRow, compare
from ._experiments import EXPERIMENTS, Experiment, Variant, find_experiment
from ._figures import Drawn, draw
from ._tables import PAPER_TABLES, Cell, Inconsistency, Table, inconsistencies, load_table

__all__ = [
    "CLAIMS", "EXPERIMENTS", "PAPER_TABLES", "Cell", "Claim", "Comparison", "ComparisonRow", "Drawn", "Experiment",
    "Inconsistency", "PaperPlan", "Table", "Variant", "Verdict", "claims_text", "compare", "draw", "find_experiment",
    "inconsistencies", "judge", "load_table", "plan_all", "runs_in",
]  # fmt: skip
