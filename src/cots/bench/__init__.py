"""Benchmark runs: every method on every dataset, in a folder that survives anything.

    config = cots.bench.RunConfig(data="data", datasets="pets,dtd", methods="tpt,tpt+cots", seeds=(0, 1), out="runs/x")
    run = cots.bench.run(config)
    run.records("pets", "tpt+cots", seed=0).confidence

`cots.bench.Run.open("runs/x")` reads a folder again, finished or not.
"""

from ._config import RunConfig
from ._engines import ClusterState
from ._job import Progress
from ._plan import Plan, plan, run
from ._ranks import Rank
from ._run import Missing, Records, Run

__all__ = ["ClusterState", "Missing", "Plan", "Progress", "Rank", "Records", "Run", "RunConfig", "plan", "run"]
