"""Dual encoders loaded through open_clip, with their tokenizer, preprocessing and weights' hash."""

from ._backbone import Backbone
from ._load import load

__all__ = ["Backbone", "load"]
