"""The demo, offline: gain and confidence of TPT and CoTS on photos of classes that `mini` knows and does not know.

The photos ship as view features of `mini`; text side, adapters, calibrators and metrics run live. A part of the photos
plays the labelled ones. The page shows three photos of `examples/photos` with their predictions.
"""

import json
import math
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
from .adaptation import Pipeline
from .backbones import Backbone, load
from .data import sample_photos
from .evaluate import Acted, Scored, act, claims, pool, score_predictions
from .methods import Method, headline_methods, parse_method
from .metrics import noise_floor
from .photos import Photo, PhotoEncoder, begin_predictions
from .prompts import Task
from .views import ViewSettings

METHODS = ("zeroshot", "tpt", "tpt+sals", "tpt+cots", "tpt+ecots")
TITLES = {"zeroshot": "zero-shot", "tpt": "TPT", "tpt+cots": "CoTS", "tpt+ecots": "E-CoTS"}
ACTING = tuple(TITLES)  # methods for which labels are used
RESAMPLES = 500  # of a choice of thresholds
ALL_METHODS = tuple(dict.fromkeys((*METHODS, *headline_methods())))
KNOWN, UNKNOWN = "known classes", "unknown classes"
QUICK = 100  # photos with --quick
LABELS, SHARE = 300, 0.6  # labelled photos of each kind, and their largest share
RISK, CERTAINTY = 0.05, 0.95  # what the labels are asked to promise
ALL_TEST_PHOTOS = (
    "On all 3,145 test photos, with the full class lists, TPT gains +0.96 points [0.51, 1.44] of accuracy and is "
    "93.6% sure, 92.3% right (docs/results.md)."
)
LEAST, MOST, AT_ONCE = 8, 32, 400  # photos between two moves of the progress bar, and their names
SHOWN = {"cat.jpg": "a tabby cat", "coffee.jpg": "a cup of espresso", "rocket.jpg": "a rocket on its launch pad"}
NAMES = (
    "tabby cat", "tiger cat", "Egyptian cat", "lynx", "golden retriever", "espresso", "coffee mug", "cup", "soup bowl",
    "teapot", "missile", "space shuttle", "lighthouse", "volcano", "sports car", "daisy",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PhotoSet:
    """View features of one dataset's photos, `(n, V, D)`, with labels and class names.

    known: whether mini was trained on other photos of these classes.
    """

    name: str
    classes: tuple[str, ...]
    labels: np.ndarray
    features: Tensor = field(repr=False)
    known: bool = False

    @property
    def kind(self) -> str:
        return KNOWN if self.known else UNKNOWN

    def take(self, rows: np.ndarray) -> Self:
        """Only the photos in `rows`."""
        return replace(self, labels=self.labels[rows], features=self.features[torch.as_tensor(rows)])


@dataclass(frozen=True, kw_only=True)
class DemoOutcome:
    """Predictions and figures of one method on a set of photos, or on all sets of a kind."""

    dataset: str
    kind: str
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
class Kind:
    """All photos of known or unknown classes: outcomes by method, sentences about them, and what labels buy.

    acted: by method. labels, used: what labels buy for CoTS, and for all methods. noise_floor: the mean ECE of a
    calibrated model.
    """

    name: str
    datasets: tuple[str, ...]
    outcomes: dict[str, DemoOutcome] = field(repr=False)
    sentences: tuple[str, ...]
    acted: dict[str, Acted]
    labels: str
    used: str
    noise_floor: float
    noise_high: float

    def __len__(self) -> int:
        return len(next(iter(self.outcomes.values())).scored)


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """The demo's rows, the outcomes and sentences behind them, and the model."""

    rows: list[dict[str, Any]]
    kinds: tuple[Kind, ...]
    model: str
    weights_hash: str
    alpha: dict[str, float]
    untrained: tuple[str, ...]
    shown: list[Shown] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(map(len, self.kinds))

    def row(self, method: str, dataset: str) -> dict[str, Any]:
        """The figures of a method on a dataset, or on all photos of a kind."""
        return next(r for r in self.rows if r["method"] == method and r["dataset"] == dataset)

    def as_json(self) -> str:
        floors = {}
        for kind in self.kinds:
            floors[kind.name] = {"mean": round(kind.noise_floor, 4), "95%": round(kind.noise_high, 4)}
        acting = []
        for kind in self.kinds:
            for method, acted in kind.acted.items():
                acting.append({"kind": kind.name, "method": method, **acted.as_dict()})
        data = {
            "model": self.model,
            "weights_hash": self.weights_hash,
            "alpha": {name: round(value, 4) for name, value in self.alpha.items()},
            "ece_of_perfect_calibration": floors,
            "summary": {kind.name: " ".join(kind.sentences) for kind in self.kinds},
            "labels": {kind.name: f"{kind.labels} {kind.used}".strip() for kind in self.kinds},
            "rows": [{k: v for k, v in row.items() if k != "intervals"} for row in self.rows],
            "intervals": [
                {"dataset": row["dataset"], "method": row["method"], **row["intervals"]} for row in self.rows
            ],
            "acting": acting,
        }
        return json.dumps(data, indent=2)


def read_photos(file: Path | None = None) -> list[PhotoSet]:
    """The photo sets that are shipped with the package, known classes first."""
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
            known=one["known"],
        )
        for one in json.loads(metadata["sets"])
    ]


def short_lists(sets: Sequence[PhotoSet], names: int = 50) -> list[PhotoSet]:
    """Split sets with longer lists of names evenly, because the time of a method grows with the number of names."""
    found = []
    for whole in sets:
        parts = math.ceil(len(whole.classes) / names)
        size = math.ceil(len(whole.classes) / parts)
        for i in range(parts):
            part = whole.take(np.flatnonzero(whole.labels // size == i))
            name = f"{whole.name} {i + 1}" if parts > 1 else whole.name
            classes = whole.classes[i * size : (i + 1) * size]
            found.append(replace(part, name=name, classes=classes, labels=part.labels - i * size))
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
    kinds = []
    for name in (KNOWN, UNKNOWN):
        own = [outcome for outcome in outcomes if outcome.kind == name]
        if own:
            kinds.append(_kind(name, own, {"seed": seed, "resamples": 1000}))
            outcomes += kinds[-1].outcomes.values()
    untrained = getattr(backbone.tokenizer, "untrained_words", lambda names: ())
    return DemoResult(
        rows=[outcome.row(seed, resamples=500) for outcome in outcomes],
        kinds=tuple(kinds),
        model=backbone.name,
        weights_hash=backbone.weights_hash,
        alpha=alpha,
        untrained=tuple(dict.fromkeys(word for s in photos for word in untrained(list(s.classes)))),
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


def labelled_part(n: int, seed: int = 0) -> np.ndarray:
    """Which of n photos play the labelled ones: a random 300, at most 60%."""
    labels = min(LABELS, round(SHARE * n))
    labelled = np.zeros(n, dtype=bool)
    labelled[np.random.default_rng(seed).permutation(n)[:labels]] = True
    return labelled


def _kind(name: str, outcomes: Sequence[DemoOutcome], draws: dict[str, int]) -> Kind:
    """Everything about the photos of one kind, from the outcomes on its sets."""
    pooled = {}
    for method in dict.fromkeys(outcome.method for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.method == method]
        prediction = np.concatenate([outcome.prediction for outcome in own])
        scored = pool([outcome.scored for outcome in own])
        pooled[method] = DemoOutcome(dataset=name, kind=name, method=method, prediction=prediction, scored=scored)
    first = next(iter(pooled.values())).scored
    low, high = noise_floor(first.confidence, draws["seed"])
    labelled = labelled_part(len(first))
    acted, sentences, labels, used = {}, (), "", ""
    if set(METHODS) <= set(pooled):
        for method in ACTING:
            acted[method] = act(pooled[method].scored, labelled, RISK, CERTAINTY)
        sentences = _sentences(pooled, draws)
        labels = claims.labels_claim(name, pooled["tpt+cots"].scored, acted["tpt+cots"], labelled)
        by_title = {title: pooled[method].scored for method, title in TITLES.items()}
        acted_by_title = {title: acted[method] for method, title in TITLES.items()}
        used = claims.used_claim(by_title, acted_by_title, labelled, seed=draws["seed"], resamples=RESAMPLES)
    datasets = tuple(dict.fromkeys(outcome.dataset for outcome in outcomes))
    return Kind(
        name=name, datasets=datasets, outcomes=pooled, sentences=sentences, acted=acted, labels=labels,
        used=used, noise_floor=100 * low, noise_high=100 * high,
    )  # fmt: skip


def _sentences(pooled: dict[str, DemoOutcome], draws: dict[str, int]) -> tuple[str, ...]:
    """Zero-shot, TPT, CoTS and E-CoTS on the same photos, one claim each."""
    zero, tuned, calibrated, mixed = (pooled[method].scored for method in ACTING)
    changed = int((pooled["tpt"].prediction != pooled["tpt+cots"].prediction).sum())
    return (
        claims.gap_claim("Zero-shot", zero, **draws),
        claims.accuracy_claim("TPT", zero, tuned, "zero-shot", **draws),
        claims.gap_claim("TPT", tuned, **draws),
        claims.confidence_claim(zero, tuned, calibrated, changed, **draws),
        claims.remaining_claim(zero, calibrated, **draws),
        claims.accuracy_claim("E-CoTS", tuned, mixed, "TPT", **draws),
    )


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
        about = {"dataset": photo_set.name, "kind": photo_set.kind, "method": str(method)}
        outcomes.append(DemoOutcome(**about, prediction=prediction, scored=scored))
    return outcomes
