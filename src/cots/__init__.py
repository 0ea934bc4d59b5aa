"""Calibrated test-time adaptation for vision-language models.

    task = cots.Task(cots.load("ViT-B-16/openai"), ["tabby cat", "golden retriever"])
    adapted = cots.adapt("tpt", view_features, task)
    calibrated = cots.calibrate(adapted.logits, adapted.zero_shot_logits, "ecots", alpha=task.alpha, rows="views")

or, from a photo, `cots.Classifier("ViT-B-16/openai", classes=[...])("photo.jpg")`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import bench, data, metrics
    from ._arrays import mean_similarity
    from ._errors import BackboneError, CotsError, InputError, UntrainedWordWarning
    from .adapters import Adapted, TDAState, adapt, adapter
    from .backbones import Backbone, load
    from .calibrators import Calibrated, calibrate, calibrator, fit_temperature
    from .classifier import Classifier
    from .methods import Prediction, parse_method
    from .prompts import Task, pretrain_context
    from .views import ViewSettings, make_views, read_image, sample_seed
    from .zero_shot import pipeline

__all__ = [
    "Adapted", "Backbone", "BackboneError", "Calibrated", "Classifier", "CotsError", "InputError", "Prediction",
    "TDAState", "Task", "UntrainedWordWarning", "ViewSettings", "adapt", "adapter", "bench", "calibrate", "calibrator",
    "data", "fit_temperature", "load", "make_views", "mean_similarity", "metrics", "parse_method", "pipeline",
    "pretrain_context", "read_image", "sample_seed",
]  # fmt: skip

# Importing torch takes seconds, and `cots --help` must not wait for it. So public names are imported on first use; the
# imports above are for type checkers only.
_MODULES = {
    "_arrays": ["mean_similarity"],
    "_errors": ["BackboneError", "CotsError", "InputError", "UntrainedWordWarning"],
    "adapters": ["Adapted", "TDAState", "adapt", "adapter"],
    "backbones": ["Backbone", "load"],
    "calibrators": ["Calibrated", "calibrate", "calibrator", "fit_temperature"],
    "classifier": ["Classifier"],
    "methods": ["Prediction", "parse_method"],
    "prompts": ["Task", "pretrain_context"],
    "views": ["ViewSettings", "make_views", "read_image", "sample_seed"],
    "zero_shot": ["pipeline"],
}
_SUBMODULES = ("bench", "conformal", "data", "export", "metrics", "novelty", "presence", "taxonomy", "watch")
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> Any:
        if name in (
            "bench",
            "conformal",
            "data",
            "export",
            "metrics",
            "novelty",
            "presence",
            "taxonomy",
            "watch",
            *_MODULES,
        ):
            return importlib.import_module(f"{__name__}.{name}")
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
