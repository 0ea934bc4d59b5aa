"""The files around an exported graph: configuration as Hugging Face's tools read it, names, licence, instructions."""

import json
from dataclasses import asdict, dataclass
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any

from ..backbones import known_models
from ..classifier import Classifier
from ..conformal import Policy
from ..views import ViewSettings
from ._readme import readme

LABELS, CONFIG, PREPROCESSOR, LICENCE = "labels.txt", "config.json", "preprocessor_config.json", "LICENSE-weights.txt"
_RESAMPLE = {"bilinear": 2, "bicubic": 3}  # PIL's numbers


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What an exported folder says about itself.

    method: the original one. temperature: of the graph. exact: whether the graph computes that method. fitted: how the
    temperature was fitted, in words. distance: from the original, in words. in_list_threshold: none of these below it.
    policy: what it promises for the confidences of the graph, if there is a policy whose threshold holds for them.
    """

    cots_version: str
    model: str
    sha256: str
    licence: str
    template: Any
    logit_scale: float
    method: str
    exact: bool
    temperature: float
    fitted: str
    distance: str
    in_list_threshold: float
    policy: dict[str, float] | None = None


def facts_of(classifier: Classifier, *, exact: bool, temperature: float, fitted: str, distance: str) -> Facts:
    backbone, policy = classifier.backbone, classifier.policy
    below = classifier.none_below
    if policy is not None and policy.none_below is not None:
        below = policy.none_below
    return Facts(
        cots_version=version("cots"), model=backbone.name, sha256=backbone.weights_hash,
        licence=_licence(backbone.name), template=classifier.task.template, logit_scale=backbone.logit_scale,
        method=str(classifier.method), exact=exact, temperature=temperature, fitted=fitted, distance=distance,
        in_list_threshold=below, policy=_promise(policy) if policy is not None and exact else None,
    )  # fmt: skip


def _promise(policy: Policy) -> dict[str, float] | None:
    """With probability `certainty`, at most `risk` of the predictions at or above `threshold` are wrong."""
    error = policy.error
    if error is None or error.threshold is None or policy.ranks is not None:
        return None
    return {"threshold": error.threshold, "risk": error.risk, "certainty": error.certainty, "n": policy.n}


def metadata_of(facts: Facts, classes: tuple[str, ...], settings: ViewSettings) -> dict[str, str]:
    """The metadata of the graph, which maps strings to strings."""
    names = {str(index): name for index, name in enumerate(classes)}
    values: dict[str, Any] = {
        "names": names, "task": "classify", "imgsz": list(settings.shape), "mean": settings.mean, "std": settings.std,
        "interpolation": settings.interpolation, "resize_mode": settings.resize_mode,
    }  # fmt: skip
    texts = {}
    for key, value in (values | asdict(facts)).items():
        if value is not None:
            texts[key] = value if isinstance(value, str) else json.dumps(value)
    return texts


def write_folder(
    folder: Path, facts: Facts, classes: tuple[str, ...], settings: ViewSettings, notes: tuple[str, ...]
) -> None:
    """Write every file but the graphs."""
    _write(folder / LABELS, "".join(f"{name}\n" for name in classes))
    _write_json(folder / CONFIG, _config(facts, classes, settings))
    preprocessor = preprocessor_config(settings)
    if preprocessor is not None:
        _write_json(folder / PREPROCESSOR, preprocessor)
    _write(folder / LICENCE, _licence_text(facts))
    _write(folder / "README.md", readme(facts, classes, settings, notes))


def _config(facts: Facts, classes: tuple[str, ...], settings: ViewSettings) -> dict[str, Any]:
    """config.json: a type of model that the readers know as an image classifier, and under "cots" what it is."""
    return {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "problem_type": "single_label_classification",
        "num_labels": len(classes),
        "id2label": {str(index): name for index, name in enumerate(classes)},
        "label2id": {name: index for index, name in enumerate(classes)},
        "image_size": settings.shape[0],
        "num_channels": 3,
        "cots": asdict(facts),
    }


def preprocessor_config(settings: ViewSettings) -> dict[str, Any] | None:
    """preprocessor_config.json; None if no processor of transformers resizes like that."""
    height, width = settings.shape
    config = {
        "do_convert_rgb": True,
        "do_resize": True,
        "resample": _RESAMPLE[settings.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(settings.mean),
        "image_std": list(settings.std),
    }
    if settings.resize_mode == "squash":
        return {"image_processor_type": "SiglipImageProcessor", **config, "size": {"height": height, "width": width}}
    if settings.resize_mode == "longest" or height != width:
        return None
    crop = {"do_center_crop": True, "crop_size": {"height": height, "width": width}}
    return {"image_processor_type": "CLIPImageProcessor", **config, "size": {"shortest_edge": height}, **crop}


def _licence(model: str) -> str:
    if model.startswith("random:"):
        return "none: random weights"
    for name, _, _, licence in known_models():
        if name == model:
            return licence
    return "unknown"


def _licence_text(facts: Facts) -> str:
    text = (
        f"The models in this folder contain the weights of the image tower of {facts.model}\n"
        f"(SHA-256 of all its weights: {facts.sha256}).\n\n"
    )
    if facts.licence == "unknown":
        return text + "cots does not know their licence: look where they come from before you pass this folder on.\n"
    text += f"Their licence: {facts.licence}\n"
    if facts.model == "mini":
        own = distribution("cots")
        for file in ("NOTICE", "LICENSE"):
            text += f"\n{'-' * 80}\n\n{own.read_text(f'licenses/{file}') or ''}"
    return text


def _write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")


def _write_json(file: Path, content: dict[str, Any]) -> None:
    _write(file, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
