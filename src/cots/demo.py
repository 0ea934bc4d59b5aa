"""The demo: what TPT and CoTS do to the confidence on photos that `mini` was not trained on, offline.

The photos ship as view features of `mini`; text side, adapters, calibrators and metrics run live. The page shows three
photos of `examples/photos` with their predictions.
"""

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ._arrays import one_thread_each
from ._checked import read_tensors
from ._errors import CotsError, UntrainedWordWarning
from .backbones import Backbone, load
from .data import sample_photos
from .evaluate import Scored, claims, pool, score_predictions
from .methods import Method, headline_methods, parse_method
from .metrics import noise_floor
from .photos import Photo, PhotoEncoder, begin_predictions
from .pipeline import Pipeline
from .prompts import Task
from .views import ViewSettings

METHODS = ("zeroshot", "tpt", "tpt+sals", "tpt+cots", "tpt+ecots")
ALL_METHODS = tuple(dict.fromkeys((*METHODS, *headline_methods())))
POOLED = "all photos"
QUICK = 60  # photos with --quick
LEAST, MOST, AT_ONCE = 8, 32, 400  # photos between two moves of the progress bar, and their names
SHOWN = {"cat.jpg": "a cat", "coffee.jpg": "a cup of espresso", "rocket.jpg": "a rocket on its launch pad"}
NAMES = (
    "tabby cat", "tiger cat", "Egyptian cat", "lynx", "golden retriever", "espresso", "coffee mug", "cup", "soup bowl",
    "teapot", "missile", "space shuttle", "lighthouse", "volcano", "sports car", "daisy",
)  # fmt: skip


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
class DemoOutcome:
    """Predictions and figures of one method on a set of photos."""

    dataset: str
    method: str
    prediction: np.ndarray
    scored: Scored

    def row(self, seed: int, resamples: int) -> dict[str, Any]:
        """Figures in per cent (NLL in nats), each with its 95% bootstrap interval."""
        ends = self.scored.intervals(seed, resamples)
        value = {**self.scored.values, "mean_confidence": self.scored.mean_confidence}
        scale = {"accuracy": 100, "ece": 100, "nll": 1, "mean_confidence": 100}
        return {
            "dataset": self.dataset,
            "method": self.method,
            "n": len(self.scored),
            **{name: round(times * value[name], 4) for name, times in scale.items()},
            "intervals": {name: [round(times * end, 4) for end in ends[name]] for name, times in scale.items()},
        }


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A photo on the page: what it shows, the names it was compared with, each method's answer and confidence."""

    file: Path
    shows: str
    names: tuple[str, ...]
    answers: dict[str, tuple[str, float]]


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """The demo's rows, the outcomes and sentences behind them, and the model."""

    rows: list[dict[str, Any]]
    outcomes: list[DemoOutcome] = field(repr=False)
    sentences: tuple[str, ...]
    selective: tuple[str, ...]
    model: str
    weights_hash: str
    alpha: dict[str, float]
    untrained: tuple[str, ...]
    noise_floor: float
    noise_high: float
    shown: list[Shown] = field(default_factory=list)

    def row(self, method: str, dataset: str = POOLED) -> dict[str, Any]:
        return next(r for r in self.rows if r["method"] == method and r["dataset"] == dataset)

    def pooled(self, method: str) -> Scored:
        return next(o.scored for o in self.outcomes if o.method == method and o.dataset == POOLED)

    def as_json(self) -> str:
        data = {
            "model": self.model,
            "weights_hash": self.weights_hash,
            "alpha": {name: round(value, 4) for name, value in self.alpha.items()},
            "ece_of_perfect_calibration": {"mean": round(self.noise_floor, 4), "95%": round(self.noise_high, 4)},
            "summary": " ".join(self.sentences),
            "selective": " ".join(self.selective),
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
            features=tensors[f"{one['name']}.features"].float() * tensors[f"{one['name']}.scales"][..., None].float(),
        )
        for one in json.loads(metadata["sets"])
    ]


def short_lists(sets: Sequence[PhotoSet], names: int = 50) -> list[PhotoSet]:
    """Split sets with longer lists of names, because the time of a method grows with the number of names."""
    found = []
    for whole in sets:
        for start in range(0, len(whole.classes), names):
            part = whole.take(np.flatnonzero(whole.labels // names == start // names))
            name = f"{whole.name} {1 + start // names}" if len(whole.classes) > names else whole.name
            classes = whole.classes[start : start + names]
            found.append(replace(part, name=name, classes=classes, labels=part.labels - start))
    return found


def draw_photos(sets: Sequence[PhotoSet], photos: int, seed: int) -> list[PhotoSet]:
    """A random part of every set, in proportion to its size."""
    rng, total = np.random.default_rng(seed), sum(len(s.labels) for s in sets)
    share = min(1.0, photos / total)
    return [s.take(np.sort(rng.permutation(len(s.labels))[: round(share * len(s.labels))])) for s in sets]


def run_demo(
    photos: Sequence[PhotoSet],
    *,
    seed: int = 0,
    methods: Sequence[str] = METHODS,
    backbone: Backbone | None = None,
    progress: Callable[[str, int], None] = lambda what, photos: None,
) -> DemoResult:
    """Run the methods on view features of photos; `seed` draws the bootstrap resamples."""
    backbone = backbone or load("mini")
    parsed = [parse_method(name) for name in methods]
    outcomes: list[DemoOutcome] = []
    alpha: dict[str, float] = {}
    for photo_set in photos:
        with warnings.catch_warnings():  # the page names these words
            warnings.simplefilter("ignore", UntrainedWordWarning)
            task = Task(backbone, photo_set.classes)
        alpha[photo_set.name] = task.alpha
        outcomes += _run_set(photo_set, task, parsed, progress)
    progress("bootstrap intervals", 0)
    together = {}
    for method in map(str, parsed):
        own = [outcome for outcome in outcomes if outcome.method == method]
        prediction = np.concatenate([outcome.prediction for outcome in own])
        scored = pool([outcome.scored for outcome in own])
        together[method] = DemoOutcome(dataset=POOLED, method=method, prediction=prediction, scored=scored)
    outcomes += together.values()
    floor, high = (100 * ece for ece in noise_floor(together[str(parsed[0])].scored.confidence, seed))
    draws = {"seed": seed, "resamples": 1000}
    sentences, selective = _claims(together, draws) if set(METHODS) <= set(together) else ((), ())
    untrained = getattr(backbone.tokenizer, "untrained_words", lambda names: ())
    return DemoResult(
        rows=[outcome.row(seed, resamples=500) for outcome in outcomes],
        outcomes=outcomes,
        sentences=sentences,
        selective=selective,
        model=backbone.name,
        weights_hash=backbone.weights_hash,
        alpha=alpha,
        untrained=tuple(dict.fromkeys(word for s in photos for word in untrained(list(s.classes)))),
        noise_floor=floor,
        noise_high=high,
    )


def show_photos(
    backbone: Backbone,
    methods: Sequence[str] = ("zeroshot", "tpt", "tpt+cots"),
    progress: Callable[[str, int], None] = lambda what, photos: None,
) -> list[Shown]:
    """The photos that ship with cots, with each method's answer among `NAMES`."""
    folder = sample_photos()
    paths = [folder / name for name in SHOWN]
    encoder = PhotoEncoder(backbone, ViewSettings.from_preprocess(backbone.preprocess))

    def read(path: Path) -> Photo:
        progress(path.stem, 0)
        return encoder.read(path, seed=0)

    photos = list(encoder.encode(map(read, paths)))
    predictions = begin_predictions(Pipeline(Task(backbone, NAMES), methods), photos)()
    shown = []
    for i, path in enumerate(paths):
        answers = {str(method): (own[i].label or "", own[i].confidence) for method, own in predictions.items()}
        shown.append(Shown(file=path, shows=SHOWN[path.name], names=NAMES, answers=answers))
    return shown


def _claims(outcomes: dict[str, DemoOutcome], draws: dict[str, int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    zero, tuned, calibrated = (outcomes[method].scored for method in ("zeroshot", "tpt", "tpt+cots"))
    changed = int((outcomes["tpt"].prediction != outcomes["tpt+cots"].prediction).sum())
    confidence = claims.confidence_claim(zero, tuned, calibrated, changed, **draws)
    selective = (claim(tuned, calibrated, **draws) for claim in (claims.trust_claim, claims.coverage_claim))
    return (confidence, claims.accuracy_claim(zero, tuned, **draws)), tuple(selective)


def _run_set(
    photo_set: PhotoSet, task: Task, methods: Sequence[Method], progress: Callable[[str, int], None]
) -> list[DemoOutcome]:
    pipeline = Pipeline(task, methods)
    size = max(LEAST, min(MOST, AT_ONCE // len(task.classes)))

    def run(start: int) -> dict[Method, tuple[np.ndarray, ...]]:
        outcomes = pipeline.run(photo_set.features[start : start + size].float())
        names = ("probabilities", "prediction", "confidence")
        return {m: tuple(getattr(o.calibrated, name).cpu().numpy() for name in names) for m, o in outcomes.items()}

    starts, parts = range(0, len(photo_set.labels), size), []
    task.pull_back(torch.zeros_like(task.text_features)[None])  # prepared once, before the threads need it
    with one_thread_each(task.device.type == "cpu") as pool:
        for start, found in zip(starts, pool.map(run, starts), strict=True):
            parts.append(found)
            progress(photo_set.name, len(photo_set.labels[start : start + size]))
    outcomes = []
    for method in methods:
        columns = zip(*(part[method] for part in parts), strict=True)
        probabilities, prediction, confidence = map(np.concatenate, columns)
        scored = score_predictions(probabilities, prediction, confidence, photo_set.labels, ("accuracy", "ece", "nll"))
        outcomes.append(DemoOutcome(dataset=photo_set.name, method=str(method), prediction=prediction, scored=scored))
    return outcomes
