"""The table of docs/guarantees.md about several things in one photo: montages of two to four photos of a set.

    python benchmarks/presence.py --data DATA

Each of 200 montages per set shows two to four photos of different classes in a square. AUROC is the mean over the
classes that are shown by some montages and not by all; missed classes are counted in 200 random splits, 100 montages
labelled and 100 judged. The splits share montages, so their results are not independent. DATA has oxford_pets,
caltech-101 and oxford_flowers in CoOp's layout. The montages are not stored.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import cots
from cots import metrics, novelty, presence
from cots.data import Dataset, open_dataset
from cots.photos import PhotoEncoder

SETS = ("pets", "caltech", "flowers")
MONTAGES, LABELS, SPLITS, RISK, SIDE, SEED = 200, 100, 200, 0.1, 224, 0
HEAD = """\
| set | classes | AUROC of score/cosine/softmax | missed | splits above 10% | found/shown per photo |
|---|---|---|---|---|---|
"""


def montage(dataset: Dataset, rng: np.random.Generator) -> tuple[np.ndarray, set[int]]:
    """A square of two to four photos of different classes; empty quarters are grey."""
    count, rows, labels = int(rng.integers(2, 5)), [], set[int]()
    for row in rng.permutation(len(dataset)).tolist():
        if len(rows) < count and dataset.samples[row].label not in labels:
            rows.append(row)
            labels.add(dataset.samples[row].label)
    square = Image.new("RGB", (2 * SIDE, 2 * SIDE), (128, 128, 128))
    for place, row in enumerate(rows):
        with Image.fromarray(np.asarray(cots.read_image(dataset.read(row)))) as photo:
            square.paste(photo.resize((SIDE, SIDE)), (SIDE * (place % 2), SIDE * (place // 2)))
    return np.asarray(square), labels


def scores(dataset: Dataset, backbone: cots.Backbone) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Three kinds of scores of the montages, and which classes they show."""
    rng, task = np.random.default_rng(SEED), cots.Task(backbone, dataset.classes)
    made = [montage(dataset, rng) for _ in range(MONTAGES)]
    settings = cots.ViewSettings.from_preprocess(backbone.preprocess, n=1)
    encoder = PhotoEncoder(backbone, settings)
    reads = encoder.read_all(lambda image: encoder.read(image, SEED), [image for image, _ in made])
    features = torch.stack([photo.features for photo in encoder.encode(reads)])
    cosines = features[:, 0] @ task.text_features.T
    found = {
        "score": novelty.presence_scores(features, task).numpy(),
        "cosine": cosines.numpy(),
        "softmax": (backbone.logit_scale * cosines).softmax(1).numpy(),
    }
    labels = np.zeros((MONTAGES, len(dataset.classes)), dtype=bool)
    for row, (_, shown) in enumerate(made):
        labels[row, list(shown)] = True
    return found, labels


def mean_auroc(values: np.ndarray, labels: np.ndarray) -> float:
    some = [k for k in range(labels.shape[1]) if 0 < labels[:, k].sum() < len(labels)]
    return float(np.mean([float(metrics.auroc(values[:, k], labels[:, k])) for k in some]))


def line(name: str, found: dict[str, np.ndarray], labels: np.ndarray) -> str:
    missed, present = [], []
    for seed in range(SPLITS):
        order = np.random.default_rng(seed).permutation(MONTAGES)
        first, rest = order[:LABELS], order[LABELS:]
        rule = presence.fit(found["score"][first], labels[first], RISK)
        inside = rule.present(found["score"][rest])
        missed.append(presence.missed_share(inside, labels[rest]))
        present.append(inside.sum(1).mean())
    aurocs = "/".join(f"{100 * mean_auroc(values, labels):.1f}" for values in found.values())
    above = np.mean(np.array(missed) > RISK)
    return (
        f"| {name} | {labels.shape[1]} | {aurocs} | {np.mean(missed):.1%} | {above:.0%} | "
        f"{np.mean(present):.1f}/{labels.sum(1).mean():.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="mini")
    args = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    backbone = cots.load(args.model)
    print(HEAD, end="")
    for name in SETS:
        print(line(name, *scores(open_dataset(name, args.data), backbone)), flush=True)


if __name__ == "__main__":
    main()
