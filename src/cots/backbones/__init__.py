"""Dual encoders loaded through open_clip, with tokenizer, preprocessing and a hash of the weights."""

from ._backbone import PRECISIONS, Backbone, ImageEncoder, fixed_backbone
from ._blocks import Attention, Block, Blocks, Linear, Norm, full_attention, same_values, with_child
from ._catalogue import known_models
from ._load import load
from ._mini import FixedText, MiniImages

__all__ = [
    "PRECISIONS",
    "Attention",
    "Backbone",
    "Block",
    "Blocks",
    "FixedText",
    "ImageEncoder",
    "Linear",
    "MiniImages",
    "Norm",
    "fixed_backbone",
    "full_attention",
    "known_models",
    "load",
    "same_values",
    "with_child",
]
