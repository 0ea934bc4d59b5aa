"""Dual encoders loaded through open_clip, with tokenizer, preprocessing and a hash of the weights."""

from ._backbone import Backbone, fixed_backbone, load
from ._blocks import Attention, Block, Blocks, Linear, Norm, open_clip_class
from ._mini import FixedText

__all__ = [
    "Attention", "Backbone", "Block", "Blocks", "FixedText", "Linear", "Norm", "fixed_backbone", "load",
    "open_clip_class",
]  # fmt: skip
