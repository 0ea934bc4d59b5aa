"""The door that scripts written for transformers know: `pipeline("zero-shot-image-classification")`."""

import os
from collections.abc import Iterable, Iterator
from typing import Any

from ._errors import InputError, check_one_of
from .backbones import Backbone, load
from .classes import Classes, read_classes
from .classifier import Classifier
from .methods import Prediction
from .prompts import DEFAULT_TEMPLATE

TASKS = ("zero-shot-image-classification",)
_OWN = ("classes", "template", "model", "pretrained", "allow_duplicates")  # arguments of Classifier set here


class ZeroShotPipeline:
    """What `pipeline` returns: call it with a photo, or several, and the candidate labels."""

    def __init__(self, backbone: Backbone, method: str, settings: dict[str, Any]) -> None:
        self.model, self.method, self._settings = backbone, method, settings
        self._last: tuple[Any, Classifier] | None = None

    def __call__(
        self,
        image: Any,
        candidate_labels: Classes,
        *,
        hypothesis_template: str = DEFAULT_TEMPLATE,
        batch_size: int | None = None,
        num_workers: int | None = None,
        timeout: float | None = None,
    ) -> Any:
        """The labels of a photo, best first: [{"score": 0.9, "label": "cat"}, ...]; a list of these for a list.

        batch_size, num_workers and timeout are those of transformers' scripts; cots chooses batches by itself.
        """
        if isinstance(candidate_labels, (str, os.PathLike)):
            labels = read_classes(candidate_labels, where="candidate_labels")
        else:
            labels = tuple(candidate_labels)
        classifier = self._classifier(labels, hypothesis_template)
        if isinstance(image, (list, tuple)):
            return list(self._several(classifier, labels, image))
        if isinstance(image, Iterator):
            return self._several(classifier, labels, image)
        return _scores(classifier(image), labels)

    def __repr__(self) -> str:
        return f"ZeroShotPipeline({self.model.name!r}, method={self.method!r})"

    def _classifier(self, labels: tuple[str, ...], template: str) -> Classifier:
        """A classifier for the labels, kept for the next call with the same ones."""
        key = labels, template
        if self._last is None or self._last[0] != key:
            classifier = Classifier(
                self.model, labels, self.method, template=template, allow_duplicates=True, **self._settings
            )
            self._last = key, classifier
        return self._last[1]

    def _several(
        self, classifier: Classifier, labels: tuple[str, ...], images: Iterable[Any]
    ) -> Iterator[list[dict[str, Any]]]:
        for prediction in classifier.stream(images):
            if prediction.error is not None:
                raise InputError(prediction.error)
            yield _scores(prediction, labels)


def pipeline(
    task: str = TASKS[0], model: str | Backbone | None = None, *, method: str = "tpt+ecots", device: Any = None,
    precision: str = "float32", **settings: Any,
) -> ZeroShotPipeline:  # fmt: skip
    """A classifier that is called as those of `transformers.pipeline`, so that a script changes one import.

        classify = cots.pipeline("zero-shot-image-classification", "openai/clip-vit-base-patch16")
        classify("photo.jpg", candidate_labels=["cat", "dog"])  # [{"score": 0.98, "label": "cat"}, ...]

    - model: a name for `cots.load`, or a Backbone; default: `mini`
    - method, settings: of `cots.Classifier`; the scores are calibrated probabilities
    - device: as in torch, or an index (-1 for the CPU)

    The default of hypothesis_template is "a photo of a {}.", not transformers' "This is a photo of {}.".
    """
    check_one_of("task", task, TASKS)
    for name in _OWN:
        if name in settings:
            raise InputError(f"{name} is not a setting of a pipeline; pass candidate_labels when you call it.")
    if isinstance(device, int):
        device = "cpu" if device < 0 else f"cuda:{device}"
    if not isinstance(model, Backbone):
        model = load("mini" if model is None else model, device=device, precision=precision)
    return ZeroShotPipeline(model, method, settings)


def _scores(prediction: Prediction, labels: tuple[str, ...]) -> list[dict[str, Any]]:
    """Scores from high to low, with the labels as they were given."""
    order = (-prediction.probabilities).argsort(kind="stable").tolist()
    return [{"score": float(prediction.probabilities[k]), "label": labels[k]} for k in order]
