"""Print the pooled tables of docs/results.md: the photos of all datasets of a run as one set.

    python pooled.py runs/mini

Values are means over seeds. Intervals are 95% bootstrap intervals over photos, with all seeds of a photo together,
centred on the value as in `cots report`.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cots.bench import Run
from cots.metrics import ece, nll

Figures = dict[str, np.ndarray]  # (photos, seeds) per quantity


def read(run: Run, method: str) -> Figures:
    """Confidence, correctness and negative log-likelihood of every photo and seed."""
    columns: dict[str, list[np.ndarray]] = {"confidence": [], "correct": [], "nll": []}
    for seed in run.seeds:
        records = [run.records(dataset, method, seed) for dataset in run.datasets]
        columns["confidence"].append(np.concatenate([r.confidence.astype(float) for r in records]))
        columns["correct"].append(np.concatenate([r.correct for r in records]))
        columns["nll"].append(np.concatenate([nll(r.probabilities, r.label).per_sample for r in records]))
    return {name: np.stack(values, 1) for name, values in columns.items()}


METRICS: dict[str, Callable[[Figures], float]] = {
    "accuracy": lambda f: 100 * f["correct"].mean(),
    "mean confidence": lambda f: 100 * f["confidence"].mean(),
    "ECE": lambda f: 100 * np.mean([float(ece(c, a)) for c, a in zip(f["confidence"].T, f["correct"].T, strict=True)]),
    "NLL": lambda f: f["nll"].mean(),
}


def interval(
    metric: Callable[[Figures], float], one: Figures, other: Figures | None = None, resamples: int = 1000
) -> str:
    """The metric of one method, or its difference from another's on the same photos, with its interval."""

    def value(rows: np.ndarray) -> float:
        drawn = [{name: v[rows] for name, v in f.items()} for f in (one, other) if f is not None]
        return metric(drawn[0]) - (metric(drawn[1]) if other is not None else 0.0)

    n, rng = len(one["nll"]), np.random.default_rng(0)
    whole = value(np.arange(n))
    found = np.array([value(rng.integers(0, n, n)) for _ in range(resamples)])
    low, high = np.quantile(found, [0.025, 0.975]) + whole - found.mean()
    return f"{whole:.3f} [{low:.3f}, {high:.3f}]"


def rows(run: Run, resamples: int = 1000) -> list[str]:
    """One row per method, then the paired differences from its adapter, or from zero-shot."""
    figures = {method: read(run, method) for method in run.methods}
    header = [f"| method | {' | '.join(METRICS)} |", "|---" * (len(METRICS) + 1) + "|"]
    lines = list(header)
    for method, one in figures.items():
        cells = (interval(metric, one, resamples=resamples) for metric in METRICS.values())
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    lines += ["", *header]
    for method, one in figures.items():
        base = method.split("+")[0] if "+" in method else "zeroshot"
        if base in figures and base != method:
            cells = (interval(metric, one, figures[base], resamples) for metric in METRICS.values())
            lines.append(f"| `{method}` - `{base}` | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    print("\n".join(rows(Run.open(parser.parse_args().run))))


if __name__ == "__main__":
    main()
