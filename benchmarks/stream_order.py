"""How much the order of the stream matters to an online method: TDA in list order and in three shuffles.

    python benchmarks/stream_order.py --data DATA --out runs/stream-order     # minutes on a GPU
    python benchmarks/stream_order.py                                         # only the page, from the stored results

Views are encoded once, with seed 0, so that runs differ in the order alone (the seeds of `cots run` also draw views).
The shuffles are those of `cots run` under seeds 0, 1 and 2. Writes benchmarks/results/stream-order.json and a table of
docs/protocol.md.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pages import ROOT, fill
from torch import Tensor

from cots import bench
from cots.adaptation import Pipeline
from cots.bench._protocol import stream_order
from cots.evaluate._score import score_predictions
from cots.prompts import Task

RESULTS = ROOT / "benchmarks/results/stream-order.json"
METHODS = ("tda", "tda+cots")
BLOCK = """\
`tda` with `{model}`, the same views in the order of the list and in three shuffles
(`python benchmarks/stream_order.py --data DATA`, benchmarks/results/stream-order.json):

{table}"""


def in_order(task: Task, features: Tensor, labels: np.ndarray, order: Sequence[int], settings: Any, batch: int) -> Any:
    """Accuracy and ECE of each method that sees the samples in `order`, in per cent."""
    pipeline = Pipeline(task, METHODS, adapter_settings={"tda": settings})
    parts: dict[str, list[tuple[np.ndarray, ...]]] = {method: [] for method in METHODS}
    for first in range(0, len(order), batch):
        for method, outcome in pipeline.run(features[list(order[first : first + batch])]).items():
            found = outcome.calibrated
            columns = (found.probabilities, found.prediction, found.confidence)
            parts[str(method)].append(tuple(column.cpu().numpy() for column in columns))
    scores = {}
    for method, batches in parts.items():
        found = [np.concatenate(column) for column in zip(*batches, strict=True)]
        scored = score_predictions(found[0], found[1], found[2], labels[list(order)], ["accuracy", "ece"])
        scores[method] = {name: round(100 * value, 3) for name, value in scored.values.items()}
    return scores


def measure(config: bench.RunConfig, seeds: Sequence[int]) -> dict[str, Any]:
    plan = bench.plan(config)
    plan.run()
    found: dict[str, Any] = {"model": plan.backbone.name, "weights_hash": plan.backbone.weights_hash, "sets": {}}
    for job in plan.jobs():
        n = len(job.indices)
        rows = [sample.values for sample in job.cache().read(range(n)) if sample.values is not None]
        if len(rows) < n:
            raise SystemExit(f"{job.name}: {n - len(rows)} of {n} photos cannot be read.")
        features = torch.stack(rows).float()
        labels = np.array([job.dataset.samples[index].label for index in job.indices])
        settings = job.dataset.protocol.settings("tda") if job.dataset.protocol else {}
        shuffled = config.replace(stream_order="shuffled")
        orders = {"list": list(range(n))}
        orders |= {f"seed {seed}": list(stream_order(shuffled, job.dataset, seed) or ()) for seed in seeds}
        scores = {
            name: in_order(job.task, features, labels, order, settings, job.batch_size)
            for name, order in orders.items()
        }
        found["sets"][job.name] = {"title": job.dataset.title, "photos": n, "orders": scores}
        print(f"{job.name} done", flush=True)
    return found


def table(found: Mapping[str, Any]) -> str:
    """TDA on each dataset: the order of the list, then the range over the shuffles."""
    lines = ["| photos | accuracy, list | shuffled | ECE, list | shuffled |", "|---|---|---|---|---|"]
    for of_set in found["sets"].values():
        cells = [f"{of_set['photos']:,} of {of_set['title']}"]
        for figure, digits in (("accuracy", 1), ("ece", 2)):
            by_order = {order: f"{scores['tda'][figure]:.{digits}f}" for order, scores in of_set["orders"].items()}
            in_list = by_order.pop("list")
            shuffled = sorted(by_order.values(), key=float)
            cells += [in_list, f"{shuffled[0]} to {shuffled[-1]}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="measure: the folder that contains the datasets")
    parser.add_argument("--out", type=Path, default=Path("runs/stream-order"))
    parser.add_argument("--datasets", default="pets,caltech,flowers")
    parser.add_argument("--model", default="mini")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--limit", type=int)
    parser.add_argument("--views", type=int, help="instead of 64, for a trial")
    parser.add_argument("--seeds", default="0,1,2", help="of the shuffles")
    parser.add_argument("--json", type=Path, default=RESULTS, help="results; elsewhere: the page is left alone")
    given = parser.parse_args()
    if given.data:
        names = ("model", "data", "datasets", "out", "limit", "workers", "views")
        config = bench.RunConfig(**{name: getattr(given, name) for name in names}, methods=["zeroshot"])
        found = measure(config, [int(seed) for seed in given.seeds.split(",")])
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    found = json.loads(given.json.read_text())
    print(table(found))
    if given.json == RESULTS:
        fill("protocol.md", {"streams": BLOCK.format(model=found["model"], table=table(found))})


if __name__ == "__main__":
    main()
