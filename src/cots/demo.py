"""The demo: every adapter and calibrator on real photos, offline, with the embedded model.

The photos are shipped as view features of `mini`; text side, adapters, calibrators and metrics run live.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from . import metrics
from ._checked import read_tensors
from ._errors import CotsError
from .backbones import Backbone, load
from .evaluate import Scored, noise_floor, pool, score_columns
from .methods import Method, headline_methods, parse_method
from .pipeline import Pipeline
from .prompts import Task

METHODS = headline_methods()
POOLED = "all photos"
QUICK = 8  # photos per set with --quick
BATCH = 16


@dataclass(frozen=True, kw_only=True)
class PhotoSet:
    """View features of one dataset's photos, `(n, V, D)`, with labels and class names."""

    name: str
    classes: tuple[str, ...]
    labels: np.ndarray
    features: Tensor = field(repr=False)

    def take(self, rows: np.ndarray) -> Self:
        """Only the photos in `rows`."""
        return replace(self, labels=self.labels[rows], features=self.features[torch.as_tensor(rows)])


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Predictions and figures of one method on a set of photos."""

    dataset: str
    method: str
    prediction: np.ndarray
    scored: Scored

    def row(self, seed: int, resamples: int) -> dict[str, Any]:
        """Figures in per cent (NLL in nats), each with its 95% bootstrap interval."""
        confidence, correct = self.scored.confidence, self.scored.correct
        draws: Any = {"seed": seed, "resamples": resamples}
        found = {
            "accuracy": (100, metrics.bootstrap(metrics.accuracy, correct, **draws)),
            "ece": (100, metrics.bootstrap(metrics.ece, confidence, correct, centre=True, **draws)),
            "nll": (1, metrics.bootstrap(np.mean, self.scored.columns["nll"], **draws)),
            "mean_confidence": (100, metrics.bootstrap(np.mean, confidence, **draws)),
        }
        return {
            "dataset": self.dataset,
            "method": self.method,
            "n": len(correct),
            **{name: round(scale * interval.value, 4) for name, (scale, interval) in found.items()},
            "intervals": {
                name: [round(scale * end, 4) for end in _clipped(name, interval)]
                for name, (scale, interval) in found.items()
            },
        }


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
        raise CotsError(f"{file} is missing: the package was installed without its data. Reinstall cots.")
    tensors, metadata = read_tensors(file, framework="pt", remedy="Reinstall cots.")
    return [
        PhotoSet(
            name=one["name"],
            classes=tuple(one["classes"]),
            labels=tensors[f"{one['name']}.labels"].numpy().astype(np.int64),
            features=_features(tensors, one["name"]),
        )
        for one in json.loads(metadata["sets"])
    ]


def _features(tensors: dict[str, Tensor], name: str) -> Tensor:
    """8-bit features times the scale of their view."""
    features, scales = tensors[f"{name}.features"].float(), tensors.get(f"{name}.scales")
    return features if scales is None else features * scales[..., None].float()


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
    outcomes += [_pool([o for o in outcomes if o.method == str(method)]) for method in parsed]
    floor, high = (100 * ece for ece in noise_floor(outcomes[-len(parsed)].scored.confidence, seed))
    return DemoResult(
        rows=[outcome.row(seed, resamples=100 if quick else 500) for outcome in outcomes],
        outcomes=outcomes,
        model=backbone.name,
        weights_hash=backbone.weights_hash,
        alpha=alpha,
        noise_floor=floor,
        noise_high=high,
    )


def summary(result: DemoResult) -> tuple[str, str]:
    """What the figures show, in two sentences."""
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
    parts: dict[Method, list[tuple[np.ndarray, ...]]] = {method: [] for method in methods}
    for start in range(0, len(photo_set.labels), BATCH):
        rows = slice(start, start + BATCH)
        labels = photo_set.labels[rows]
        for method, outcome in pipeline.run(photo_set.features[rows].float()).items():
            result = outcome.calibrated
            prediction = result.prediction.cpu().numpy()
            loss = metrics.nll(result.probabilities.cpu().numpy(), labels).per_sample
            confidence = result.confidence.double().cpu().numpy()
            parts[method].append((prediction, confidence, prediction == labels, loss))
        progress(photo_set.name, len(labels))
    outcomes = []
    for method, columns in parts.items():
        prediction, confidence, correct, loss = map(np.concatenate, zip(*columns, strict=True))
        scored = score_columns(confidence, correct, {"nll": loss})
        outcomes.append(Outcome(dataset=photo_set.name, method=str(method), prediction=prediction, scored=scored))
    return outcomes


def _pool(outcomes: Sequence[Outcome]) -> Outcome:
    return Outcome(
        dataset=POOLED,
        method=outcomes[0].method,
        prediction=np.concatenate([outcome.prediction for outcome in outcomes]),
        scored=pool([outcome.scored for outcome in outcomes]),
    )


def _clipped(name: str, interval: metrics.Interval) -> tuple[float, float]:
    ends = interval.low, interval.high
    return metrics.METRICS.info(name).clip(ends) if name in metrics.METRICS else ends


def _ece_against_chance(rows: Sequence[dict[str, Any]], result: DemoResult) -> str:
    named = ", ".join(f"{row['ece']:.1f}" for row in rows)
    above = [row["method"] for row in rows if row["ece"] > result.noise_high]
    some = "all" if len(above) == len(rows) else f"only {', '.join(above)}"
    verdict = f"{some} above" if above else "all within"
    return (
        f"ECE {named}% in this order, {verdict} what chance gives a calibrated model (up to {result.noise_high:.1f}%)"
    )


def _kept(result: DemoResult, before: str, after: str) -> str:
    """How many predictions a method changes, over all photos."""
    predictions = {o.method: o.prediction for o in result.outcomes if o.dataset == POOLED}
    changed = int((predictions[before] != predictions[after]).sum())
    return f"{f'changed {changed} predictions' if changed else 'kept every prediction'} of {before.upper()}"


def _lean(row: dict[str, Any]) -> str:
    gap = row["mean_confidence"] - row["accuracy"]
    if abs(gap) < 0.05:
        return "neither over- nor under-confident"
    return f"{abs(gap):.1f} points {'over' if gap > 0 else 'under'}-confident"


def _moved(before: dict[str, Any], after: dict[str, Any], what: str) -> str:
    old, new, name = before[what], after[what], what.replace("_", " ")
    if f"{old:.1f}" == f"{new:.1f}":
        return f"left the {name} at {new:.1f}%"
    return f"{'raised' if new > old else 'lowered'} the {name} from {old:.1f}% to {new:.1f}%"
