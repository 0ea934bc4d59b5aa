"""Classifier: an image in, a class and a confidence out."""

import hashlib
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Protocol, overload

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ._errors import InputError, check_fraction, check_one_of, check_unused, whole_number
from .accelerate import accelerator
from .adaptation import Pipeline
from .adapters import ADAPTERS
from .backbones import Backbone, load
from .calibrators import chosen_solver
from .classes import Classes, check_distinct, is_known_list
from .conformal import Policy, Setup
from .methods import Prediction, check_attributes, parse_method
from .novelty import NONE_BELOW, threshold
from .photos import EncodedPhoto, Photo, PhotoEncoder, batches, begin_predictions, encoder_for
from .presence import UNKNOWN_LEVEL, Presence, PresencePolicy, read_scores
from .prompts import DEFAULT_TEMPLATE, ONE_CLASS, Attributes, Descriptions, Task, Template, check_prompts
from .rounds import Views, chosen_views
from .taxonomy import SURE, RankRule, TaxonomyFile
from .views import MAX_PIXELS, RENDERERS, ViewSettings

_ALLOW = ", or pass allow_duplicates=True"


class _File(Protocol):
    def read(self, size: int = ..., /) -> Any: ...


PhotoSource = str | os.PathLike[str] | bytes | bytearray | memoryview | _File | Image.Image | np.ndarray | Tensor


class Classifier:
    """Zero-shot classification with test-time adaptation and a calibrated confidence.

        classifier = cots.Classifier("ViT-B-16/openai", classes=["tabby cat", "golden retriever"])
        prediction = classifier("photo.jpg")
        prediction.label, prediction.confidence

    One image gives one Prediction, and an unreadable one raises; a list gives a list, in which an unreadable image is a
    Prediction with its `error`. An image is a path, an open file, encoded bytes, a PIL image or an array.

    Results depend only on the image, the settings and `seed`, not on the order of images; other images of a batch
    change only the rounding (up to 2e-6). Online methods such as `tda` are the exception: their `state` is carried from
    call to call.

    - model, pretrained: a name for `cots.load`, or a Backbone; default: the small embedded `mini`
    - classes: names, a file of names, or a known list such as "imagenet", whose duplicates are kept
      (`cots.classes.read_classes`)
    - method: `adapter` or `adapter+calibrator`
    - template: one, or several to average if the method tunes no context (`cots.Task`)
    - context: vectors or a CoOp checkpoint in place of the template's words
    - descriptions: sentences about each class to average in, if the method tunes no context (`cots.Task`)
    - attributes: words for each class, for `tca`
    - views, augmix, seed: number of views, whether they are mixed, and what they are drawn from. views="auto" encodes
      as many of 64 as a photo needs (`cots.rounds`); methods that use only the weak view, such as `zeroshot`, encode
      one. Default: the policy's, else "auto"
    - device, precision: see `cots.load`
    - adapter_settings, calibrator_settings: settings of the method by name
    - solver: of the temperature, see `cots.calibrate`; default: the policy's, if any
    - allow_duplicates: accept names that are the same to the model
    - batch_size: images adapted together; default: 1, or 64 on a GPU
    - renderer: "pil", "gpu", which differ by at most 1/255, or "auto": the GPU, if any
    - ranges: fill `Prediction.confidence_range`
    - reference: images that belong to the classes; they set the threshold of `Prediction.none_of_these` so that 5% of
      such images are below it (`cots.novelty.threshold`)
    - policy: from `cots check` with the same settings; it fills `Prediction.label_set` and `abstained`
    - mode: "class", one of the classes, or "present": each class that is there (`Prediction.presence`), from the plain
      image; a policy of `cots check --present` makes probabilities and decisions of its scores
    - abstain: a confidence; predictions below it have no label and are `abstained`
    - taxonomy: a CSV file or "imagenet" (`cots.taxonomy.TaxonomyFile`): answers at the lowest rank with a probability
      above `abstain`, by default 0.9 (`Prediction.node`)
    - none_of_these: abstain on images that are flagged as none of the classes
    - max_pixels: see `cots.read_image`
    """

    def __init__(
        self,
        model: str | Backbone = "mini",
        classes: Classes = (),
        method: str = "tpt+ecots",
        *,
        pretrained: str | None = None,
        template: Template = DEFAULT_TEMPLATE,
        context: Tensor | str | Path | None = None,
        descriptions: Descriptions | None = None,
        attributes: Attributes | None = None,
        views: Views | None = None,
        augmix: bool = True,
        seed: int = 0,
        device: str | torch.device | None = None,
        precision: str = "float32",
        adapter_settings: Mapping[str, Any] | None = None,
        calibrator_settings: Mapping[str, Any] | None = None,
        solver: str | None = None,
        allow_duplicates: bool = False,
        batch_size: int | None = None,
        renderer: str = "auto",
        ranges: bool = False,
        reference: Iterable[Any] | None = None,
        policy: Policy | PresencePolicy | str | Path | None = None,
        mode: str = "class",
        taxonomy: TaxonomyFile | str | Path | None = None,
        abstain: float | None = None,
        none_of_these: bool = False,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self._given = {name: value for name, value in locals().items() if name not in ("self", "reference")}
        method, views = _of_mode(mode, method, views)
        self.mode, self.method, self.seed = mode, parse_method(method), seed
        _check_options(renderer=renderer, abstain=abstain, max_pixels=max_pixels, batch_size=batch_size)
        adapting, calibrating = dict(adapter_settings or {}), dict(calibrator_settings or {})
        self.method.check_settings(adapting, calibrating)
        self.policy, self.presence_policy = _read_policy(policy, mode)
        views = chosen_views(views, self.method.adapter, self.policy and self.policy.views)
        self.solver = self._chosen_solver(method, solver, calibrating)
        check_attributes([self.method], attributes)
        names = check_prompts(classes, template, context, descriptions, attributes)
        if distinct := not allow_duplicates and not is_known_list(classes):
            check_distinct(names, remedy=_ALLOW)
        self.abstain, self.none_of_these, self.max_pixels = abstain, none_of_these, max_pixels
        self.backbone = _backbone(model, pretrained, device, precision)
        self.task = Task(self.backbone, names, template, context, descriptions, attributes)
        if distinct:
            check_distinct(names, self.backbone, _ALLOW)
        self._pipeline = Pipeline(
            self.task, [self.method], adapter_settings={self.method.adapter: adapting},
            calibrator_settings={self.method.calibrator: calibrating}, ranges=ranges,
        )  # fmt: skip
        self.setup = self._setup(adapting | calibrating, context is not None, views=views, augmix=augmix, seed=seed)
        self._warn()
        self.ranks = self._rank_rule(taxonomy)
        self.batch_size = batch_size or accelerator().batch_limit("photos", self.backbone.device)
        self._encoder = self._make_encoder(1 if self._pipeline.uses_one_view(self.method) else views, augmix, renderer)
        self._set_threshold(reference)

    def _set_threshold(self, reference: Iterable[Any] | None) -> None:
        self.none_below = NONE_BELOW
        if reference is not None:
            self.none_below = threshold([one.in_list for one in self.stream(reference) if one.error is None])

    def _chosen_solver(self, method: str, solver: str | None, calibrating: dict[str, Any]) -> str | None:
        """The solver, which becomes one of the calibrator's settings; `method` as given, with settings at defaults."""
        name = self.method.calibrator
        known = calibrating | dict(parse_method(method, simplify=False).calibrator_settings)
        if solver is None and self.policy is not None and chosen_solver(name, None, known) is not None:
            solver = self.policy.fitting_solver
        chosen = chosen_solver(name, solver, known)
        if chosen is not None:
            calibrating["solver"] = chosen
        return chosen

    def _make_encoder(self, views: Views, augmix: bool, renderer: str) -> PhotoEncoder:
        takes_pixels = ADAPTERS.info(self.method.adapter).takes == "pixels"
        return encoder_for(self.backbone, views, augmix, self.batch_size, renderer=renderer, pixels=takes_pixels)

    @property
    def view_settings(self) -> ViewSettings:
        """How views are made, and the most that a photo has."""
        return self._encoder.maker.settings

    def _warn(self) -> None:
        if len(self.task.classes) == 1:
            warnings.warn(ONE_CLASS, stacklevel=3)
        if self.presence_policy is not None:
            self.presence_policy.refuse_other(self.setup)
        elif self.mode == "present":
            warnings.warn(UNKNOWN_LEVEL, stacklevel=3)
        if self.policy is not None:
            self.policy.refuse_other(self.setup)
            for message in self.policy.warnings(self.setup):
                warnings.warn(message, stacklevel=3)

    def _setup(self, settings: Mapping[str, Any], own_context: bool, **options: Any) -> Setup:
        backbone, context = self.backbone, ""
        if own_context:
            context = hashlib.sha256(self.task.initial_context.cpu().numpy().tobytes()).hexdigest()
        solver = self.solver or (self.policy.solver if self.policy else "none")
        return Setup(
            model=backbone.name, weights_hash=backbone.weights_hash, precision=backbone.precision, solver=solver,
            classes=self.task.classes, template=self.task.template, context=context,
            descriptions=self.task.descriptions_hash, attributes=self.task.attributes_hash, method=str(self.method),
            settings={name: value for name, value in settings.items() if name != "solver"}, **options,
        )  # fmt: skip

    def _presence(self, scores: Tensor) -> list[Presence]:
        rule = None if self.presence_policy is None else self.presence_policy.rule
        return read_scores(scores, self.task.classes, rule, self.backbone.logit_bias is not None)

    def _rank_rule(self, taxonomy: TaxonomyFile | str | Path | None) -> RankRule | None:
        """The rule of a taxonomy; a policy with one applies its own."""
        if self.mode == "present":
            for name, value in (("taxonomy", taxonomy), ("abstain", self.abstain)):
                check_unused(name, value, None, "mode='present'")
        own = None if self.policy is None else self.policy.ranks
        if own is not None:
            check_unused("abstain", self.abstain, None, "a policy that has a taxonomy")
        if taxonomy is None:
            return None
        if self.policy is not None and own is None:
            raise InputError(
                "The policy has no taxonomy, so it promises nothing about answers of one. Omit the taxonomy, or make a "
                "policy with cots check --taxonomy."
            )
        file = taxonomy if isinstance(taxonomy, TaxonomyFile) else TaxonomyFile.read(taxonomy)
        rule = RankRule(tree=file.tree(self.task.classes), threshold=self.abstain or SURE)
        if own is None:
            return rule
        if own.checksum != rule.checksum:
            raise InputError(f"The policy has another tree than {file.where}. Omit it, or run cots check with it.")
        return None

    def __getstate__(self) -> dict[str, Any]:
        """What a copy in another process is made from; it loads the model itself, if that was loaded by name."""
        given = {**self._given, "model": self.backbone, "pretrained": None, "device": None, "precision": "float32"}
        given |= {"classes": self.task.classes, "allow_duplicates": True, "policy": self.policy}
        return {"given": given, "none_below": self.none_below, "state": self.state}

    def __setstate__(self, pickled: dict[str, Any]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they were given when the original was made
            self.__init__(**pickled["given"])
        self.none_below, self.state = pickled["none_below"], pickled["state"]

    def __repr__(self) -> str:
        return f"Classifier({self.backbone.name!r}, {len(self.task.classes)} classes, method={str(self.method)!r})"

    @property
    def renderer(self) -> str:
        """What renders the views: "pil" or "gpu"."""
        return self._encoder.maker.renderer

    @property
    def state(self) -> Any:
        """The state of an online method after the images so far; None for the episodic ones."""
        return self._pipeline.states.get(self.method.base)

    @state.setter
    def state(self, value: Any) -> None:
        self._pipeline.states[self.method.base] = value

    @overload
    def __call__(self, images: PhotoSource) -> Prediction: ...  # pyright: ignore[reportOverlappingOverload]

    @overload
    def __call__(self, images: Iterable[Any]) -> list[Prediction]: ...

    def __call__(self, images: Any) -> Any:
        """Classify one image, or a list of them."""
        if _is_many(images):
            return list(self.stream(images))
        (photo,) = self._encoder.encode([self._read(images)], self.task)
        return self._begin([photo])()[0]

    def stream(self, images: Iterable[Any]) -> Iterator[Prediction]:
        """Predictions in the order of `images`, any iterable, as batches finish.

        Only a few batches are in memory at a time; an unreadable image is a Prediction with its `error`.
        """
        if isinstance(images, Sized):
            self.task.expect(len(images))
        photos = self._encoder.encode(self._encoder.read_all(self._read, images), self.task)
        # A GPU works on the next batch while the host reads the results of the last.
        under_way = 0 if self.backbone.device.type == "cpu" else 1
        begun: deque[Callable[[], list[Prediction]]] = deque()
        for batch in batches(photos, self.batch_size):
            begun.append(self._begin(batch))
            if len(begun) > under_way:
                yield from begun.popleft()()
        for finish in begun:
            yield from finish()

    def _read(self, image: Any) -> Photo:
        return self._encoder.read(image, self.seed, max_pixels=self.max_pixels)

    def _begin(self, photos: Sequence[EncodedPhoto]) -> Callable[[], list[Prediction]]:
        presence = self._presence if self.mode == "present" else None
        finish = begin_predictions(
            self._pipeline, photos, none_below=self.none_below, policy=self.policy, presence=presence
        )

        def predictions() -> list[Prediction]:
            found = finish()[self.method]
            if self.ranks is not None:
                found = map(self.ranks.apply, found)
            return [one.abstain(self.abstain, self.none_of_these) for one in found]

        return predictions


def _of_mode(mode: str, method: str, views: Views | None) -> tuple[str, Views | None]:
    """Method and number of views; `mode="present"` adapts nothing."""
    check_one_of("mode", mode, ("class", "present"))
    if mode == "class":
        return method, views
    for name, value, default in (("method", method, "tpt+ecots"), ("views", views, None)):
        check_unused(name, value, default, "mode='present', which looks at the plain image")
    return "zeroshot", 1


def _read_policy(policy: Any, mode: str) -> tuple[Policy | None, PresencePolicy | None]:
    """The policy of each of the two modes."""
    if policy is None:
        return None, None
    kind = PresencePolicy if mode == "present" else Policy
    if isinstance(policy, (str, Path)):
        policy = kind.load(policy)
    if not isinstance(policy, kind):
        raise InputError(f"This policy is not one of mode={mode!r}. Pass the mode that it was made for.")
    return (policy, None) if isinstance(policy, Policy) else (None, policy)


def _check_options(*, renderer: str, abstain: float | None, max_pixels: int, batch_size: int | None) -> None:
    check_one_of("renderer", renderer, RENDERERS)
    if abstain is not None:
        check_fraction("abstain", abstain)
    whole_number("max_pixels", max_pixels, 1)
    if batch_size is not None:
        whole_number("batch_size", batch_size, 1)


def _backbone(
    model: str | Backbone, pretrained: str | None, device: str | torch.device | None, precision: str
) -> Backbone:
    if not isinstance(model, Backbone):
        return load(model, pretrained=pretrained, device=device, precision=precision)
    if device is not None or precision != "float32" or pretrained is not None:
        raise InputError(
            "pretrained, device and precision have no effect on a loaded Backbone; pass them to cots.load."
        )
    return model


def _is_many(images: Any) -> bool:
    """Whether `images` contains images (a list, tuple or iterator) or is one (array, bytes, path, file, PIL image)."""
    one = (str, bytes, bytearray, memoryview, Path, np.ndarray, Tensor, Image.Image, Mapping)
    return isinstance(images, Iterable) and not isinstance(images, one) and not hasattr(images, "read")
