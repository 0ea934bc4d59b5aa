"""Backbones: dual encoders loaded through open_clip, with tokenizer, preprocessing and weights' hash."""

from ._backbone import GPU_SAMPLES, Backbone
from ._load import load

__all__ = ["GPU_SAMPLES", "Backbone", "load"]
