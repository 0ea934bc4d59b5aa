"""Predictions kept in a file while a long command runs: nothing is lost when it is stopped, or computed twice."""

import base64
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ._errors import InputError
from .adapters import ADAPTERS
from .calibrators import CALIBRATORS
from .classifier import Classifier
from .conformal import Setup
from .methods import Prediction, parse_method

HEAD = "cots predictions 1"

Source = Path | bytes


@dataclass(frozen=True, kw_only=True)
class Kept:
    """One line of the file: the photo's name when it was written, its key, and its prediction."""

    photo: str
    key: str
    prediction: Prediction


class PredictionFile:
    """Predictions of photos, one line each, appended as soon as they are known.

        kept = PredictionFile("policy.predictions")
        predictions = kept.complete(classifier, names, sources)

    A line has a checksum and a key, the hash of what decides the prediction: classifier, version of cots and content of
    the photo. A line that is cut off, damaged or of another classifier or photo is not used. Photos that cannot be read
    are not kept. The file can be deleted at any time.
    """

    def __init__(self, file: str | Path) -> None:
        self.file = Path(file)

    def complete(
        self,
        classifier: Classifier,
        names: Sequence[str],
        sources: Callable[[int], Source],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[Prediction]:
        """The prediction of each photo: from the file, or from the classifier, which must not abstain.

        names: of the photos. sources: the path or the bytes of the i-th. Online methods, whose predictions depend on
        the photos before, are computed without the file.
        """
        deciding = (classifier.policy, classifier.ranks, classifier.abstain, classifier.none_of_these or None)
        if any(one is not None for one in deciding):
            raise InputError("Kept predictions are those of a classifier that does not abstain; decide on them later.")
        n = len(names)
        classifier.task.expect(n)
        if ADAPTERS.info(classifier.method.adapter).online:
            found, keys = {}, [""] * n
        else:
            found = {kept.key: kept.prediction for kept in self.read(classifier.setup)}
            keys = [photo_key(classifier.setup, sources(i)) for i in range(n)]
        missing = [i for i, key in enumerate(keys) if key not in found]
        done = n - len(missing)
        progress(done, n)
        new: dict[int, Prediction] = {}
        for i, prediction in zip(missing, classifier.stream(map(sources, missing)), strict=True):
            new[i] = prediction
            if keys[i] and prediction.error is None:
                self._append(Kept(photo=names[i], key=keys[i], prediction=prediction), classifier.setup)
            done += 1
            progress(done, n)
        return [new[i] if i in new else found[keys[i]] for i in range(n)]

    def read(self, setup: Setup) -> Iterator[Kept]:
        """The undamaged lines that have the classes of `setup`; their keys say whose they are."""
        if not self.file.exists():
            return
        with self.file.open("rb") as lines:
            if lines.readline().rstrip() != HEAD.encode():
                raise InputError(f"{self.file} was not written by cots check. Move it, or choose another --out.")
            for line in lines:
                if kept := _decode(line, setup.classes):
                    yield kept

    def _append(self, kept: Kept, setup: Setup) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("ab+") as file:
            size = file.seek(0, 2)
            start = b""
            if not size:
                start = HEAD.encode() + b"\n"
            else:
                file.seek(-1, 2)
                if file.read(1) != b"\n":  # the last line was cut off
                    start = b"\n"
            file.write(start + _encode(kept))


def photo_key(setup: Setup, source: Source) -> str:
    """The hash of all that decides the prediction of a photo; empty if the photo cannot be read."""
    try:
        content = source.read_bytes() if isinstance(source, Path) else source
    except OSError:
        return ""
    return hashlib.sha256(_decides(setup) + hashlib.sha256(content).digest()).hexdigest()


def content_hash(source: Source) -> str:
    """By which a policy knows its own photos; empty if the photo cannot be read."""
    try:
        content = source.read_bytes() if isinstance(source, Path) else source
    except OSError:
        return ""
    return hashlib.sha256(content).hexdigest()[:12]


def _decides(setup: Setup) -> bytes:
    method = parse_method(setup.method)
    plugins = [ADAPTERS.info(method.adapter).plugin, CALIBRATORS.info(method.calibrator).plugin]
    return json.dumps([version("cots"), plugins, asdict(setup)], sort_keys=True).encode()


def _encode(kept: Kept) -> bytes:
    fields = msgspec.to_builtins(kept, enc_hook=_of_array)
    del fields["prediction"]["classes"]
    text = json.dumps(fields).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _decode(line: bytes, classes: tuple[str, ...]) -> Kept | None:
    """The content of a line; None if it is damaged, or has other classes."""
    seal, _, text = line.rstrip(b"\n").partition(b" ")
    if seal != b"%08x" % zlib.crc32(text):
        return None
    try:
        fields: dict[str, Any] = json.loads(text)
        fields["prediction"]["classes"] = classes
        kept = msgspec.convert(fields, Kept, dec_hook=_to_array)
    except (ValueError, KeyError, TypeError, msgspec.ValidationError):  # of another version
        return None
    return kept if len(kept.prediction.probabilities) == len(classes) else None


def _of_array(value: Any) -> str:
    return base64.b64encode(np.asarray(value, dtype="<f4").tobytes()).decode()


def _to_array(kind: type, value: Any) -> np.ndarray:
    return np.frombuffer(base64.b64decode(value), dtype="<f4").copy()
