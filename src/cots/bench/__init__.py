"""Benchmark runs: every method on every dataset, in a run folder that can be resumed at any time.

    config = cots.bench.RunConfig(data="data", datasets="pets,dtd", methods="tpt,tpt+cots", seeds=(0, 1), out="runs/x")
    run = cots.bench.run(config)
    run.records("pets", "tpt+cots", seed=0).confidence

`cots.bench.Run.open("runs/x")` reads a run folder, finished or not.
"""

from ._check import RunCheck, check_run
from ._config import Part, RunConfig
from ._export import Exported, export_records
from ._job import Progress
from ._pack import PACKED, RefusedArchive, pack_run, unpack_run
from ._plan import Plan, plan, run
from ._ray import ClusterState
from ._run import Missing, Records, Run, seeds_text
from ._schema import DatasetEntry, Manifest, MethodSettings, Model, RunOptions
from ._timing import TimedPipeline

__all__ = [
    "PACKED", "ClusterState", "DatasetEntry", "Exported", "Manifest", "MethodSettings", "Missing", "Model", "Part",
    "Plan", "Progress", "Records", "RefusedArchive", "Run", "RunCheck", "RunConfig", "RunOptions", "TimedPipeline",
    "check_run", "export_records", "pack_run", "plan", "run", "seeds_text", "unpack_run",
]  # fmt: skip
