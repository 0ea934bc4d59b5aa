"""Calibrated test-time adaptation for vision-language models."""

from ._errors import BackboneError, CotsError, InputError
from .adapters import Adapted, TDAState, adapt, adapter
from .backbones import Backbone, load
from .prompts import Task

__all__ = [
    "Adapted", "Backbone", "BackboneError", "CotsError", "InputError", "TDAState", "Task", "adapt", "adapter", "load",
]
