"""Print the pooled tables of docs/results.md: the photos of all datasets of a run as one set.

    python pooled.py runs/mini

Values are means over seeds. Intervals are 95% bootstrap intervals over photos, with all seeds of a photo together,
centred on the value as in `cots report`.
"""

import argparse
from pathlib import Path

import numpy as np

from cots.bench import Run
from cots.evaluate import Scored, base_of, pool, score
from cots.metrics.intervals import draw_weights, quantiles

UNITS = {"accuracy": 100, "mean confidence": 100, "ece": 100, "nll": 1}
Resampled = dict[str, np.ndarray]  # per figure: its value, then one value per resample


def resampled(seeds: list[Scored], weights: np.ndarray) -> Resampled:
    """Figures of one method, averaged over seeds, for every row of weights (the first row: every photo once)."""
    found = []
    for scored in seeds:
        confidence = weights @ scored.confidence.astype(float) / weights.sum(1)
        found.append({"mean confidence": confidence, **scored.resampled(weights)})
    return {name: unit * np.mean([f[name] for f in found], axis=0) for name, unit in UNITS.items()}


def cells(figures: Resampled) -> str:
    def cell(values: np.ndarray) -> str:
        low, high = quantiles(values[1:], 0.95, values[0])
        return f"{values[0]:.3f} [{low:.3f}, {high:.3f}]"

    return " | ".join(cell(values) for values in figures.values())


def rows(run: Run, resamples: int = 1000) -> list[str]:
    """One row per method, then the paired differences from its adapter, or from zero-shot."""
    figures, weights = {}, np.empty(0)
    for method in run.methods:
        names = ["accuracy", "ece", "nll"]
        seeds = [pool([score(run.records(d, method, seed), names) for d in run.datasets]) for seed in run.seeds]
        if not weights.size:
            n = len(seeds[0])
            weights = np.concatenate([np.ones((1, n)), *draw_weights(n, 0, resamples)])
        figures[method] = resampled(seeds, weights)
    header = [f"| method | {' | '.join(UNITS)} |", "|---" * (len(UNITS) + 1) + "|"]
    lines = [*header, *(f"| `{method}` | {cells(found)} |" for method, found in figures.items()), "", *header]
    for method, found in figures.items():
        base = base_of(method, list(figures)) or "zeroshot"
        if base != method and base in figures:
            difference = {name: found[name] - figures[base][name] for name in UNITS}
            lines.append(f"| `{method}` - `{base}` | {cells(difference)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    print("\n".join(rows(Run.open(parser.parse_args().run))))


if __name__ == "__main__":
    main()
