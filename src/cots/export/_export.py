"""export_classifier: a classifier with fixed classes as a folder."""

import contextlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._errors import InputError
from ..adapters import adapt
from ..calibrators import fit_temperature
from ..classifier import Classifier
from ..methods import Prediction
from ..views import ViewSettings, make_views, read_image
from ._check import Agreement, Reference, compare, run_in_batches
from ._folder import Facts, facts_of, metadata_of, write_folder
from ._frozen import FrozenClassifier, exact_temperature
from ._graph import INT8, ONNX, PT2, Program, Session, check_size, require_packages, write_graphs, write_int8
from ._temperature import Distance, match_confidence

COMPARED = FITTED = 100  # photos at most: compared, and fitted on without labels
_SLOW = 10  # photos on which model.pt2 is compared

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The result of `export_classifier`.

    exact: whether the graph computes the classifier's own method. distance: of the confidences from those of the
    classifier. onnx, pt2: of the files from cots. int8: of model_int8.onnx from model.onnx. notes: what does not carry
    over.
    """

    folder: Path
    exact: bool
    temperature: float
    fitted: str
    distance: Distance
    onnx: Agreement
    pt2: Agreement
    int8: Distance | None
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """What `cots export` prints."""
        lines = [f"Temperature {self.temperature:.4g}{self.fitted and ', '}{self.fitted}."]
        lines.append(f"The original and the export {self.distance.line()}.")
        lines += [f"{self.onnx.line(ONNX)}.", f"{self.pt2.line(PT2)}."]
        if self.int8 is not None:
            size = {name: (self.folder / name).stat().st_size / 1e6 for name in (ONNX, INT8)}
            lines.append(f"{INT8}: {size[INT8]:.1f} MB in place of {size[ONNX]:.1f}; int8 changes, {self.int8.line()}.")
        return [*lines, *self.notes]


def export_classifier(
    classifier: Classifier,
    folder: str | Path,
    photos: Sequence[Any],
    *,
    labels: Sequence[int] | None = None,
    int8: bool = False,
    progress: Progress = lambda what, done, total: None,
) -> Exported:
    """Write a classifier with fixed classes to a new folder, as model.onnx and model.pt2 with what others need to use
    them, and check both on real photos.

        cots.export.export_classifier(classifier, "folder", paths)

    `zeroshot`, also with a fixed temperature, is exported as it is, with the temperature and threshold of its policy.
    Any other method becomes zero-shot with one temperature: gradients, views and state are no part of a graph. It is
    fitted on every second photo, so that the mean confidence is the same as the method's or, with `labels` (indices of
    classes), so that their negative log-likelihood is lowest. The other photos, at most 100, show how far the
    confidences are from those of the method.

    - photos: anything that a Classifier takes; unreadable ones are left out with a warning
    - int8: also write model_int8.onnx, and compare it
    - progress: called with what is done, how many of it, and of how many
    """
    require_packages()
    target = _new_folder(Path(folder))
    _refuse(classifier)
    exact = exact_temperature(classifier)
    if labels is not None:
        exact = None
    fit_rows, compare_rows = _rows(len(photos), exact is not None, labels is not None)
    temperature, fitted = 1.0 if exact is None else exact, ""
    if exact is None:
        temperature, fitted = _fit(classifier, photos, labels, fit_rows, progress)
    rows, pixels = _weak_views(classifier, photos, compare_rows)
    reference = Reference.of(pixels, classifier.task, temperature)
    originals = _predict(classifier, [photos[i] for i in rows], progress)
    distance = Distance.between(
        [_best(one) for one in originals], [one.confidence for one in originals], reference.classes,
        reference.confidence,
    )  # fmt: skip
    facts = facts_of(
        classifier, exact=exact is not None, temperature=temperature, fitted=fitted, distance=distance.line()
    )
    notes = _notes(classifier, facts)
    with _in_place_of(target) as unfinished:
        onnx, pt2, change = _write(classifier, facts, reference, unfinished, int8, notes)
    return Exported(
        folder=target, exact=facts.exact, temperature=temperature, fitted=fitted, distance=distance, onnx=onnx, pt2=pt2,
        int8=change, notes=notes,
    )  # fmt: skip


def _write(
    classifier: Classifier, facts: Facts, reference: Reference, folder: Path, int8: bool, notes: tuple[str, ...]
) -> tuple[Agreement, Agreement, Distance | None]:
    """All files, checked."""
    task, settings = classifier.task, _settings(classifier)
    network = FrozenClassifier(task, facts.temperature)
    check_size(network, facts.model)
    write_graphs(network, settings.shape, folder, metadata_of(facts, task.classes, settings))
    session = Session(folder / ONNX)
    onnx = compare(session, reference)
    onnx.require(ONNX)
    pt2 = compare(Program(folder / PT2), reference.first(_SLOW))
    pt2.require(PT2)
    change = None
    if int8:
        write_int8(folder)
        change = _change(session, Session(folder / INT8), reference.pixels)
    write_folder(folder, facts, task.classes, settings, notes)
    if facts.exact and classifier.policy is not None:
        classifier.policy.save(folder / "policy.json")
    return onnx, pt2, change


def _change(before: Session, after: Session, pixels: Tensor) -> Distance:
    """What quantisation changes, one photo at a time: its scales depend on the whole batch."""
    old = run_in_batches(before, pixels, 1)["probabilities"]
    new = run_in_batches(after, pixels, 1)["probabilities"]
    return Distance.between(old.argmax(1), old.max(1), new.argmax(1), new.max(1))


def _refuse(classifier: Classifier) -> None:
    if classifier.mode == "present":
        raise InputError("mode='present' has one probability per class and cannot be exported; use mode='class'.")
    if len(classifier.task.classes) == 1:
        raise InputError("With one class there is no temperature to export; add the classes it could be mistaken for.")
    backbone = classifier.backbone
    if backbone.precision != "float32" or backbone.dtype != torch.float32:
        raise InputError(f"An export computes in float32, and {backbone.name} was loaded otherwise; load it again.")


def _rows(count: int, exact: bool, labelled: bool) -> tuple[list[int], list[int]]:
    """The photos to fit the temperature on, and others to compare on; both at even distances."""
    if exact and count:
        return [], _evenly(range(count), COMPARED)
    if count < 2:
        raise InputError("The temperature and the check need two photos or more; 200 are better.")
    fit = range(0, count, 2)
    return (list(fit) if labelled else _evenly(fit, FITTED)), _evenly(range(1, count, 2), COMPARED)


def _evenly(rows: Sequence[int], most: int) -> list[int]:
    places = np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int)
    return [rows[place] for place in places.tolist()]


def _fit(
    classifier: Classifier, photos: Sequence[Any], labels: Sequence[int] | None, rows: list[int], progress: Progress
) -> tuple[float, str]:
    """The temperature, and how it was fitted, in words."""
    features = []
    kept = []
    for row, view in _read(classifier, photos, rows):
        kept.append(row)
        features.append(classifier.backbone.encode_images(view).cpu())
    if not kept:
        raise InputError("None of the photos could be read.")
    features_N1D = torch.stack(features).to(classifier.backbone.device)
    logits_NK = adapt("zeroshot", features_N1D, classifier.task).logits[:, 0].cpu()
    if labels is not None:
        return fit_temperature(logits_NK, [labels[row] for row in kept]), f"fitted on {len(kept)} labelled photos"
    originals = _predict(classifier, [photos[row] for row in kept], progress)
    mean = float(np.mean([one.confidence for one in originals]))
    words = f"with which {len(kept)} unlabelled photos have the mean confidence of {classifier.method}, {mean:.1%}"
    return match_confidence(logits_NK, mean), words


def _weak_views(classifier: Classifier, photos: Sequence[Any], rows: list[int]) -> tuple[list[int], Tensor]:
    """The plain views (N,3,H,W) of those photos that can be read."""
    kept = []
    views = []
    for row, view in _read(classifier, photos, rows):
        kept.append(row)
        views.append(view)
    if not views:
        raise InputError("None of the photos to compare on could be read.")
    return kept, torch.cat(views)


def _read(classifier: Classifier, photos: Sequence[Any], rows: list[int]) -> Iterator[tuple[int, Tensor]]:
    settings = _settings(classifier)
    for row in rows:
        try:
            image = read_image(photos[row], max_pixels=classifier.max_pixels)
        except InputError as error:
            warnings.warn(str(error), stacklevel=2)
            continue
        yield row, make_views(image, settings, 0)


def _settings(classifier: Classifier) -> ViewSettings:
    return ViewSettings.from_preprocess(classifier.backbone.preprocess, n=1)


def _predict(classifier: Classifier, photos: list[Any], progress: Progress) -> list[Prediction]:
    """The classifier's own predictions."""
    predictions = []
    for prediction in classifier.stream(photos):
        predictions.append(prediction)
        progress(str(classifier.method), len(predictions), len(photos))
    return predictions


def _best(prediction: Prediction) -> int:
    """The index of the class; of the likeliest one for a prediction that abstains."""
    return prediction.classes.index(prediction.top(1)[0][0])


def _notes(classifier: Classifier, facts: Facts) -> tuple[str, ...]:
    """What does not carry over, and how far the confidences are from the original."""
    notes = []
    method = f"zeroshot+ts(temperature={facts.temperature!r})"
    if not facts.exact:
        lead = f"{facts.method} cannot be exported: the graph is zero-shot with one temperature"
        if classifier.method.adapter == "zeroshot":
            lead = f"The graph has the fitted temperature in place of that of {facts.method}"
        notes.append(f"{lead}, in cots {method}. Confidences of the two {facts.distance}.")
    policy = classifier.policy
    if policy is not None and not facts.exact:
        notes.append(
            f"The threshold and sets of the policy hold for {policy.method} alone, so they were left out. For new "
            f"ones: cots check LABELLED --method '{method}', with photos that the temperature was not fitted on, and "
            "export that policy. The threshold of in_list is kept: it is the same score."
        )
    elif policy is not None:
        kept = "The graph has the policy's temperature: apply no other."
        if policy.sets is not None or policy.ranks is not None:
            kept += " Sets and ranks are in policy.json; cots applies them, the graph does not."
        notes.append(kept)
    notes.append("Photos of one colour, noise and tiny images have no check of their own here, as they have in cots.")
    return tuple(notes)


def _new_folder(folder: Path) -> Path:
    """Refuse a folder that has files, which an export would mix with its own."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not empty. Remove it, or export to another folder.")
    return folder


@contextlib.contextmanager
def _in_place_of(target: Path) -> Iterator[Path]:
    """A temporary folder that becomes `target` if all goes well, and vanishes otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=target.parent, prefix=".export-"))
    try:
        yield unfinished
        unfinished.chmod(0o755)
        os.replace(unfinished, target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
