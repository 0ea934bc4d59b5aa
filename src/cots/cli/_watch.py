"""`cots check --unlabelled`: whether the signals of a classifier change over a stream of photos."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._errors import InputError
from ._shared import Bars, find_images, option_words

if TYPE_CHECKING:
    from ..classifier import Classifier
    from ..conformal import Policy
    from ..watch import Watch

SAVE_EVERY = 100  # photos


def watch_photos(
    photos: Path, classes: str | None, policy: Path | None, model: str, method: str | None, state: Path | None,
    given: dict[str, Any],
) -> None:  # fmt: skip
    """Print the signals of the classifier on unlabelled photos, in the order of their names, and its alarms."""
    from ..classifier import Classifier
    from ..conformal import Policy
    from ..watch import check_frozen, lines

    rules = None if policy is None else Policy.load(policy)
    if rules is not None:
        method, given = method or rules.method, {"template": rules.template, **given, "policy": rules}
    method = method or "tpt+ecots"
    check_frozen(method)
    if rules is None and classes is None:
        raise InputError("--unlabelled needs the class names: --classes, or --policy.")
    files = find_images([photos])
    names = rules.classes if rules and classes is None else classes or ""
    with option_words():
        classifier = Classifier(model, names, method, **given)
    watch = _open_watch(classifier, rules, state)
    seen = _known_start(watch.note, files)
    if seen.count:
        print(f"cots: {state} has the first {seen.count:,} of these {len(files):,} photos already.", file=sys.stderr)
    rest = files[seen.count :]
    with Bars() as bars:
        for file, prediction in zip(rest, classifier.stream(rest), strict=True):
            if prediction.error is not None:
                print(f"cots: {file}: {prediction.error}", file=sys.stderr)
            watch.add(prediction, str(file))
            seen.add(file)
            bars.show("photos", seen.count, len(files))
            if state is not None and (seen.count % SAVE_EVERY == 0 or seen.count == len(files)):
                watch.note = seen.note
                watch.save(state)
    print("\n".join(lines(watch.seen())))


class _SeenFiles:
    """How many files of a list were watched, and a digest of them, so that no photo is counted twice.

    Copies of a photo are not exchangeable with the others, so they would void the promise.
    """

    def __init__(self) -> None:
        self.count, self._digest = 0, hashlib.sha256()

    def add(self, file: Path) -> None:
        size = modified = 0
        if file.exists():
            found = file.stat()
            size, modified = found.st_size, found.st_mtime_ns
        self.count += 1
        self._digest.update(repr((os.path.abspath(file), size, modified)).encode())

    @property
    def note(self) -> str:
        return f"{self.count} {self._digest.hexdigest()}"


def _known_start(note: str, files: Sequence[Path]) -> _SeenFiles:
    """The first files, if they are those of the last run: one that was stopped, or of a folder that has grown."""
    count, seen = int(note.partition(" ")[0] or 0), _SeenFiles()
    for file in files[:count]:
        seen.add(file)
    return seen if seen.note == note else _SeenFiles()


def _open_watch(classifier: Classifier, policy: Policy | None, state: Path | None) -> Watch:
    """The monitor of an earlier run, from the file `state`, or a new one."""
    from ..watch import NO_REFERENCE, SIGNALS, Watch

    reference = policy.signals if policy else None
    about = repr((classifier.backbone.weights_hash, classifier.task.classes, str(classifier.method), reference))
    digest = hashlib.sha256(about.encode()).hexdigest()[:16]
    if state is not None and state.exists():
        return Watch.load(state, about=digest)
    if policy is not None and reference is None:
        print(f"cots: {NO_REFERENCE}", file=sys.stderr)
    return Watch(tuple(reference or SIGNALS), reference, about=digest)
