"""How TPT and CoTS behave as photos get worse: the corruptions of ImageNet-C, severity by severity.

    python benchmarks/severity.py --data DATA --datasets pets --limit 150 --out runs/severity

Prints one row per severity, over all corruptions: accuracy, and by how much each method's mean confidence exceeds it.
Run it again to resume.
"""

import argparse
from pathlib import Path

from cots import bench
from cots.evaluate import Scored, pool, score

METHODS = ("zeroshot", "tpt", "tpt+cots", "tpt+ecots")


def scores(run: bench.Run) -> dict[str, list[Scored]]:
    """One set of figures per method, dataset and seed."""
    cells = [(name, seed) for name in run.datasets for seed in run.seeds]
    return {m: [score(run.records(name, m, seed), ("accuracy", "ece")) for name, seed in cells] for m in METHODS}


def row(severity: int, found: list[dict[str, list[Scored]]]) -> str:
    """Accuracy, gap and ECE of every method over all corruptions of a severity."""
    cells = []
    for method in METHODS:
        pooled = pool([one for of in found for one in of[method]])
        accuracy = 100 * pooled.correct.mean()
        gap = 100 * pooled.mean_confidence - accuracy
        cells.append(f"{accuracy:.1f} | {gap:+.1f} | {100 * pooled.values['ece']:.1f}")
    n = sum(len(one) for of in found for one in of["zeroshot"])
    return f"| {severity} | {n} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--datasets", default="pets")
    parser.add_argument("--model", default="mini")
    parser.add_argument("--limit", type=int, default=150)
    parser.add_argument("--corruptions", default="gaussian_noise,defocus_blur,fog,jpeg_compression")
    parser.add_argument("--severities", default="0,1,3,5")
    given = parser.parse_args()
    common = {"model": given.model, "data": given.data, "datasets": given.datasets, "methods": METHODS}
    common |= {"limit": given.limit}
    columns = " | ".join(f"{method} accuracy | gap | ECE" for method in METHODS)
    print(f"| severity | photos | {columns} |\n|{'---|' * (2 + 3 * len(METHODS))}", flush=True)
    for severity in map(int, given.severities.split(",")):
        names = [f"{name}:{severity}" for name in given.corruptions.split(",")] if severity else [None]
        folders = {name: given.out / str(name or "clean").replace(":", "-") for name in names}
        runs = [bench.run(bench.RunConfig(**common, corrupt=name, out=folder)) for name, folder in folders.items()]
        print(row(severity, [scores(run) for run in runs]), flush=True)


if __name__ == "__main__":
    main()
