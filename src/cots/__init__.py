"""Calibrated test-time adaptation for vision-language models.

    task = cots.Task(cots.load("ViT-B-16/openai"), ["tabby cat", "golden retriever"])
    adapted = cots.adapt("tpt", view_features, task)
    calibrated = cots.calibrate(adapted.logits, adapted.zero_shot_logits, method="ecots", alpha=task.alpha)

or, from a photo, `cots.Classifier("ViT-B-16/openai", classes=[...])("photo.jpg")`.
"""

from . import bench, data, metrics
from ._arrays import mean_similarity
from ._errors import BackboneError, CotsError, InputError, UntrainedWordWarning
from .adapters import Adapted, TDAState, adapt, adapter
from .backbones import Backbone, load
from .calibrators import Calibrated, calibrate, calibrator, fit_temperature
from .classifier import Classifier, Prediction
from .methods import parse_method
from .prompts import Task
from .views import ViewSettings, make_views, read_image, sample_seed

__all__ = [
    "Adapted",
    "Backbone",
    "BackboneError",
    "Calibrated",
    "Classifier",
    "CotsError",
    "InputError",
    "Prediction",
    "TDAState",
    "Task",
    "UntrainedWordWarning",
    "ViewSettings",
    "adapt",
    "adapter",
    "bench",
    "calibrate",
    "calibrator",
    "data",
    "fit_temperature",
    "load",
    "make_views",
    "mean_similarity",
    "metrics",
    "parse_method",
    "read_image",
    "sample_seed",
]
