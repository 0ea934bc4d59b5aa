"""Dual encoders loaded through open_clip, with their tokenizer, preprocessing and weights' hash."""

from ._backbone import Backbone
from ._fixed import FixedText, fixed_backbone
from ._load import load

__all__ = ["Backbone", "FixedText", "fixed_backbone", "load"]
