"""FPP's contexts beside the words of the template, alone and with CoTS: the figures in docs/methods.md.

    python benchmarks/acting.py encode --data DATA --out features --sets pets,caltech,flowers
    python benchmarks/flat.py --features features

Contexts are kept in the folder of the features. With a context, zero-shot is that of the context.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import torch
from acting import read
from safetensors.torch import load_file, save_file

import cots
from cots import metrics
from cots.adaptation import Pipeline
from cots.prompts import flatness

SETS, SEED, BATCH, RESAMPLES = ("pets", "caltech", "flowers"), 0, 50, 1000
METHODS = ("zeroshot", "tpt", "tpt+cots")

Columns = tuple[np.ndarray, np.ndarray, np.ndarray]  # confidence, correctness and NLL of each photo


def kept_context(file: Path, backbone: cots.Backbone, classes: tuple[str, ...]) -> torch.Tensor:
    """The default context for the classes, from the file if it exists."""
    if not file.exists():
        save_file({"ctx": cots.pretrain_context(backbone, classes).cpu()}, file)
    return load_file(file)["ctx"]


def predict(task: cots.Task, features: torch.Tensor, labels: torch.Tensor) -> dict[str, Columns]:
    pipeline, tables = Pipeline(task, METHODS), {name: [] for name in METHODS}
    for part in features.split(BATCH):
        for method, outcome in pipeline.run(part).items():
            tables[str(method)].append(outcome.calibrated.probabilities.double().cpu().numpy())
    columns = {}
    for name, parts in tables.items():
        table = np.concatenate(parts)
        confidence, prediction = metrics.top_label(table)
        losses = -np.log(table[np.arange(len(table)), labels.cpu().numpy()])
        columns[name] = confidence, prediction == labels.cpu().numpy(), losses
    return columns


def figures(columns: Columns, rows: np.ndarray) -> list[float]:
    confidence, correct, loss = (column[rows] for column in columns)
    return [100 * correct.mean(), 100 * float(metrics.ece(confidence, correct)), float(loss.mean())]


def line(name: str, words: Columns, flat: Columns) -> str:
    """Accuracy, ECE and NLL under words and context; a mark where the paired 95% interval excludes zero."""
    n = len(words[0])
    draws = np.random.default_rng(0).integers(0, n, (RESAMPLES, n))
    changes = np.array([np.subtract(figures(flat, rows), figures(words, rows)) for rows in draws])
    low, high = np.quantile(changes, (0.025, 0.975), axis=0)
    cells = [f"`{name}`"]
    before, after = figures(words, np.arange(n)), figures(flat, np.arange(n))
    for k, digits in enumerate((1, 1, 2)):
        mark = "▼" if high[k] < 0 else "▲" if low[k] > 0 else ""
        cells += [f"{before[k]:.{digits}f}", f"{after[k]:.{digits}f}{mark}"]
    return f"|{'|'.join(cells)}|"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--features", type=Path, default=Path("features"))
    parser.add_argument("--photos", type=int, default=60, help="of each set, evenly spaced")
    given = parser.parse_args()
    warnings.simplefilter("ignore", cots.UntrainedWordWarning)
    backbone = cots.load("mini")
    photos = read(given.features, backbone.device)
    found: dict[tuple[str, str], list[Columns]] = {}
    for name in SETS:
        features, labels, classes = photos[name, SEED]
        rows = torch.arange(min(given.photos, len(labels))) * len(labels) // min(given.photos, len(labels))
        context = kept_context(given.features / f"{name}.ctx", backbone, classes)
        for kind, own in (("words", None), ("flat", context)):
            task = cots.Task(backbone, classes, context=own)
            print(f"{name} {kind}: mean cosine under noise {flatness(task):.2f}")
            for method, columns in predict(task, features[rows], labels[rows]).items():
                found.setdefault((method, kind), []).append(columns)
    print("|method|accuracy|FPP|ECE|FPP|NLL|FPP|\n|---|---|---|---|---|---|---|")
    for method in METHODS:
        words, flat = (tuple(map(np.concatenate, zip(*found[method, kind], strict=True))) for kind in ("words", "flat"))
        print(line(method, words, flat))


if __name__ == "__main__":
    main()
