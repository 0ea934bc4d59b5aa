"""Calibrated test-time adaptation for vision-language models."""

from ._errors import BackboneError, CotsError, InputError, UntrainedWordWarning
from .adapters import Adapted, TDAState, adapt, adapter
from .backbones import Backbone, load
from .prompts import Task
from .views import ViewSettings, make_views

__all__ = [
    "Adapted", "Backbone", "BackboneError", "CotsError", "InputError", "TDAState", "Task", "UntrainedWordWarning", "ViewSettings", "adapt",
    "adapter", "load", "make_views",
]
