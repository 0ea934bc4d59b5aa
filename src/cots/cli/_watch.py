"""`cots check --unlabelled`: whether the signals of a classifier change over a stream of photos."""

from __future__ import annotations

import hashlib
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
    with Bars() as bars:
        for done, (file, prediction) in enumerate(zip(files, classifier.stream(files), strict=True), start=1):
            if prediction.error is not None:
                print(f"cots: {file}: {prediction.error}", file=sys.stderr)
            watch.add(prediction, str(file))
            bars.show("photos", done, len(files))
            if state is not None and (done % SAVE_EVERY == 0 or done == len(files)):
                watch.save(state)
    print("\n".join(lines(watch.seen())))


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
