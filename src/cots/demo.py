"""The demo: every adapter and calibrator on real photos, offline, with the embedded model.

The photos are shipped as view features of `mini`; text side, adapters, calibrators and metrics run live.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from . import metrics
from ._errors import CotsError
from .backbones import Backbone, load
from .evaluate import noise_floor
from .methods import Method, headline_methods, parse_method
from .pipeline import Pipeline
from .prompts import Task

METHODS = headline_methods()
POOLED = "all photos"
QUICK = 8  # photos a set with --quick
BATCH = 16
COLUMNS = ("prediction", "confidence", "correct", "loss")  # of an Outcome, a value for each photo


@dataclass(frozen=True, kw_only=True)
class PhotoSet:
    """View features of one dataset's photos, `(n, V, D)` in half precision, with labels and class names."""

    name: str
    classes: tuple[str, ...]
    labels: np.ndarray
    features: Tensor = field(repr=False)

    def take(self, rows: Sequence[int] | np.ndarray) -> PhotoSet:
        rows = np.asarray(rows)
        return PhotoSet(
            name=self.name,
            classes=self.classes,
            labels=self.labels[rows],
            features=self.features[torch.as_tensor(rows)],
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Prediction, confidence, correctness and the label's log-loss of every photo of a set under one method."""

    dataset: str
    method: str
    prediction: np.ndarray
    confidence: np.ndarray
    correct: np.ndarray
    loss: np.ndarray

    def row(self, seed: int, resamples: int) -> dict[str, Any]:
        """Figures in per cent (the negative log-likelihood in nats), each with its 95% bootstrap interval."""
        row: dict[str, Any] = {"dataset": self.dataset, "method": self.method, "n": len(self.correct)}
        intervals = {"ece": _ece_interval(self.confidence, self.correct, seed, resamples)}
        for name, values, scale in (
            ("accuracy", self.correct, 100.0),
            ("nll", self.loss, 1.0),
            ("mean_confidence", self.confidence, 100.0),
        ):
            intervals[name] = _mean_interval(scale * values.astype(np.float64), seed, resamples)
        for name in ("accuracy", "ece", "nll", "mean_confidence"):
            row[name] = round(intervals[name][0], 4)
        row["intervals"] = {name: [round(low, 4), round(high, 4)] for name, (_, low, high) in intervals.items()}
        return row


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """All rows, what they are made of, and the model they come from."""

    rows: list[dict[str, Any]]
    outcomes: list[Outcome] = field(repr=False)
    model: str
    weights_hash: str
    alpha: dict[str, float]
    noise_floor: float
    noise_high: float

    def row(self, method: str, dataset: str = POOLED) -> dict[str, Any]:
        return next(r for r in self.rows if r["method"] == method and r["dataset"] == dataset)

    def as_json(self) -> str:
        data = {
            "model": self.model,
            "weights_hash": self.weights_hash,
            "alpha": {name: round(value, 4) for name, value in self.alpha.items()},
            "ece_of_perfect_calibration": {"mean": round(self.noise_floor, 4), "95%": round(self.noise_high, 4)},
            "summary": " ".join(summary(self)),
            "rows": [{k: v for k, v in row.items() if k != "intervals"} for row in self.rows],
            "intervals": [
                {"dataset": row["dataset"], "method": row["method"], **row["intervals"]} for row in self.rows
            ],
        }
        return json.dumps(data, indent=2)


def read_photos(file: Path | None = None) -> list[PhotoSet]:
    """The photo sets that are shipped with the package."""
    file = file or Path(str(files("cots") / "embedded" / "demo.safetensors"))
    if not file.is_file():
        raise CotsError(f"{file} is missing: the package was installed without its data. Install cots again.")
    with safe_open(file, framework="pt") as archive:
        described = json.loads(archive.metadata()["sets"])
        return [
            PhotoSet(
                name=one["name"],
                classes=tuple(one["classes"]),
                labels=archive.get_tensor(f"{one['name']}.labels").numpy().astype(np.int64),
                features=archive.get_tensor(f"{one['name']}.features"),
            )
            for one in described
        ]


def run_demo(
    *,
    seed: int = 0,
    quick: bool = False,
    methods: Sequence[str] = METHODS,
    photos: Sequence[PhotoSet] | None = None,
    backbone: Backbone | None = None,
    progress: Callable[[str, int], None] = lambda what, photos: None,
) -> DemoResult:
    """Run the methods on the shipped photos; `seed` draws the photos of `quick` and the bootstrap resamples."""
    backbone = backbone or load("mini")
    sets = list(read_photos() if photos is None else photos)
    if quick:
        rng = np.random.default_rng(seed)
        sets = [s.take(np.sort(rng.permutation(len(s.labels))[:QUICK])) for s in sets]
    parsed = [parse_method(name) for name in methods]
    outcomes: list[Outcome] = []
    alpha: dict[str, float] = {}
    for photo_set in sets:
        task = Task(backbone, photo_set.classes)
        alpha[photo_set.name] = task.alpha
        outcomes += _run_set(photo_set, task, parsed, progress)
    for method in parsed:
        outcomes.append(_pool([o for o in outcomes if o.method == str(method)]))
    resamples = 100 if quick else 500
    floor, high = (100 * share for share in noise_floor(outcomes[-len(parsed)].confidence, seed))
    return DemoResult(
        rows=[outcome.row(seed, resamples) for outcome in outcomes],
        outcomes=outcomes,
        model=backbone.name,
        weights_hash=backbone.weights_hash,
        alpha=alpha,
        noise_floor=floor,
        noise_high=high,
    )


def summary(result: DemoResult) -> tuple[str, str]:
    """Two plain sentences about what the figures show."""
    zero, tpt, cots, ecots = (result.row(m) for m in ("zeroshot", "tpt", "tpt+cots", "tpt+ecots"))
    first = (
        f"On {zero['n']} photos, tuning the prompt to each photo (TPT) {_moved(zero, tpt, 'mean_confidence')} and "
        f"{_moved(zero, tpt, 'accuracy')}: it is {_lean(tpt)} (zero-shot: {_lean(zero)}); NLL {zero['nll']:.3f} to "
        f"{tpt['nll']:.3f}."
    )
    second = (
        f"CoTS {_kept(result, 'tpt', 'tpt+cots')} and {_moved(tpt, cots, 'mean_confidence')} (zero-shot: "
        f"{zero['mean_confidence']:.1f}%; NLL {cots['nll']:.3f}); E-CoTS {_moved(tpt, ecots, 'accuracy')} (NLL "
        f"{ecots['nll']:.3f}); {_ece_against_chance([zero, tpt, cots, ecots], result)}."
    )
    return first, second


def _run_set(
    photo_set: PhotoSet, task: Task, methods: Sequence[Method], progress: Callable[[str, int], None]
) -> list[Outcome]:
    pipeline = Pipeline(task, methods)
    found: dict[str, list[tuple[np.ndarray, ...]]] = {str(method): [] for method in methods}
    for start in range(0, len(photo_set.labels), BATCH):
        rows = slice(start, start + BATCH)
        labels = photo_set.labels[rows]
        outcomes = pipeline.run(photo_set.features[rows].float())
        for method in methods:
            result = outcomes[method].calibrated
            p = result.probabilities.double().cpu().numpy()[np.arange(len(labels)), labels]
            loss = -np.log(np.maximum(p, np.finfo(np.float64).tiny))
            prediction = result.prediction.cpu().numpy()
            one = (prediction, result.confidence.double().cpu().numpy(), prediction == labels, loss)
            found[str(method)].append(one)
        progress(photo_set.name, len(labels))
    return [
        Outcome(
            dataset=photo_set.name,
            method=name,
            **dict(zip(COLUMNS, map(np.concatenate, zip(*parts, strict=True)), strict=True)),
        )
        for name, parts in found.items()
    ]


def _pool(outcomes: Sequence[Outcome]) -> Outcome:
    return Outcome(
        dataset=POOLED,
        method=outcomes[0].method,
        **{column: np.concatenate([getattr(o, column) for o in outcomes]) for column in COLUMNS},
    )


def _mean_interval(values: np.ndarray, seed: int, resamples: int) -> tuple[float, float, float]:
    interval = metrics.bootstrap(np.mean, values, seed=seed, resamples=resamples)
    return interval.value, interval.low, interval.high


def _ece_interval(confidence: np.ndarray, correct: np.ndarray, seed: int, resamples: int) -> tuple[float, float, float]:
    """ECE in per cent and its interval, centred as in `cots report`."""
    found = metrics.bootstrap(metrics.ece, confidence, correct, seed=seed, resamples=resamples, centre=True)
    return 100 * found.value, 100 * max(found.low, 0.0), 100 * min(found.high, 1.0)


def _ece_against_chance(rows: Sequence[dict[str, Any]], result: DemoResult) -> str:
    named = ", ".join(f"{row['ece']:.1f}" for row in rows)
    above = [row["method"] for row in rows if row["ece"] > result.noise_high]
    some = "all" if len(above) == len(rows) else f"only {', '.join(above)}"
    told = f"{some} above" if above else "all within"
    return f"ECE {named}% in this order, {told} what chance gives a calibrated model (up to {result.noise_high:.1f}%)"


def _kept(result: DemoResult, before: str, after: str) -> str:
    """How many predictions of one method another leaves, counted over all photos."""
    old, new = (next(o for o in result.outcomes if (o.method, o.dataset) == (m, POOLED)) for m in (before, after))
    changed = int((old.prediction != new.prediction).sum())
    name = before.upper()
    return f"kept every prediction of {name}" if not changed else f"changed {changed} predictions of {name}"


def _lean(row: dict[str, Any]) -> str:
    gap = row["mean_confidence"] - row["accuracy"]
    if abs(gap) < 0.05:
        return "as often right as it is sure"
    return f"{abs(gap):.1f} points {'over' if gap > 0 else 'under'}-confident"


def _moved(before: dict[str, Any], after: dict[str, Any], what: str) -> str:
    old, new, name = before[what], after[what], what.replace("_", " ")
    if f"{old:.1f}" == f"{new:.1f}":
        return f"left the {name} at {new:.1f}%"
    return f"{'raised' if new > old else 'lowered'} the {name} from {old:.1f}% to {new:.1f}%"
