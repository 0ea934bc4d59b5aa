"""`cots check --ask`: draw photos to label. `cots check ask.csv`: what the labels say."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._errors import InputError
from ._shared import Bars, command_line, find_images, option_words

if TYPE_CHECKING:
    from ..classifier import Classifier
    from ..evaluate import Asked, Labels
    from ..methods import Prediction

TABLE, POLICY = Path("ask.csv"), Path("policy.json")
WORTH = 100  # labels; with fewer, asking about unsure photos gives wider intervals than asking uniformly


def draw_photos(
    photos: Path, settings: dict[str, Any], labels: int, out: Path, kept: str, uniform: bool, format: str | None
) -> None:
    """Classify a folder, draw photos to label, and write the table, the page and the tasks for people.

    settings: of the classifier. kept: the ending of the file that keeps its predictions, for a second run.
    """
    if "classes" not in settings:
        raise InputError("--ask needs the class names: --classes.")
    files = find_images([photos])
    _check_table(out, labels, len(files))
    from .._files import write_whole
    from ..classifier import Classifier
    from ..conformal import draw
    from ..evaluate import Asked, ask_page
    from ..kept import content_hash

    with option_words():
        classifier = Classifier(**settings)
    files, predictions = _classify(classifier, files, out.with_suffix(kept))
    if labels > len(files):
        raise InputError(f"--ask {labels} is more than the {len(files)} photos that could be read. Ask for fewer.")
    confidence = [prediction.confidence for prediction in predictions]
    drawn = draw(confidence, labels, uniform=uniform, seed=classifier.seed)
    sources = [files[at] for at in drawn.photos]
    paths = [os.path.relpath(file, out.parent).replace(os.sep, "/") for file in sources]
    asked = Asked(
        setup=classifier.setup,
        draw=drawn,
        paths=tuple(paths),
        predictions=tuple(predictions[at] for at in drawn.photos),
        hashes=tuple(map(content_hash, sources)),
    )
    page = ask_page(asked, sources, out.name, _next_command(asked, out))  # refuses a photo that can no longer be read
    pool = asked.save(out)
    write_whole(out.with_suffix(".html"), page.encode())
    written = [out, out.with_suffix(".html"), pool]
    if out.with_suffix(kept).exists():  # not with online methods
        written.append(out.with_suffix(kept))
    if format is not None:
        written += _write_tasks(asked, sources, out)
    _tell(asked, out, written)


def _check_table(out: Path, labels: int, files: int) -> None:
    """Refuse what cannot be asked, before the work."""
    from ..evaluate import count_labels, is_asked

    if out.suffix != ".csv":
        raise InputError(f"--out {out} must end in .csv.")
    if labels > files:
        raise InputError(f"--ask {labels} is more than the {files} photos. Ask for fewer, or label them all.")
    if not out.exists():
        return
    if not is_asked(out):
        raise InputError(f"--out {out} would overwrite a file that cots check --ask did not write. Choose another.")
    if count_labels(out):
        raise InputError(f"--out {out} would overwrite its labels. Choose another, or delete that file.")


def _classify(classifier: Classifier, files: Sequence[Path], kept: Path) -> tuple[list[Path], list[Prediction]]:
    """The photos that can be read, with their predictions."""
    from ..kept import PredictionFile

    readable, predictions = [], []
    with Bars() as bars:
        found = PredictionFile(kept).complete(
            classifier,
            [str(file) for file in files],
            lambda at: files[at],
            lambda done, total: bars.show("photos", done, total),
        )
    for file, prediction in zip(files, found, strict=True):
        if prediction.error is None:
            readable.append(file)
            predictions.append(prediction)
        else:
            print(f"cots: {file}: {prediction.error}", file=sys.stderr)
    return readable, predictions


def _next_command(asked: Asked, out: Path) -> str:
    """What to run once the photos are labelled; it writes a policy if enough of them were drawn uniformly."""
    from ..evaluate import ENOUGH

    policy = ("-o", POLICY) if asked.draw.heads.sum() >= ENOUGH else ()
    return command_line("check", out, *policy)


def _tell(asked: Asked, out: Path, written: Sequence[Path]) -> None:
    from ..evaluate import ENOUGH

    drawn = asked.draw
    uniform = int(drawn.heads.sum())
    how = "each of the remaining photos with the same probability"
    if uniform < len(asked):
        how = f"{uniform} uniformly, the others more often the less sure the prediction is"
    print(f"Drew {len(asked)} of {len(drawn.confidence):,} photos: {how}.")
    print(f"Written: {', '.join(map(str, written))}")
    print(f"Open {written[1]} to label them, save {out.name}, then run: {_next_command(asked, out)}")
    if uniform < ENOUGH:
        remedy = f"--ask {ENOUGH} --uniform" if uniform < len(asked) else f"--ask {ENOUGH} or more"
        print(f"A policy takes {ENOUGH} labels of uniformly drawn photos, and this draw has {uniform}: use {remedy}.")
    if len(asked) < WORTH and uniform < len(asked):
        print(f"With fewer than {WORTH} labels, --uniform gives narrower intervals.")


def _write_tasks(asked: Asked, sources: Sequence[Path], out: Path) -> list[Path]:
    from ..evaluate import NOBODY, NONE
    from ..exchange import label_studio_config, label_studio_task

    tasks = []
    for path, source, prediction in zip(asked.paths, sources, asked.predictions, strict=True):
        tasks.append(label_studio_task(source, prediction, path=path, table=str(out.absolute())))
    file, config = out.with_suffix(".json"), out.with_suffix(".xml")
    file.write_text(json.dumps(tasks, indent=1) + "\n", encoding="utf-8")
    config.write_text(label_studio_config((*asked.setup.classes, NONE, NOBODY)), encoding="utf-8")
    return [file, config]


def read_labels(file: Path) -> Labels | None:
    """The labels in a table that --ask wrote, or in an export of Label Studio; None for another file."""
    from ..evaluate import Asked, is_asked, read_export, read_table

    if file.suffix.lower() == ".json":
        return read_export(file)
    return read_table(file, Asked.load(file)) if is_asked(file) else None


def report(labels: Labels) -> bool:
    """Print what the labels say about the folder; whether they are enough for a policy."""
    from ..evaluate import ENOUGH

    print("\n".join(labels.lines()))
    if not labels.enough:
        remedy = f"Draw them with --ask {ENOUGH} --uniform."
        if labels.missing is not None:
            remedy = f"Label the next {labels.missing} photos of the table."
        print(
            f"cots: no policy: it takes {ENOUGH} labels of uniformly drawn photos, and {len(labels.uniform()[1])} of "
            f"these serve. {remedy}",
            file=sys.stderr,
        )
    elif len(labels.marks) < len(labels.asked):
        print("The policy holds if you did not stop because of what the labels said.")
    return labels.enough
