"""`cots check --unlabelled`: whether the signals of a classifier change over a stream of photos."""

from __future__ import annotations

import hashlib
import os
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._errors import InputError
from ._shared import Bars, find_images, option_words

if TYPE_CHECKING:
    from ..classifier import Classifier
    from ..conformal import Policy
    from ..watch import Watch

SAVE_EVERY = 100  # photos
_NOT_FOUND = (
    "photos are read in random order, so nothing can change among them. Pass --policy, whose photos are compared with "
    "these; or --in-order, if their names are times."
)


def watch_photos(
    photos: Path, classes: str | None, policy: Path | None, model: str, method: str | None, state: Path | None,
    in_order: bool, given: dict[str, Any],
) -> None:  # fmt: skip
    """Print the signals of the classifier on unlabelled photos, and its alarms.

    in_order: of their names. Otherwise the photos of one call are read in random order, since names often begin with a
    class, and a stream sorted by class looks like one that changes.
    """
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
    seen = set(watch.note.split())
    rest = [file for file in files if _key(file) not in seen]
    if len(rest) < len(files):
        known = len(files) - len(rest)
        print(f"cots: {state} has {known:,} of these {len(files):,} photos already.", file=sys.stderr)
    if not in_order:
        random.Random(0).shuffle(rest)
        if not watch.seen().reference and state is None:
            print(f"cots: {_NOT_FOUND}", file=sys.stderr)
    with Bars() as bars:
        done = len(files) - len(rest)
        for file, prediction in zip(rest, classifier.stream(rest), strict=True):
            if prediction.error is not None:
                print(f"cots: {file}: {prediction.error}", file=sys.stderr)
            watch.add(prediction, str(file))
            seen.add(_key(file))
            done += 1
            bars.show("photos", done, len(files))
            if state is not None and (done % SAVE_EVERY == 0 or done == len(files)):
                watch.note = " ".join(seen)
                watch.save(state)
    print("\n".join(lines(watch.seen())))


def _key(file: Path) -> str:
    """By which a photo is known again. Copies are not exchangeable with other photos, so none is counted twice."""
    size = modified = 0
    if file.exists():
        found = file.stat()
        size, modified = found.st_size, found.st_mtime_ns
    return hashlib.sha256(repr((os.path.abspath(file), size, modified)).encode()).hexdigest()[:12]


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
