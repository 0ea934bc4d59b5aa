"""Dual encoders loaded through open_clip, with tokenizer, preprocessing and a hash of the weights."""

from ._backbone import Backbone, fixed_backbone, load
from ._mini import FixedText

__all__ = ["Backbone", "FixedText", "fixed_backbone", "load"]
