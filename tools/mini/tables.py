"""The tables of docs/results.md and docs/mini.md from a run folder: every set, and all photos pooled.

    python tables.py runs/mini [--methods zeroshot tpt ...]

Means, deviations and intervals are those of `cots report`; pooled puts the photos of all sets into one.
"""

import argparse
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import cots
from cots.bench import Run
from cots.report import summarize

POOLED = "pooled"
RESAMPLES = 1000
PAIRS = (
    ("tpt", "zeroshot"), ("tpt+sals", "tpt"), ("tpt+cor", "tpt"), ("tpt+cots", "tpt"), ("tpt+ecots", "tpt"),
    ("tpt+cots", "zeroshot"), ("ctpt", "zeroshot"), ("ctpt+cots", "ctpt"), ("ctpt+ecots", "ctpt"),
    ("otpt+cots", "otpt"), ("otpt+ecots", "otpt"), ("atpt+cots", "atpt"), ("atpt+ecots", "atpt"),
    ("soc+cots", "soc"), ("soc+ecots", "soc"),
)  # fmt: skip


@dataclass(frozen=True)
class Everything:
    """A run with one more dataset, which holds the photos of all the others."""

    run: Run
    complete: bool = True

    @cached_property
    def manifest(self) -> dict[str, Any]:
        entries = self.run.manifest["datasets"]
        widest = max((e["classes"] for e in entries), key=len)
        whole = {"name": POOLED, "title": POOLED, "n": sum(e["n"] for e in entries), "classes": widest}
        return self.run.manifest | {"datasets": [*entries, whole]}

    def records(self, dataset: str, method: str, seed: int) -> Any:
        if dataset != POOLED:
            return self.run.records(dataset, method, seed)
        parts = [self.run.records(d, method, seed) for d in self.run.datasets]
        width = max(p.probabilities.shape[1] for p in parts)
        probabilities = [np.pad(p.probabilities, ((0, 0), (0, width - p.probabilities.shape[1]))) for p in parts]
        columns = ("label", "prediction", "confidence", "tau", "milliseconds", "correct")
        return SimpleNamespace(
            ids=[f"{p.dataset}/{i}" for p in parts for i in p.ids],
            probabilities=np.concatenate(probabilities),
            errors={},
            **{c: np.concatenate([getattr(p, c) for p in parts]) for c in columns},
        )


def over_photos(values_SN: np.ndarray) -> tuple[float, float, float]:
    """The mean of figures (seeds, photos) and its 95% interval; a photo is drawn with all of its seeds."""
    found = cots.metrics.bootstrap(np.mean, values_SN.mean(0), resamples=RESAMPLES)
    return found.value, found.low, found.high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--methods", nargs="*")
    args = parser.parse_args()
    whole = Everything(Run.open(args.run))
    summary = summarize(whole, resamples=RESAMPLES)
    methods = args.methods or summary.methods
    print("seeds", summary.seeds, "missing", summary.missing, "failures", summary.failures)
    for column in summary.datasets:
        print(f"\n### {column.title}, {column.n:,} photos\n")
        print("| method | accuracy | mean confidence | ECE | NLL |\n|---|---|---|---|---|")
        for method in methods:
            runs = list(summary.scored[column.name, method].values())
            confidence = 100 * np.stack([r.confidence for r in runs]).astype(float)
            value, low, high = over_photos(confidence)
            spread = f" ± {confidence.mean(1).std(ddof=1):.1f}" if len(runs) > 1 else ""
            cells = [f"{value:.1f}{spread} [{low:.1f}, {high:.1f}]"]
            for metric, digits, scale in (("accuracy", 1, 100), ("ece", 2, 100), ("nll", 3, 1)):
                c = summary.cells[column.name, method, metric]
                ends = f"[{scale * c.low:.{max(digits, 1)}f}, {scale * c.high:.{max(digits, 1)}f}]"
                spread = f" ± {scale * c.std:.{digits}f}" if c.std is not None else ""
                cells.append(f"{scale * c.mean:.{digits}f}{spread} {ends}")
            print(f"| `{method}` |", " | ".join([cells[1], cells[0], *cells[2:]]), "|")
    losses = {m: np.stack([r.loss for r in summary.scored[POOLED, m].values()]) for m in summary.methods}
    right = {m: np.stack([r.correct for r in summary.scored[POOLED, m].values()]) * 100.0 for m in summary.methods}
    print("\n| | NLL | accuracy, points | ECE, points |\n|---|---|---|---|")
    for a, b in (pair for pair in PAIRS if set(pair) <= set(losses)):
        nll, acc = over_photos(losses[a] - losses[b]), over_photos(right[a] - right[b])
        shown = "0" if not (right[a] - right[b]).any() else f"{acc[0]:+.2f} [{acc[1]:.2f}, {acc[2]:.2f}]"
        c = summary.cells[POOLED, a, "ece"]
        ece = f"{100 * c.change:+.2f} [{100 * c.change_low:.2f}, {100 * c.change_high:.2f}]" if c.base == b else ""
        print(f"| `{a}` - `{b}` | {nll[0]:+.3f} [{nll[1]:.3f}, {nll[2]:.3f}] | {shown} | {ece} |")
    for d in whole.run.datasets:
        tau = {m: [np.median(whole.records(d, m, s).tau) for s in summary.seeds] for m in methods if "cots" in m}
        print(
            f"\nmedian temperature of {d}, mean over seeds:", {m: round(float(np.mean(v)), 3) for m, v in tau.items()}
        )


if __name__ == "__main__":
    main()
