"""Dual encoders loaded through open_clip, with tokenizer, preprocessing and a hash of the weights."""

from ._backbone import Backbone, FixedText, fixed_backbone
from ._load import load

__all__ = ["Backbone", "FixedText", "fixed_backbone", "load"]
