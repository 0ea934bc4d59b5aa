"""All methods alone and with CoTS, on photos of trained classes and on unseen photos: docs/all-methods.md.

    python benchmarks/acting.py encode --data DATA --out features --whole \\
        --sets pets,caltech,flowers,tiny-imagenet,pacs-art,pacs-cartoon     # once
    python benchmarks/all_methods.py --features features              # a minute on a GPU
    python benchmarks/all_methods.py                                  # only the page, from the stored results

A seed draws the views and the order of the stream. Photos of names that `mini` was not trained on are left out.
TCA's words, benchmarks/attributes.json, were written from the names; ReTA has CLIP's seven templates.
"""

from __future__ import annotations

import argparse
import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from acting import Photos, read
from findings import adapters, blocks
from pages import ROOT, fill
from toolbox import methods, needs

import cots
from cots.adaptation import Pipeline
from cots.adapters import ADAPTERS
from cots.data import find_protocol
from cots.demo import PhotoSet
from cots.evaluate import Scored, pool, score_columns
from cots.evaluate.plots import COLOURS, new_figure, save_figure, styled
from cots.metrics import nll
from cots.metrics.intervals import draw_weights, quantiles
from cots.prompts import Task

RESULTS, COST = ROOT / "benchmarks/results/all-methods.json", ROOT / "benchmarks/results/h200-toolbox.json"
UNSEEN, SEEN = ("tiny-imagenet", "pacs-art", "pacs-cartoon"), ("pets", "caltech", "flowers")
SEEDS, BATCH = (0, 1, 2), 64
FIGURES = {"accuracy": 100, "ece": 100, "nll": 1}
ADAPTED = ["zeroshot", *methods()]


def photos_of(found: dict[tuple[str, int], Photos], name: str, seed: int, backbone: cots.Backbone) -> PhotoSet:
    """The photos of a set under a seed's views, of the names that the model knows."""
    features, labels, classes = found[name, seed]
    known = [word for word in classes if not backbone.tokenizer.untrained_words([word])]
    place = {classes.index(word): new for new, word in enumerate(known)}
    rows = np.flatnonzero([int(label) in place for label in labels])
    new_labels = np.array([place[int(labels[row])] for row in rows])
    return PhotoSet(name=name, classes=tuple(known), labels=new_labels, features=features[torch.as_tensor(rows)])


def run_set(photos: PhotoSet, protocol: Any, backbone: cots.Backbone, names: list[str], seed: int) -> dict[str, Scored]:
    """The records of one set in the seed's order, put back into the order of the photos."""
    order = np.random.default_rng(seed).permutation(len(photos.labels))
    stream = photos.take(order)
    settings: dict[str, Any] = {name: protocol.settings(name) if protocol else {} for name in names}
    for name in names:
        if "length" in ADAPTERS.settings(name):
            settings[name]["length"] = len(order)
    chosen = [method for name in names for method in (name, f"{name}+cots")]
    pipelines = []
    for options, own in needs(names):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cots.UntrainedWordWarning)
            task = Task(backbone, photos.classes, **options)
        given = {name: settings[name] for name in own}
        pipelines.append(Pipeline(task, [m for name in own for m in (name, f"{name}+cots")], adapter_settings=given))
    parts: dict[str, list[tuple[np.ndarray, ...]]] = {name: [] for name in chosen}
    for first in range(0, len(order), BATCH):
        labels = stream.labels[first : first + BATCH]
        outcomes = [pipeline.run(stream.features[first : first + BATCH]) for pipeline in pipelines]
        for method, outcome in itertools.chain.from_iterable(found.items() for found in outcomes):
            found = outcome.calibrated
            probabilities, prediction, confidence = (
                each.cpu().numpy() for each in (found.probabilities, found.prediction, found.confidence)
            )
            loss = nll(probabilities, labels).per_sample
            parts[str(method)].append((confidence.astype(np.float32), prediction == labels, loss))
    back = np.argsort(order)
    scored = {}
    for name, batches in parts.items():
        confidence, correct, loss = (np.concatenate(column)[back] for column in zip(*batches, strict=True))
        scored[name] = score_columns(confidence, correct, {"nll": loss}, list(FIGURES))
    return scored


def summarised(seeds: list[dict[str, Scored]], resamples: int = 1000) -> dict[str, Any]:
    """Means over seeds with 95% intervals over photos, all seeds of a photo together; differences are paired."""
    n = len(next(iter(seeds[0].values())))
    weights = np.concatenate([np.ones((1, n)), *draw_weights(n, 0, resamples)])
    values = {}
    for name in seeds[0]:
        found = [seed[name].resampled(weights) for seed in seeds]
        values[name] = {key: unit * np.mean([f[key] for f in found], axis=0) for key, unit in FIGURES.items()}

    def row(figures: dict[str, np.ndarray]) -> dict[str, list[float]]:
        ends = {key: quantiles(found[1:], 0.95, found[0]) for key, found in figures.items()}
        return {key: [round(float(v), 4) for v in (found[0], *ends[key])] for key, found in figures.items()}

    rows = {name: row(found) for name, found in values.items()}
    for name in ADAPTED:
        change = {key: values[f"{name}+cots"][key] - values[name][key] for key in FIGURES}
        rows[f"{name}+cots"]["change"] = row(change)
        spread = [seed[name].values["ece"] for seed in seeds]
        rows[name]["ece over seeds"] = [round(100 * value, 4) for value in (min(spread), max(spread))]
    return {"photos": n, "rows": rows}


def measure(folder: Path, device: str) -> dict[str, Any]:
    backbone = cots.load("mini", device=device)
    photos = read(folder, backbone.device)
    found: dict[str, Any] = {
        "model": backbone.name,
        "weights_hash": backbone.weights_hash,
        "seeds": SEEDS,
        "groups": {},
    }
    for group, names in {"unseen": UNSEEN, "seen": SEEN}.items():
        seeds: list[dict[str, Scored]] = []
        sets: dict[str, int] = {}
        for seed in SEEDS:
            parts = []
            for name in names:
                some, protocol = photos_of(photos, name, seed, backbone), find_protocol(name) if name in SEEN else None
                sets[name] = len(some.labels)
                parts.append(run_set(some, protocol, backbone, ADAPTED, seed))
                print(f"{name}, seed {seed} done", flush=True)
            seeds.append(pooled(parts))
        found["groups"][group] = {"sets": sets, **summarised(seeds)}
    return found


def pooled(sets: list[dict[str, Scored]]) -> dict[str, Scored]:
    return {name: pool([part[name] for part in sets]) for name in sets[0]}


def apart(values: dict[str, float], gap: float) -> dict[str, float]:
    """The values, moved as little as leaves `gap` between neighbours, so that equal ones can be told apart."""
    order = sorted(values, key=lambda name: values[name])
    x = np.array([values[name] for name in order])
    for _ in range(500):
        push = np.clip(gap - np.diff(x), 0, None) / 2
        x[:-1] -= push
        x[1:] += push
    return dict(zip(order, x.tolist(), strict=True))


@styled({"font.size": 8.5})
def draw(groups: dict[str, Any], stem: Path) -> None:
    """Accuracy against ECE, an arrow from each method alone to the same with CoTS."""
    figure = new_figure(6.6, 8.6, left=0.085, right=0.985, top=0.93, bottom=0.055, hspace=0.2)
    for place, (group, found) in enumerate(groups.items(), start=1):
        axes = figure.add_subplot(len(groups), 1, place)
        names = adapters(found)
        accuracy = {name: found["rows"][name]["accuracy"][0] for name in names}
        xs = apart(accuracy, 0.036 * (max(accuracy.values()) - min(accuracy.values())))
        for name in names:
            start, end = ((xs[name], found["rows"][m]["ece"][0]) for m in (name, f"{name}+cots"))
            colour = COLOURS[6] if ADAPTERS.info(name).online else COLOURS[1]
            arrow = {"arrowstyle": "->", "color": colour, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
            axes.plot(*start, "o", color=colour, markersize=5)
            moved = abs(start[1] - end[1]) > 0.05
            if moved:
                axes.annotate("", end, start, arrowprops=arrow)
            # Above the arrow; below a dot without one, where a neighbour's arrow does not reach.
            place_of = {"xytext": (1, 5)} if moved else {"xytext": (-1, -6), "ha": "right", "va": "center"}
            look = {"color": colour, "fontsize": 8, "rotation": 82, "rotation_mode": "anchor"}
            axes.annotate(
                name, max(start, end, key=lambda point: point[1]), textcoords="offset points", **place_of, **look
            )
        axes.set(xlabel="accuracy %", ylabel="ECE %, lower is better")
        axes.set_ylim(0, 1.22 * max(row["ece"][0] for row in found["rows"].values()))
        axes.margins(x=0.07)
        axes.set_title(f"{group}: {found['photos']:,} photos")
    for x, colour, text in ((0.085, COLOURS[1], "episodic"), (0.22, COLOURS[6], "online")):
        figure.text(x, 0.977, f"\u25cf {text}", color=colour, fontsize=9.5, va="center")
    figure.text(0.985, 0.977, "arrow: the same method with CoTS", fontsize=9, ha="right", va="center")
    caption = (
        "Means over three seeds. Dots closer than they are wide are set apart sideways; the tables have the figures."
    )
    save_figure(figure, stem, "Accuracy against ECE of every method, alone and with CoTS", caption, ("svg",))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--features", type=Path, help="measure: the folder that acting.py wrote")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    if given.features:
        RESULTS.write_text(json.dumps(measure(given.features, given.device), indent=1) + "\n")
    groups, cost = json.loads(RESULTS.read_text())["groups"], json.loads(COST.read_text()) if COST.exists() else {}
    draw(groups, ROOT / "docs/figures/all-methods")
    fill("all-methods.md", blocks(groups, cost))


if __name__ == "__main__":
    main()
