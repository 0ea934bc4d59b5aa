"""`views="auto"` against 64 views, on the demo's photos: share of views, same class, change of confidence, ranges.

    python benchmarks/auto_views.py [--features FOLDER]

FOLDER: other photos, as `benchmarks/acting.py encode` writes them, each set with its whole list of names. The constants
of `cots.rounds` were chosen on its choosing sets (`--sets choosing`): training photos, pacs-photo and imagenette, also
with class lists that have wrong names, never on the demo's photos.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import torch
from acting import CHOOSING, SHOWN
from acting import read as read_features
from torch import Tensor

import cots
from cots.adaptation import Pipeline
from cots.demo import KNOWN, UNKNOWN, PhotoSet, read_photos, short_lists
from cots.rounds import ROUNDS, enough, untuned_answer

METHODS = ("tpt+ecots", "tpt+cots")
BATCH = 8


def views_used(features_BVD: Tensor, task: cots.Task) -> np.ndarray:
    """The number of views (B,) that each photo is encoded with."""
    used = np.full(len(features_BVD), ROUNDS[-1])
    active, before = torch.arange(len(features_BVD)), None
    for views in ROUNDS[:-1]:
        answer = untuned_answer(features_BVD[active, :views], task)
        done = enough(answer, before, views)
        used[active[done].numpy()] = views
        active, before = active[~done], answer[~done]
    return used


def compared(photos: PhotoSet, backbone: cots.Backbone) -> dict[str, list[np.ndarray]]:
    """By method: views used, whether the class is the same, change of confidence, whether its range has that of 64."""
    task = cots.Task(backbone, photos.classes)
    settings = {"ecots": {"solver": "exact"}, "cots": {"solver": "exact"}}
    plain = Pipeline(task, METHODS, calibrator_settings=settings)
    ranged = Pipeline(task, METHODS, calibrator_settings=settings, ranges=True)
    features = torch.nn.functional.normalize(photos.features.float(), dim=-1)
    used = views_used(features, task)
    found: dict[str, list[np.ndarray]] = {method: [] for method in METHODS}
    for views in ROUNDS:
        for rows in torch.from_numpy(np.flatnonzero(used == views)).split(BATCH):
            if not len(rows):
                continue
            whole, part = plain.run(features[rows]), ranged.run(features[rows, :views])
            for method, outcome in part.items():
                all_views, some, ends = whole[method].calibrated, outcome.calibrated, outcome.confidence_range
                assert ends is not None
                columns = (
                    torch.full_like(some.tau, views),
                    some.prediction == all_views.prediction,
                    (some.confidence - all_views.confidence).abs(),
                    (all_views.confidence >= ends[:, 0]) & (all_views.confidence <= ends[:, 1]),
                )
                found[str(method)].append(torch.stack([column.double() for column in columns]).numpy())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=Path)
    parser.add_argument("--sets", choices=("choosing", "shown"), default="shown")
    args = parser.parse_args()
    warnings.simplefilter("ignore", cots.UntrainedWordWarning)
    backbone = cots.load("mini", device="cpu")
    if args.features is None:
        sets = short_lists(read_photos())
    else:
        sets, wanted = [], CHOOSING if args.sets == "choosing" else SHOWN
        for (name, seed), (features, labels, classes) in read_features(args.features, backbone.device).items():
            if seed == 0 and name in wanted:
                known = name.partition("-")[0] in ("pets", "caltech", "flowers")
                one = PhotoSet(name=name, classes=classes, labels=labels.numpy(), features=features, known=known)
                sets.append(one)
    pooled: dict[tuple[str, str], list[np.ndarray]] = {}
    for photos in sets:
        for method, parts in compared(photos, backbone).items():
            pooled.setdefault((photos.kind, method), []).extend(parts)
    print("| photos | method | views | same class | mean change of confidence | 99% below | 64 views in its range |")
    print("|---|---|---|---|---|---|---|")
    for kind in (KNOWN, UNKNOWN):
        for method in METHODS:
            if (kind, method) in pooled:
                used, same, change, inside = np.concatenate(pooled[kind, method], axis=1)
                cells = f"{used.mean() / ROUNDS[-1]:.0%} | {same.mean():.2%} ({int(same.sum())} of {len(same)})"
                cells += f" | {change.mean():.4f} | {np.quantile(change, 0.99):.3f} | {inside.mean():.1%}"
                print(f"| {kind} | {method} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
