"""Prompts: from class names and a context to text features."""

from ._classes import (
    MAX_NAME,
    DuplicateClass,
    check_distinct,
    class_list,
    class_lists,
    clean_name,
    clean_names,
    imagenet_names,
    list_or_names,
    synsets,
)
from ._packed import Packed, Pair
from ._task import ONE_CLASS, Task, untrained_message
from ._tokens import DEFAULT_TEMPLATE, PromptTokens, Template, check_prompts
from ._towers import CausalText, PlainText, TextTower

__all__ = [
    "DEFAULT_TEMPLATE", "MAX_NAME", "ONE_CLASS", "CausalText", "DuplicateClass", "Packed", "Pair", "PlainText",
    "PromptTokens", "Task", "Template", "TextTower", "check_distinct", "check_prompts", "class_list",
    "class_lists", "clean_name", "clean_names", "imagenet_names", "list_or_names", "synsets", "untrained_message",
]  # fmt: skip
