"""Prompts: from class names and a context to text features."""

from ._descriptions import Attributes, Descriptions, Sentences, read_attributes, read_descriptions
from ._flat import Noise, default_weight, flatness, pretrain_context
from ._packed import Packed, Pair
from ._task import ONE_CLASS, Task, untrained_message
from ._tokens import DEFAULT_TEMPLATE, PromptTokens, Template, check_prompts
from ._towers import CausalText, PlainText, TextTower

__all__ = [
    "DEFAULT_TEMPLATE", "ONE_CLASS", "Attributes", "CausalText", "Descriptions", "Noise", "Packed", "Pair", "PlainText",
    "PromptTokens", "Sentences", "Task", "Template", "TextTower", "check_prompts", "default_weight", "flatness",
    "pretrain_context", "read_attributes", "read_descriptions", "untrained_message",
]  # fmt: skip
